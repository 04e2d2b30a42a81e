"""The papers' figures with our runs, as PNG, from `results/*.jsonl` alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from sfumato.pictures import style
from sfumato.reproduce import results_file
from sfumato.reproduce.lookup import every_row
from sfumato.reproduce.plots import PLOTS, Panel, Plot
from sfumato.reproduce.results_file import Entry
from sfumato.reproduce.row import SETTINGS, Row


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
        {"sweep": _sweep, "curves": _curves, "dots": _dots}[plot.kind](plot, entries, out / file)
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


def _panels(plot: Plot, path: Path, height: float = 3.4) -> AbstractContextManager[Figure]:
    return style.figure(max(5.2, 4.6 * len(plot.panels)), height, path)


def _sweep(plot: Plot, entries: Sequence[Entry], path: Path) -> None:
    """Accuracy against a number, on a logarithmic axis."""
    with _panels(plot, path) as figure:
        for place, panel in enumerate(plot.panels):
            axes = figure.add_subplot(1, len(plot.panels), place + 1)
            axes.set_title(panel.title)
            ticks: set[float] = set()
            for number, (label, points) in enumerate(panel.series):
                found = _alike(entries, [name for _, name in points], plot)
                shown = [
                    (float(x), _values(runs, plot.measure))
                    for (x, _), runs in zip(points, found, strict=True)
                ]
                ticks |= {x for x, _ in shown}
                _line(axes, [(x, v) for x, v in shown if v], label, number)
                printed = [(float(x), every_row()[name].published) for x, name in points]
                _dotted(axes, [(x, y) for x, y in printed if y is not None], number)
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_locator(FixedLocator(sorted(ticks)))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
            axes.set_xlabel(plot.x)
            _finish(axes, plot.y)


def _line(axes: Axes, points: Sequence[tuple[float, list[float]]], label: str, number: int) -> None:
    if not points:
        axes.plot(
            [], [], color=style.LIGHT, marker=style.MARKERS[number], label=f"{label} (not run)"
        )
        return
    xs = [x for x, _ in points]
    middle = [statistics.median(values) for _, values in points]
    low = [m - min(values) for m, (_, values) in zip(middle, points, strict=True)]
    high = [max(values) - m for m, (_, values) in zip(middle, points, strict=True)]
    axes.errorbar(
        xs, middle, yerr=(low, high), color=style.SERIES[number], marker=style.MARKERS[number],
        markersize=5, capsize=2.5, elinewidth=1.0, label=label,
    )  # fmt: skip


def _dotted(axes: Axes, points: Sequence[tuple[float, float]], number: int) -> None:
    """Plot published points in the colour of their line."""
    axes.plot(
        [x for x, _ in points], [y / 100 for _, y in points], color=style.SERIES[number],
        marker=style.MARKERS[number], markersize=5, markerfacecolor="white", linestyle=":",
        linewidth=1.0,
    )  # fmt: skip


def _curves(plot: Plot, entries: Sequence[Entry], path: Path) -> None:
    """Plot accuracy over training: every seed thin, the median of seeds bold."""
    with _panels(plot, path) as figure:
        for place, panel in enumerate(plot.panels):
            axes = figure.add_subplot(1, len(plot.panels), place + 1)
            axes.set_title(panel.title)
            of: set[str] = set()
            for number, (label, points) in enumerate(panel.series):
                runs = [e for _, name in points for e in _found(entries, name, plot) if e.curve]
                _seeds(axes, runs, label, number)
                of |= {e.curve["of"] for e in runs}
            axes.set_xlabel(plot.x)
            axes.set_xlim(left=0)
            _finish(axes, f"accuracy on {' or '.join(sorted(of))}")


def _seeds(axes: Axes, runs: Sequence[Entry], label: str, number: int) -> None:
    colour = style.SERIES[number]
    if not runs:
        axes.plot([], [], color=style.LIGHT, label=f"{label} (not run)")
        return
    paths = [_path(e.curve) for e in runs]
    for xs, ys, _ in paths if len(paths) > 1 else ():
        axes.plot(xs, ys, color=colour, linewidth=0.7, alpha=0.35)
    same = len({tuple(steps) for _, _, steps in paths}) == 1
    xs, ys, _ = paths[0]
    if same:
        ys = [statistics.median(values) for values in zip(*(y for _, y, _ in paths), strict=True)]
    axes.plot(
        xs, ys, color=colour, marker=style.MARKERS[number], markersize=3.5,
        markevery=max(1, len(xs) // 12), label=label,
    )  # fmt: skip
    end = statistics.median(e.accuracy for e in runs)
    axes.plot(
        [xs[-1]], [end], color=colour, marker="D", markersize=7, markeredgecolor="white",
        linestyle="", clip_on=False, zorder=5,
    )  # fmt: skip


def _path(curve: Mapping[str, Any]) -> tuple[list[float], list[float], list[int]]:
    """Privacy spent (or steps), accuracies and steps; of points at one epsilon the last.

    An epsilon that takes long to compute is known at some steps only, and holds for those before.
    """
    xs = curve["epsilon"] or curve["step"]
    last = {x: place for place, x in enumerate(xs)}.values()
    first, second, third = ([of[i] for i in last] for of in (xs, curve["accuracy"], curve["step"]))
    return first, second, third


def _dots(plot: Plot, entries: Sequence[Entry], path: Path) -> None:
    """Plot results without an order: median and seeds, and the published numbers."""
    with _panels(plot, path, height=0.9 + 0.3 * max(len(p.series) for p in plot.panels)) as figure:
        for place, panel in enumerate(plot.panels):
            axes = figure.add_subplot(1, len(plot.panels), place + 1)
            axes.set_title(panel.title)
            least = math.inf
            for number, (_, points) in enumerate(panel.series):
                values = _values(_found(entries, points[0][1], plot), plot.measure)
                printed = None if plot.measure else every_row()[points[0][1]].published
                least = min([least, *values, *([printed / 100] if printed else [])])
                if values:
                    middle = statistics.median(values)
                    axes.plot(
                        values, [number] * len(values), "-|", color=style.BLUE, markersize=9,
                        linewidth=1.0,
                    )  # fmt: skip
                    axes.plot([middle], [number], "o", color=style.BLUE, markersize=7, zorder=4)
                else:
                    axes.text(
                        0.01, number, "not run", color=style.GREY, va="center", fontsize=8,
                        transform=axes.get_yaxis_transform(),
                    )  # fmt: skip
                if printed is not None:
                    axes.plot(
                        [printed / 100], [number], "D", color=style.ORANGE, markersize=6,
                        markerfacecolor="white", markeredgewidth=1.5, zorder=3,
                    )  # fmt: skip
            axes.set_yticks(range(len(panel.series)), [label for label, _ in panel.series])
            axes.set_ylim(len(panel.series) - 0.4, -0.6)
            axes.tick_params(axis="y", length=0)
            axes.set_xlabel(plot.y)
            if plot.measure:
                axes.set_xlim(left=0)
            else:
                style.percent_axis(axes, x=True, y=False)
                if math.isfinite(least):
                    axes.set_xlim(left=max(0.0, math.floor(least * 20 - 1) / 20))


def _finish(axes: Axes, label: str) -> None:
    style.percent_axis(axes)
    axes.set_ylabel(label)
    axes.legend(loc="best")
