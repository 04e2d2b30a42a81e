"""The papers' figures with our runs, as PNG, from `results/*.jsonl` alone."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sfumato.charts import png
from sfumato.charts.chart import Axis, Chart, Series, look, value_axis
from sfumato.reproduce import results_file
from sfumato.reproduce.lookup import every_row
from sfumato.reproduce.plots import PLOTS, Panel, Plot
from sfumato.reproduce.results_file import Entry
from sfumato.reproduce.row import SETTINGS, Row

_PALE = {"colour": "light"}


@dataclass(frozen=True)
class Picture:
    """A figure that was drawn.

    Attributes:
        file: Its name.
        source: The table or figure of the paper that it belongs to.
        caption: A sentence about its content.
    """

    file: str
    source: str
    caption: str


def draw(paper: str, entries: Sequence[Entry], out: Path) -> list[Picture]:
    """Draw the figures of a paper, with the panels for which there is at least one result."""
    drawn = []
    for whole in PLOTS:
        if whole.paper != paper:
            continue
        plot = replace(whole, panels=_run(whole, entries))
        if not plot.panels:
            continue
        file = f"{paper}-{plot.name}.png"
        make = {"sweep": _sweep, "curves": _curves, "dots": _dots}[plot.kind]
        row = [make(panel, plot, entries) for panel in plot.panels]
        rows = max(len(panel.series) for panel in plot.panels)
        height = 0.9 + 0.3 * rows if plot.kind == "dots" else 3.4
        png.draw([row], out / file, width=max(5.2, 4.6 * len(row)), height=height)
        drawn.append(Picture(file, plot.source, plot.caption))
    return drawn


def _run(plot: Plot, entries: Sequence[Entry]) -> tuple[Panel, ...]:
    return tuple(p for p in plot.panels if any(_found(entries, row, plot) for row in p.rows()))


def _found(entries: Sequence[Entry], name: str, plot: Plot) -> list[Entry]:
    """The results of a row: as published if there are any, else in its best setting."""
    row: Row = every_row()[name]
    for setting in row.settings[:1] if plot.one_change else row.settings:
        if found := results_file.of_row(entries, row, setting):
            return found
    return []


def _alike(entries: Sequence[Entry], names: Sequence[str], plot: Plot) -> list[list[Entry]]:
    """The results of the rows of one line, all in the setting that most of them were run in."""
    rows = [every_row()[name] for name in names]
    settings = SETTINGS[:1] if plot.one_change else SETTINGS
    choices = [[results_file.of_row(entries, row, setting) for row in rows] for setting in settings]
    return max(choices, key=lambda found: sum(map(bool, found)))


def _values(entries: Sequence[Entry], measure: str) -> list[float]:
    if not measure:
        return [entry.accuracy for entry in entries]
    return [entry.measures[measure] for entry in entries if measure in entry.measures]


def _sweep(panel: Panel, plot: Plot, entries: Sequence[Entry]) -> Chart:
    """Accuracy against a number, on a logarithmic axis."""
    series: list[Series] = []
    for number, (label, points) in enumerate(panel.series):
        found = _alike(entries, [name for _, name in points], plot)
        shown = {
            float(x): values
            for (x, _), runs in zip(points, found, strict=True)
            if (values := _values(runs, plot.measure))
        }
        printed = {float(x): every_row()[name].published for x, name in points}
        own = look(number)
        if not shown:
            series.append(Series(points=(), label=f"{label} (not run)", **own | _PALE))
        series += [
            Series(
                points=tuple((x, statistics.median(values)) for x, values in shown.items()),
                spans=tuple((min(values), max(values)) for values in shown.values()),
                label=label if shown else "", **own,
            ),
            Series(
                points=tuple((x, y / 100) for x, y in printed.items() if y is not None),
                width=0.7, hollow=True, **own | {"dash": "dotted"},
            ),
        ]  # fmt: skip
    ticks = sorted({float(x) for _, points in panel.series for x, _ in points})
    x = Axis(plot.x, ticks[0] / 1.06, ticks[-1] * 1.06, log=True, at=tuple(ticks))
    return _finished(panel, x, plot.y, series)


def _curves(panel: Panel, plot: Plot, entries: Sequence[Entry]) -> Chart:
    """Accuracy along training: every seed thin, the median of seeds strong."""
    series: list[Series] = []
    of: set[str] = set()
    for number, (label, points) in enumerate(panel.series):
        runs = [e for _, name in points for e in _found(entries, name, plot) if e.curve]
        series += _seeds(runs, label, number)
        of |= {e.curve["of"] for e in runs}
    last = max((x for s in series for x, _ in s.points), default=1.0)
    x = Axis(plot.x, 0.0, 1.04 * last)
    return _finished(panel, x, f"accuracy on {' or '.join(sorted(of))}", series)


def _finished(panel: Panel, x: Axis, label: str, series: Sequence[Series]) -> Chart:
    values = [y for s in series for _, y in s.points]
    values += [end for s in series for ends in s.spans for end in ends]
    y = value_axis(label, values, percent=True, zero=False)
    return Chart(title=panel.title, x=x, y=y, items=tuple(series), legend="best")


def _seeds(runs: Sequence[Entry], label: str, number: int) -> Iterator[Series]:
    own = look(number)
    if not runs:
        yield Series(points=(), label=f"{label} (not run)", **own | _PALE)
        return
    paths = [_path(e.curve) for e in runs]
    for xs, ys, _ in paths if len(paths) > 1 else ():
        points = tuple(zip(xs, ys, strict=True))
        yield Series(points=points, colour=own["colour"], width=0.5, faint=True)
    same = len({tuple(steps) for _, _, steps in paths}) == 1
    xs, ys, _ = paths[0]
    if same:
        ys = [statistics.median(values) for values in zip(*(y for _, y, _ in paths), strict=True)]
    yield Series(points=tuple(zip(xs, ys, strict=True)), label=label, size=0.8, **own)
    end = statistics.median(e.accuracy for e in runs)
    yield Series(points=((xs[-1], end),), width=0, size=1.6, **own | {"marker": "diamond"})


def _path(curve: Mapping[str, Any]) -> tuple[list[float], list[float], list[int]]:
    """Privacy spent (or steps), accuracies and steps; of points at one epsilon the last.

    An epsilon that takes long to compute is known at some steps only, and holds for those before.
    """
    xs = curve["epsilon"] or curve["step"]
    last = {x: place for place, x in enumerate(xs)}.values()
    first, second, third = ([of[i] for i in last] for of in (xs, curve["accuracy"], curve["step"]))
    return first, second, third


def _dots(panel: Panel, plot: Plot, entries: Sequence[Entry]) -> Chart:
    """Results of things without an order: median and seeds, and what was published.

    All in the setting that most of them were run in, a thing that was not in another of its own.
    """
    series: list[Series] = []
    names = []
    alike = _alike(entries, [points[0][1] for _, points in panel.series], plot)
    for number, (label, points) in enumerate(panel.series):
        own = alike[number] or _found(entries, points[0][1], plot)
        values = _values(own, plot.measure)
        printed = None if plot.measure else every_row()[points[0][1]].published
        names.append(label if values else f"{label} (not run)")
        if values:
            seeds = tuple((value, float(number)) for value in sorted(values))
            middle = (statistics.median(values), float(number))
            series += [
                Series(points=seeds, marker="circle", size=0.7, width=0.7, hollow=True),
                Series(points=(middle,), marker="circle", size=1.8, width=0),
            ]
        if printed is not None:
            series.append(Series(points=((printed / 100, float(number)),), colour="orange",
                                 marker="diamond", size=1.3, width=0, hollow=True))  # fmt: skip
    found = [x for s in series for x, _ in s.points] + [0.0] * bool(plot.measure)
    x = value_axis(plot.y, found, percent=not plot.measure, zero=False)
    at = tuple(float(k) for k in range(len(names)))
    y = Axis("", len(names) - 0.4, -0.6, at=at, names=tuple(names))
    return Chart(title=panel.title, x=x, y=y, items=tuple(series))
