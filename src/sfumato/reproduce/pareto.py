"""Accuracy against epsilon on CIFAR-10: the literature's points and ours."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from sfumato.data.catalogue import DRAWN
from sfumato.pictures import style
from sfumato.reproduce import results_file
from sfumato.reproduce.literature import CIFAR10
from sfumato.reproduce.results_file import Entry
from sfumato.reproduce.row import Row
from sfumato.reproduce.rows import PAPERS


@dataclass(frozen=True)
class Point:
    """The best result of a paper's rows at one epsilon.

    Attributes:
        epsilon: The budget.
        model: The network.
        accuracy: The median of its seeds.
        low: Accuracy of the worst seed.
        high: Accuracy of the best seed.
    """

    epsilon: float
    model: str
    accuracy: float
    low: float
    high: float


def draw(entries: Sequence[Entry], path: Path) -> Path:
    """Plot accuracy on CIFAR-10 without public images against epsilon: published and ours."""
    with style.figure(8.2, 5.2, path) as figure:
        axes = figure.add_subplot()
        for number, method in enumerate(CIFAR10):
            xs, ys = zip(*method.points, strict=True)
            axes.plot(
                xs, [y / 100 for y in ys], color=style.GREY, marker="ovs^<>DPXhp*d"[number],
                markersize=5, linewidth=0.8, alpha=0.45 if method.prior else 0.8,
                markerfacecolor="white", linestyle="-" if method.verified else ":",
                label=method.name + (f" ({method.prior})" if method.prior else ""),
            )  # fmt: skip
        for number, (name, rows) in enumerate(_series()):
            _ours(axes, name, _points(entries, rows), number)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(FixedLocator([1, 2, 3, 4, 6, 8, 10]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axes.set_xlim(0.9, 11)
        axes.set_xlabel("ε at δ = 1e-5")
        style.percent_axis(axes)
        axes.set_ylabel("test accuracy")
        axes.set_title("CIFAR-10 without public images")
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=7.5)
    return path


def _ours(axes: Axes, name: str, points: Sequence[Point], number: int) -> None:
    """Plot a paper's points in one colour; a line joins those of one network."""
    if not points:
        return
    models = list(dict.fromkeys(p.model for p in points))
    axes.errorbar(
        [p.epsilon for p in points], [p.accuracy for p in points],
        yerr=([p.accuracy - p.low for p in points], [p.high - p.accuracy for p in points]),
        color=style.SERIES[number], marker=style.MARKERS[number], markersize=7, capsize=3,
        linestyle="", label=f"ours: {name} ({', '.join(models)})", zorder=5,
    )  # fmt: skip
    for model in models:
        line = [p for p in points if p.model == model]
        axes.plot(
            [p.epsilon for p in line], [p.accuracy for p in line], color=style.SERIES[number],
            linewidth=1.6, zorder=4,
        )  # fmt: skip


def _series() -> Iterator[tuple[str, Sequence[Row]]]:
    """Rows that belong together: those of a paper from scratch, and our own after dead leaves.

    Rows that only serve as the start of another are left out.
    """
    for paper in PAPERS:
        starts = {start.id for row in paper.rows for start in (row.needs, row.best_needs) if start}
        scratch = [
            row
            for row in paper.rows
            if not (row.needs or row.best_needs or row.id in starts or _drawn(row))
        ]
        yield paper.key if paper.key != "sfumato" else "own recipes", scratch
    yield "after dead leaves", [row for row in PAPERS[-1].rows if _drawn(row)]


def _drawn(row: Row) -> bool:
    """Tell whether a run starts from weights that were trained on drawn images alone."""
    if row.needs:
        return row.needs.recipe_for("published").data.name == DRAWN
    return row.recipe_for(row.settings[0]).start.source == DRAWN


def _points(entries: Sequence[Entry], rows: Sequence[Row]) -> list[Point]:
    """For each epsilon the best median of a paper's rows."""
    best: dict[float, Point] = {}
    for row in rows:
        for setting in row.settings:
            recipe = row.recipe_for(setting)
            private = recipe.data.name == "cifar10" and recipe.privacy.enabled
            found = results_file.of_row(entries, row, setting) if private else []
            if not found or recipe.privacy.epsilon > 11:
                continue
            values = [entry.accuracy for entry in found]
            x = recipe.privacy.epsilon
            middle = statistics.median(values)
            point = Point(x, recipe.model.name, middle, min(values), max(values))
            best[x] = max(best.get(x, point), point, key=lambda p: p.accuracy)
    return [best[x] for x in sorted(best)]
