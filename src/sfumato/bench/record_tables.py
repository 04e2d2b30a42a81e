"""Tables of a record: on the terminal and in Markdown, from the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sfumato.bench.cases import CONTENDERS, PHYSICAL
from sfumato.bench.measurement import Measurement
from sfumato.bench.targets import NOT_PRIVATE, Verdict, ratio

if TYPE_CHECKING:
    from rich.table import Table

NONE = "–"
COLUMNS = (
    "model", "K", "rows", "contender", "views/s", "quartiles", "step", "of not private",
    "peak GiB", "first step", "remarks",
)  # fmt: skip
_LEFT = (0, 3, 10)
VERDICT_COLUMNS = ("target", "wanted", "measured", "")


def number(value: float) -> str:
    """Format a speed: `69 100` for 69123.4, `54.2` for 54.23, the precision of a median."""
    if value >= 1000:
        return f"{round(value, -2 if value >= 10_000 else -1):,.0f}".replace(",", " ")
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Format a time in a suitable unit."""
    if seconds < 1:
        return f"{1e3 * seconds:.3g} ms"
    return f"{seconds:.3g} s"


def baselines(measurements: Sequence[Measurement]) -> dict[int, Measurement | None]:
    """For each measurement, by identity, the fastest training without privacy in its case."""
    found: dict[int, Measurement | None] = {}
    for m in measurements:
        plain = [
            other
            for other in measurements
            if other.case == m.case and other.contender in NOT_PRIVATE and other.times
        ]
        found[id(m)] = max(plain, key=lambda other: other.speed or 0.0, default=None)
    return found


def cells(m: Measurement, plain: Measurement | None) -> list[str]:
    """The cells of one measurement."""
    c = m.case
    at_once = str(c.rows) if c.physical == PHYSICAL else f"{c.rows} x {c.physical}"
    first = [c.name, str(c.views), at_once, CONTENDERS[m.contender]]
    if m.speed is None:
        return [*first, *[NONE] * 6, m.reason]
    low, high = m.quartiles()
    share = ratio(m, plain)
    memory = NONE if m.peak_memory is None else f"{m.peak_memory / 2**30:.2f}"
    start = NONE if m.first_step is None else duration(m.first_step)
    return [
        *first,
        number(m.speed),
        f"{number(low)} to {number(high)}",
        duration(m.seconds),
        NONE if share is None else f"{share:.2f}",
        memory,
        start,
        "; ".join(part for part in (m.how, m.note) if part),
    ]


def line(m: Measurement, plain: Measurement | None) -> str:
    """One measurement on one line, as it comes in."""
    model, k, rows, who, speed, quartiles, step, share, memory, start, remarks = cells(m, plain)
    head = f"{model:<16} K = {k:<3} {rows:>6} rows  {who:<22}"
    if m.speed is None:
        return f"{head} {NONE:>10}  {remarks}"
    parts = [f"{speed:>8} views/s", f"({quartiles})", f"{step} a step"]
    if share != NONE and m.contender not in NOT_PRIVATE:
        parts.append(f"{share} of not private")
    if memory != NONE:
        parts.append(f"{memory} GiB")
    parts.append(f"first step {start}")
    if m.note:
        parts.append(m.note)
    return f"{head} {'  '.join(parts)}"


def rows(measurements: Sequence[Measurement]) -> list[list[str]]:
    """A row for everything that was measured; `missing` has the rest."""
    plain = baselines(measurements)
    return [cells(m, plain[id(m)]) for m in measurements if m.times]


def missing(measurements: Sequence[Measurement]) -> list[str]:
    """A sentence for each reason why something was not measured."""
    found: dict[tuple[str, str], dict[str, list[int]]] = {}
    for m in measurements:
        if not m.times:
            at = found.setdefault((CONTENDERS[m.contender], m.reason), {})
            at.setdefault(m.case.name, []).append(m.case.views)
    return [
        f"{who} not measured on "
        + ", ".join(
            f"{model} (K = {', '.join(str(k) for k in sorted(set(ks)))})"
            for model, ks in cases.items()
        )
        + f": {reason}."
        for (who, reason), cases in found.items()
    ]


def verdict_rows(found: Sequence[Verdict]) -> list[list[str]]:
    """A row per target."""
    return [
        [
            v.claim,
            f"{'≤' if v.most else '≥'} {v.wanted:g}",
            NONE if v.found is None else f"{v.found:.4g}",
            v.word,
        ]
        for v in found
    ]


def markdown(columns: Sequence[str], content: Sequence[Sequence[str]], left: Sequence[int]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(columns) + " |"]
    lines.append("|" + "|".join("---" if i in left else "--:" for i in range(len(columns))) + "|")
    lines += ["| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in content]
    return "\n".join(lines)


def measurements_markdown(measurements: Sequence[Measurement]) -> str:
    """The measurements as Markdown, sfumato's own in bold."""
    content = [
        [*row[:3], *[f"**{c}**" for c in row[3:5]], *row[5:]] if row[3] == "sfumato" else row
        for row in rows(measurements)
    ]
    parts = [markdown(COLUMNS, content, _LEFT)] if content else []
    if absent := missing(measurements):
        parts.append("\n".join(f"- {sentence}" for sentence in absent))
    return "\n\n".join(parts)


def verdicts_markdown(found: Sequence[Verdict]) -> str:
    """The targets as Markdown; missed ones are bold."""
    content = verdict_rows(found)
    for row in content:
        row[3] = f"**{row[3]}**" if row[3] == "missed" else row[3]
    return markdown(VERDICT_COLUMNS, content, (0, 3))


def measurements_table(measurements: Sequence[Measurement]) -> Table:
    """The measurements for the terminal, a line between cases."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for i, column in enumerate(COLUMNS):
        table.add_column(column, justify="left" if i in _LEFT else "right")
    measured = [m for m in measurements if m.times]
    for i, (m, row) in enumerate(zip(measured, rows(measurements), strict=True)):
        last = i + 1 < len(measured) and measured[i + 1].case != m.case
        style = "bold" if m.contender == "sfumato" else None
        table.add_row(*row, style=style, end_section=last)
    return table


def verdicts_table(found: Sequence[Verdict]) -> Table:
    """The targets for the terminal."""
    from rich.table import Table
    from rich.text import Text

    colours = {"met": "green", "missed": "bold red", "not measured": "yellow"}
    table = Table(box=None, pad_edge=False)
    for i, column in enumerate(VERDICT_COLUMNS):
        table.add_column(column, justify="left" if i in (0, 3) else "right")
    for row in verdict_rows(found):
        table.add_row(*row[:3], Text(row[3], style=colours[row[3]]))
    return table
