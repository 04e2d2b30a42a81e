"""The papers' tables with our results beside theirs, as Markdown, from `results/*.jsonl` alone."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sfumato.errors import UserError
from sfumato.io.atomic import write_whole
from sfumato.privacy.statement import upwards
from sfumato.reproduce import misses, results_file
from sfumato.reproduce.results_file import Entry
from sfumato.reproduce.row import PLD, Paper, Row, Setting
from sfumato.reproduce.rows import PAPERS
from sfumato.reproduce.verdicts import standing, summary, verdict
from sfumato.reproduce.workload import training_images

if TYPE_CHECKING:
    from sfumato.reproduce.figures import Picture

WORDS: dict[Setting, str] = {"published": "as published", "best": "best"}
_OURS = "This page is written by `sfumato reproduce --render`."
_HEADER = (
    "row", "ε", "setting", "published", "ours", "all seeds", "min – max", "verdict", "minutes",
)  # fmt: skip


def check_own(out: Path) -> None:
    """Refuse a folder whose index was written by something else."""
    index = out / "README.md"
    if index.is_file() and _OURS not in index.read_text(encoding="utf-8", errors="replace"):
        raise UserError(f"{index} was not written by `sfumato reproduce`: name another --docs.")


def render(results: Path, out: Path, *, only: str | None = None) -> list[Path]:
    """Write every table and figure, and return the files.

    Args:
        results: Folder of the `.jsonl` files.
        out: Folder of the pages.
        only: The one paper whose page is written anew, with the index and the pages that mention
            its rows; all if None.
    """
    from sfumato.reproduce import cifar10_front, figures, readme

    entries = results_file.read(results)
    check_own(out)
    index = out / "README.md"
    out.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    answered = {
        id_.partition("/")[0]
        for paper in PAPERS
        for row in paper.rows
        for id_ in row.answers
        if paper.key == only
    }
    for paper in PAPERS:
        page = out / f"{paper.key}.md"
        if only not in (None, paper.key) and paper.key not in answered and page.exists():
            continue
        pictures = figures.draw(paper.key, entries, out)
        write_whole(page, _page(paper, entries, pictures).encode())
        written += [page, *(out / picture.file for picture in pictures)]
    front = cifar10_front.draw(entries, out / "pareto-cifar10.png")
    write_whole(index, _index(entries, front.name).encode())
    written += readme.update(out.parent.parent / "README.md", entries)
    return [*written, front, index]


def _index(entries: Sequence[Entry], front: str) -> str:
    every = [row for paper in PAPERS for row in paper.rows]
    lines = [
        "# Results",
        "",
        misses.totals(every, entries),
        "",
        "Every number of ours is the accuracy on the test set of a run that `sfumato reproduce` "
        f"made from a packaged recipe; the runs are in `results/`, one line each. {_OURS}",
        "",
        f"![Accuracy on CIFAR-10 against epsilon]({front})",
        "",
        "| | paper | rows | run | reached | missed | no number to reach |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for paper in PAPERS:
        counts = Counter(_state(row, entries) for row in paper.rows)
        run = sum(counts[state] for state in ("reached", "missed", "open"))
        lines.append(
            f"| [{paper.key}]({paper.key}.md) | {paper.authors} | {len(paper.rows)} | {run} | "
            f"{counts['reached']} | {counts['missed']} | {counts['open']} |"
        )
    return "\n".join(lines) + "\n"


def _state(row: Row, entries: Sequence[Entry]) -> str:
    """`not run`, `open` (no number to reach), `reached` in some setting, or `missed`."""
    found = standing(row, entries)
    if found is None:
        return "not run"
    if row.published is None:
        return "open"
    return "reached" if found.reached else "missed"


def _page(paper: Paper, entries: Sequence[Entry], pictures: Sequence[Picture]) -> str:
    own = [entry for entry in entries if entry.paper == paper.key]
    lines = [f"# {paper.title}", "", f"{paper.authors}. {paper.measured}", ""]
    if machines := Counter(entry.hardware for entry in own):
        named = "; ".join(f"{name} ({count} runs)" for name, count in machines.most_common())
        lines += [
            f"Ours ran on: {named}. Minutes are of training, compilation included, the median over "
            "seeds; runs may have shared a device, a compilation, or features of fixed layers.",
            "",
        ]
    for source, rows in paper.sources():
        lines += [f"## {source[0].upper()}{source[1:]}", ""]
        lines += ["| " + " | ".join(_HEADER) + " |", "|---|---:|---|---:|---:|---|---|---|---:|"]
        for row in rows:
            lines += _lines(row, own)
        lines += _inside(rows, own)
        notes = [f"- {row.name}: {row.note}." for row in rows if row.note]
        notes += _improvements(rows, own) + _answers(rows, entries)
        lines += ["", *notes, *([""] if notes else [])]
        for picture in pictures:
            if picture.source == source:
                lines += [f"![{picture.caption}]({picture.file})", "", f"*{picture.caption}*", ""]
    stale = len(own) - sum(
        len(results_file.of_row(own, row, setting))
        for row in paper.rows
        for setting in row.settings
    )
    if stale:
        what = "1 result" if stale == 1 else f"{stale} results"
        why = "of recipes that have changed since or of runs made again"
        lines += [f"Left out: {what}, {why}.", ""]
    lines += misses.section(paper.rows, own)
    return "\n".join(lines).rstrip() + "\n"


def _inside(rows: Sequence[Row], entries: Sequence[Entry]) -> list[str]:
    """A table of further measures, the median over seeds; empty if there are none."""
    found: list[tuple[str, dict[str, float]]] = []
    for row in rows:
        for setting in row.settings:
            runs = [e for e in results_file.of_row(entries, row, setting) if e.measures]
            if runs:
                keys = dict.fromkeys(key for e in runs for key in e.measures)
                middle = {
                    key: statistics.median(e.measures[key] for e in runs if key in e.measures)
                    for key in keys
                }
                found.append((f"{row.name}, {WORDS[setting]}", middle))
    columns = list(dict.fromkeys(key for _, middle in found for key in middle))
    if not columns:
        return []
    lines = ["", "| median over seeds | " + " | ".join(columns) + " |"]
    lines.append("|---|" + "---:|" * len(columns))
    for name, middle in found:
        cells = [f"{middle[key]:.4g}" if key in middle else "" for key in columns]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def _improvements(rows: Sequence[Row], entries: Sequence[Entry]) -> list[str]:
    """Sentences about what `best` changes besides the accountant, in rows that were run so."""
    found: dict[str, list[str]] = {}
    for row in rows:
        said = (*PLD, "privacy.tuned")
        more = {key: value for key, value in row.best.items() if key not in said}
        if more and "best" in row.settings[1:] and results_file.of_row(entries, row, "best"):
            words = ", ".join(f"`{key} = {json.dumps(value)}`" for key, value in more.items())
            if tuned := row.best.get("privacy.tuned"):
                words += f"; chosen by {tuned}"
            words = f"noise by PLD, and {words}" if PLD.items() <= row.best.items() else words
            found.setdefault(words, []).append(row.name)
    return [f"- *best* of {', '.join(names)}: {words}." for words, names in found.items()]


def _answers(rows: Sequence[Row], entries: Sequence[Entry]) -> list[str]:
    """Sentences about our own rows in place of these, where they were run."""
    lines = []
    for other in (row for paper in PAPERS for row in paper.rows if row.answers):
        names = [row.name for row in rows if row.id in other.answers]
        if names and (ours := summary(results_file.of_row(entries, other, other.settings[0]))):
            lines.append(
                f"- In place of {', '.join(names)}: [{other.name}]({other.paper}.md) has "
                f"{ours.median:.2f} ({other.source})."
            )
    return lines


def _lines(row: Row, entries: Sequence[Entry]) -> list[str]:
    """A row's lines, one for each setting that was run."""
    recipe = row.recipe_for(row.settings[0])
    budget = f"{recipe.privacy.epsilon:g}" if recipe.privacy.enabled else "∞"
    printed = "–" if row.published is None else f"{row.published:g}"
    found = []
    for setting in row.settings:
        ours = summary(results_file.of_row(entries, row, setting))
        if ours is None:
            continue
        seeds = sorted(ours.accuracies)
        words = WORDS[setting] if recipe.privacy.enabled else "not private"
        images = min(e.examples for e in results_file.of_row(entries, row, setting))
        if 0 < images < 0.99 * training_images(recipe):
            words += f", on {images} images"
        cells = (
            row.name,
            budget if ours.epsilon is None else upwards(ours.epsilon, places=2),
            words,
            printed,
            f"**{ours.median:.2f}**",
            ", ".join(f"{a:.2f}" for a in ours.accuracies),
            f"{seeds[0]:.2f} – {seeds[-1]:.2f}" if len(seeds) > 1 else "one seed",
            verdict(row.published, ours.median),
            f"{ours.minutes:.1f}",
        )
        found.append("| " + " | ".join(cells) + " |")
    return found or [f"| {row.name} | {budget} | – | {printed} | not run | | | | |"]
