"""Learning curves of one or many runs, against steps and against the privacy spent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sfumato.privacy.statement import upwards
from sfumato.report import svg
from sfumato.report.markup import Safe, details, element, join, table
from sfumato.run import Run
from sfumato.training.metrics import number

COLOURS = 7
"""Colours of the style sheet; later runs take them again, dashed."""

_POINTS = 240
_ROWS = 40
_MARKERS = 6
_X_LABELS = {"step": "step", "epsilon": "ε spent"}


@dataclass(frozen=True)
class _Line:
    """One curve of a panel.

    Attributes:
        key: In the records.
        label: In words.
        kind: Its CSS class.
        private: Whether it is computed on training batches, outside the guarantee.
    """

    key: str
    label: str
    kind: str
    private: bool = False


@dataclass(frozen=True)
class _Panel:
    key: str
    title: str
    lines: tuple[_Line, ...]
    result: str = ""
    share: bool = True


_PANELS = (
    _Panel(
        "accuracy",
        "Accuracy",
        (
            _Line("train_accuracy", "training batches", "thin", private=True),
            _Line("validation_accuracy", "validation", "thick"),
        ),
        "test_accuracy",
    ),
    _Panel(
        "loss",
        "Loss",
        (
            _Line("loss", "training batches", "thin", private=True),
            _Line("validation_loss", "validation", "thick"),
        ),
        share=False,
    ),
    _Panel(
        "clipped",
        "Gradients that were clipped",
        (_Line("clipped", "training batches", "thin", private=True),),
    ),
)

Points = list[tuple[float, float]]


def style_of(index: int) -> str:
    """The CSS classes of a run's marks: a colour, and dashes where colours are used again."""
    again = index // COLOURS
    return f"run c{index % COLOURS}" + (f" dash{min(again, 2)}" if again else "")


def panels(runs: Sequence[Run], *, shareable: bool = False) -> tuple[Safe, dict[str, Any]]:
    """All panels for both axes, and the values that the page's script reads off them.

    Args:
        runs: The runs.
        shareable: Leave out what was computed on training batches.
    """
    drawn: list[Safe] = []
    data: dict[str, Any] = {}
    for panel in _PANELS:
        by_axis = {}
        for x in _X_LABELS:
            series = _series(runs, panel, x, shareable=shareable)
            if series:
                key = f"{panel.key}-{x}"
                by_axis[x], data[key] = _draw(panel, x, series, runs, key)
        if not by_axis:
            continue
        axis_boxes = (element("div", {"data-x": x}, chart) for x, chart in by_axis.items())
        title = element("h3", None, panel.title)
        drawn.append(element("figure", {"class": "panel"}, title, *axis_boxes))
    return join(drawn), data


def shows_batches(run: Run) -> bool:
    """Tell whether a run's records hold numbers that were computed on training batches."""
    keys = [line.key for panel in _PANELS for line in panel.lines if line.private]
    return any(number(record, key) is not None for record in run.records for key in keys)


def records_table(run: Run, *, shareable: bool = False) -> Safe | None:
    """The numbers behind the curves of one run, thinned to some rows."""
    lines = [line for panel in _PANELS for line in panel.lines]
    lines = [line for line in lines if not (shareable and line.private)]
    lines = [line for line in lines if any(number(r, line.key) is not None for r in run.records)]
    if not lines:
        return None
    head = ["step", *(["ε spent"] if run.private else [])]
    head += [_title(line) for line in lines]
    rows = []
    for record in _thinned(run.records, _ROWS):
        row = [f"{record['step']}"]
        if run.private:
            spent = number(record, "epsilon")
            row.append("–" if spent is None else upwards(spent, places=3))
        row += [_shown(number(record, line.key), "{:.4f}") for line in lines]
        rows.append(row)
    summary = f"The numbers of {run.name} as a table"
    return details(summary, table(head, rows, caption=summary, classes="numbers"))


def _title(line: _Line) -> str:
    what = next(panel.title for panel in _PANELS if line in panel.lines)
    return f"{what.lower()}, {line.label}"


