"""Learning curves of the runs on the page, against steps and against the privacy spent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sfumato.charts import svg
from sfumato.charts.curves import AGAINST, PANELS, History, charts, keys
from sfumato.io.json_lines import number
from sfumato.privacy.statement import upwards
from sfumato.report.markup import Safe, details, element, join, table
from sfumato.run import Run
from sfumato.text import NONE

_ROWS = 40
_HEIGHT = 174.0


def panels(runs: Sequence[Run], *, shareable: bool = False) -> tuple[Safe, dict[str, Any]]:
    """All panels for both axes, and the values that the page's script reads off them.

    Args:
        runs: The runs.
        shareable: Leave out what was computed on training batches.
    """
    histories = [
        History(run.records, run.final, run.name, run.recipe.privacy.epsilon) for run in runs
    ]
    by_axis = {x: charts(histories, x, batches=not shareable) for x in AGAINST}
    drawn: list[Safe] = []
    data: dict[str, Any] = {}
    for panel, (name, _) in PANELS.items():
        boxes = []
        for x, made in by_axis.items():
            if not made[panel].empty:
                key = f"{panel}-{x}"
                chart, data[key] = svg.render([(made[panel], _HEIGHT)], key=key)
                boxes.append(element("div", {"data-x": x}, Safe(chart)))
        if boxes:
            title = element("h3", None, name)
            drawn.append(element("figure", {"class": "panel"}, title, *boxes))
    return join(drawn), data


def shows_batches(run: Run) -> bool:
    """Tell whether a run's records hold numbers that were computed on training batches."""
    exact = [key for _, key in PANELS.values()]
    return any(number(record, key) is not None for record in run.records for key in exact)


def records_table(run: Run, *, shareable: bool = False) -> Safe | None:
    """The numbers behind the curves of one run, thinned to some rows."""
    titles = {
        key: f"{title.lower()}, {name}"
        for panel, (title, _) in PANELS.items()
        for key, name in keys(panel, batches=not shareable).items()
        if any(number(record, key) is not None for record in run.records)
    }
    if not titles:
        return None
    head = ["step", *(["ε spent"] if run.private else []), *titles.values()]
    rows = []
    for record in svg.thinned(run.records, _ROWS):
        row = [f"{record['step']}"]
        if run.private:
            spent = number(record, "epsilon")
            row.append(NONE if spent is None else upwards(spent, places=3))
        values = [number(record, key) for key in titles]
        rows.append(row + [NONE if value is None else f"{value:.4f}" for value in values])
    summary = f"The numbers of {run.name} as a table"
    return details(summary, table(head, rows, caption=summary, classes="numbers"))
