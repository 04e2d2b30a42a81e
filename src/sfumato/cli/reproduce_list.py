"""`sfumato reproduce --list`: the rows, how far they are, and the order of a budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sfumato.cli.terminal import Terminal
from sfumato.live import working

if TYPE_CHECKING:
    from sfumato.reproduce.job import Job
    from sfumato.reproduce.minutes import Estimator
    from sfumato.reproduce.row import Row
    from sfumato.reproduce.runner import Runner


def show(rows: Sequence[Row], results: Path, seeds: int, estimator: Estimator) -> None:
    """Show rows by paper: seeds that were run, the published number, ours, and minutes of a run."""
    from rich.table import Table
    from rich.text import Text

    from sfumato.cli.name_table import show as show_table
    from sfumato.reproduce import results_file
    from sfumato.reproduce.rows import PAPERS
    from sfumato.reproduce.verdicts import summary, verdict

    console = Terminal()
    entries = results_file.read(results)
    with working("estimating the minutes of runs"):
        minutes = {(r.id, s): estimator.minutes(r, s) for r in rows for s in r.settings}
    for paper in PAPERS:
        mine = [row for row in rows if row.paper == paper.key]
        if not mine:
            continue
        title = Text.assemble("\n", (paper.key, "bold"), f"  {paper.title}. {paper.authors}")
        console.print(title, soft_wrap=True)
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("row", "seeds", "minutes", "published", "ours", "", ""):
            right = column in ("seeds", "minutes", "published", "ours")
            table.add_column(column, justify="right" if right else "left", no_wrap=right)
        for row in mine:
            name = row.name + (f" ({row.alias})" if row.alias else "")
            for place, setting in enumerate(row.settings):
                found = results_file.of_row(entries, row, setting)
                ours = summary(found)
                if ours is None and place:
                    continue
                table.add_row(
                    name,
                    f"{len(found)}/{seeds}",
                    _number(minutes[row.id, setting]),
                    "" if row.published is None else f"{row.published:g}",
                    f"{ours.median:.2f}" if ours else "",
                    verdict(row.published, ours.median).replace("*", "") if ours else "not run",
                    "best" if setting == "best" and row.settings != ("best",) else "",
                )
        show_table(table)
    if not results.is_dir():
        console.print(
            f"\nThere is no folder of results at {results.absolute()}, so no row counts as run: "
            "--results names another.",
            soft_wrap=True,
        )
    words = "\nRun a paper or a row: sfumato reproduce shoe-fit/fashion-tanh --seeds 1"
    console.print(words, soft_wrap=True)


def show_order(runner: Runner, jobs: Sequence[Job], budget: float) -> None:
    """Show the runs that a budget would make, in their order, with the minutes of each."""
    from rich.table import Table

    from sfumato.cli.name_table import show as show_table
    from sfumato.reproduce import job_order

    console = Terminal()
    found = job_order.planned(jobs, budget, minutes=runner.minutes, begun=runner.begun)
    console.print(
        f"\n{budget:g} minutes would run {len(found)} of {len(jobs)} runs that are missing, in "
        "this order:",
        soft_wrap=True,
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("run", "published", "minutes", "until", ""):
        right = column in ("published", "minutes", "until")
        table.add_column(column, justify="right" if right else "left", no_wrap=right)
    for one in found:
        words = ["goes on"] if one.begun else []
        words += ["cut, goes on next time"] if one.cut else []
        published = one.job.row.published
        table.add_row(
            str(one.job),
            "" if published is None else f"{published:g}",
            _number(one.minutes),
            "" if one.cut else _number(one.ends),
            "; ".join(words),
        )
    show_table(table)


def _number(minutes: float) -> str:
    """Minutes with a digit after the point where that says something; empty if not known."""
    if math.isinf(minutes):
        return ""
    return f"{minutes:.1f}" if minutes < 10 else f"{minutes:.0f}"