def _shown(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


@dataclass(frozen=True)
class _Series:
    run: int
    line: _Line
    points: Points


def _series(runs: Sequence[Run], panel: _Panel, x: str, *, shareable: bool) -> list[_Series]:
    found = []
    for index, run in enumerate(runs):
        for line in panel.lines:
            if line.private and shareable:
                continue
            points = _points(run.records, x, line.key)
            if points:
                found.append(_Series(index, line, _thinned(points, _POINTS)))
        last = _points([run.final], x, panel.result) if panel.result else []
        if last:
            found.append(_Series(index, _Line(panel.result, "test, at the end", "result"), last))
    return found


def _points(records: Sequence[Mapping[str, Any]], x: str, key: str) -> Points:
    pairs = ((number(record, x), number(record, key)) for record in records)
    return [(a, b) for a, b in pairs if a is not None and b is not None]


def _draw(
    panel: _Panel, x: str, series: Sequence[_Series], runs: Sequence[Run], key: str
) -> tuple[Safe, dict[str, Any]]:
    frame = svg.Frame(340, 226, bottom=38)
    values = [b for s in series for _, b in s.points]
    low, high = _range(values, share=panel.share, whole=panel.key == "clipped")
    last = max(a for s in series for a, _ in s.points)
    across, up = frame.x(0, last * 1.04 or 1), frame.y(low, high)
    form = svg.percent if panel.share else svg.plain
    parts = [svg.axes(frame, across, up, x_label=_X_LABELS[x], x_format=svg.plain, y_format=form)]
    leading = {s.run for s in series if s.line.kind == "thick"}
    for s in series:
        faint = s.line.kind == "thin" and s.run in leading
        parts.append(_curve(s, across, up, marked=len(runs) > 1 and not faint, faint=faint))
    parts.append(element("g", {"class": "readout"}))
    label = f"{panel.title} against {_X_LABELS[x]}. {_in_words(series, runs, panel)}"
    data = {
        "x": across.to_list(),
        "y": up.to_list(),
        "xName": _X_LABELS[x],
        "percent": panel.share,
        "series": [
            {
                "run": s.run,
                "name": f"{runs[s.run].name}, {s.line.label}" if len(runs) > 1 else s.line.label,
                "points": [list(p) for p in s.points],
            }
            for s in series
        ],
    }
    return svg.picture(frame, parts, label=label, chart=key), data


def _curve(s: _Series, across: svg.Scale, up: svg.Scale, *, marked: bool, faint: bool) -> Safe:
    at = [(across(a), up(b)) for a, b in s.points]
    look = f"{style_of(s.run)} {s.line.kind}" + (" faint" if faint else "")
    if s.line.kind == "result":
        x, y = at[0]
        inner = [svg.marker(3, x, y, 5.5, "mark")]
    else:
        inner = [svg.path(at, "line")]
        if marked or len(at) == 1:
            every = max(1, math.ceil(len(at) / _MARKERS))
            inner += [svg.marker(s.run, x, y, 3, "mark") for x, y in at[every // 2 :: every]]
    return element("g", {"class": look, "data-run": s.run}, *inner)


def _range(values: Sequence[float], *, share: bool, whole: bool) -> tuple[float, float]:
    """The ends of the vertical axis, round and with room."""
    if whole:
        return 0.0, 1.0
    low, high = min(values), max(values)
    room = 0.06 * (high - low) or 0.05 * (abs(high) or 1)
    low, high = low - room, high + room
    if low < 0.35 * high:
        low = 0.0
    step = svg.nice_step((high - low) / 5)
    low, high = math.floor(low / step) * step, math.ceil(high / step) * step
    return (max(0.0, low), min(1.0, high)) if share else (low, high)


def _in_words(series: Sequence[_Series], runs: Sequence[Run], panel: _Panel) -> str:
    def form(value: float) -> str:
        return f"{100 * value:.1f} %" if panel.share else f"{value:.3g}"

    sentences = []
    for s in series[:12]:
        who = f"{runs[s.run].name}, {s.line.label}" if len(runs) > 1 else s.line.label
        first, last = s.points[0][1], s.points[-1][1]
        course = form(last) if len(s.points) == 1 else f"from {form(first)} to {form(last)}"
        sentences.append(f"{who}: {course}")
    return "; ".join(sentences) + "."


def _thinned(items: Sequence[Any], most: int) -> list[Any]:
    """Some of the items, evenly spaced, the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(k * (len(items) - 1) / (most - 1))] for k in range(most)]
