"""Charts drawn with matplotlib, into PNG files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from sfumato.charts import style
from sfumato.charts.chart import SHAPES, SHORT, Axis, Bars, Chart, Matrix, Series, shortened

NUMBERED = 20
"""Confusion matrices up to this many classes have their counts written in."""
NAMED = 120
"""With more classes than this only some are named, evenly spaced."""

_MARKERS = dict(zip(SHAPES, "os^vPXp<>*hD", strict=True))
_DASHES = {"": "-", "dashed": "--", "dotted": ":"}
_MARKED = 12
_BOARD = 0.04
_LINE, _MARK = 1.3, 4.5
_OUTSIDE: dict[str, Any] = {
    "outside": {"loc": "center left", "bbox_to_anchor": (1.01, 0.5), "fontsize": 7.5},
    "above": {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 3, "borderaxespad": 0},
}


def draw(
    rows: Sequence[Sequence[Chart]],
    path: Path,
    *,
    width: float,
    height: float,
    title: str = "",
    note: str = "",
    heights: Sequence[float] | None = None,
) -> None:
    """Draw charts in rows into a PNG file, which is replaced if it exists.

    Axes that are equal within a row or a column are labelled once.

    Args:
        rows: The charts; each row is as wide as the picture.
        path: The file; one that ends in .pdf or .svg is of that format instead.
        width: In inches.
        height: In inches.
        title: Above all charts.
        note: Small print below all charts.
        heights: Of the rows, as multiples of each other; None for equal ones.
    """
    with style.figure(width, height, path) as figure:
        columns = math.lcm(*map(len, rows))
        grid = figure.add_gridspec(len(rows), columns, height_ratios=heights)
        for i, row in enumerate(rows):
            wide, below = columns // len(row), rows[i + 1] if i + 1 < len(rows) else ()
            for j, chart in enumerate(row):
                axes = figure.add_subplot(grid[i, j * wide : (j + 1) * wide])
                paint(axes, chart)
                if len(below) == len(row) and below[j].x == chart.x:
                    axes.tick_params(labelbottom=False)
                    axes.set_xlabel("")
                if j and row[j - 1].y == chart.y:
                    axes.tick_params(labelleft=False)
                    axes.set_ylabel("")
        figure.align_ylabels()
        if note:
            figure.supxlabel(note, x=0.01, ha="left", fontsize=7.5, color=style.GREY)
        headline(figure, title)


def headline(figure: Figure, title: str) -> None:
    """Write the title above all charts of a figure, if there is one."""
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")


def paint(axes: Axes, chart: Chart) -> None:
    """Draw a chart into axes of matplotlib's."""
    room = 20 if chart.legend == "above" else None
    axes.set_title(chart.title, fontsize=7.5 if chart.small else None, pad=room)
    _scale(axes, chart.x, "x", 4 if chart.small else 6)
    if chart.empty:
        axes.set_ylabel(chart.y.label)
        axes.set_yticks([])
        axes.grid(False)
        axes.text(0.5, 0.5, chart.empty, color=style.GREY, ha="center", va="center",
                  transform=axes.transAxes)  # fmt: skip
        return
    _scale(axes, chart.y, "y", 3 if chart.small else 8)
    if chart.small:
        axes.tick_params(labelsize=7.5)
        axes.yaxis.label.set_fontsize(8)
    for item in chart.items:
        if isinstance(item, Series):
            _series(axes, item)
        else:
            _bars(axes, item)
    if not axes.get_legend_handles_labels()[0]:
        return
    if chart.legend:
        axes.legend(**_OUTSIDE.get(chart.legend, {"loc": chart.legend}))


def _scale(axes: Axes, axis: Axis, which: Literal["x", "y"], count: int) -> None:
    if axis.log:
        axes.set(**{f"{which}scale": "log"})
        axes.minorticks_off()
    axes.set(**{f"{which}lim": (axis.low, axis.high), f"{which}label": axis.label})
    ticks = axis.ticks(count)
    axes.set(**{f"{which}ticks": ticks, f"{which}ticklabels": [axis.text(t) for t in ticks]})
    if axis.upright:
        axes.tick_params(which, labelrotation=90, labelsize=7.5)


def _series(axes: Axes, s: Series) -> None:
    colour = style.COLOURS[s.colour]
    xs, ys = [x for x, _ in s.points], [y for _, y in s.points]
    look: dict[str, Any] = {
        "color": colour,
        "linewidth": _LINE * s.width,
        "linestyle": _DASHES[s.dash] if s.width else "",
        "marker": _MARKERS[s.marker] if s.marker else "o" if len(xs) == 1 else "",
        "markersize": _MARK * s.size,
        "markevery": max(1, len(xs) // _MARKED) if s.width else 1,
        "alpha": 0.35 if s.faint else 1.0,
        "label": (s.label if s.legend is None else s.legend) or None,
        "zorder": 3,
        "clip_on": s.width > 0 or not xs,
    }
    if s.hollow:
        look["markerfacecolor"] = "white"
    elif not s.width:
        look["markeredgecolor"] = "white"
    if s.spans:
        low, high = np.array(s.spans).T
    if s.spans and s.band:
        axes.fill_between(xs, low, high, color=colour, alpha=0.15, linewidth=0)
    elif s.spans:
        axes.vlines(xs, low, high, color=colour, linewidth=1.0)
        axes.plot(xs * 2, [*low, *high], "_", color=colour, markersize=5)
    axes.plot(xs, ys, **look)
    if s.tag:
        right, up = axes.transLimits.transform(axes.transScale.transform(s.points[0])) > 0.7
        side = s.corner or f"{'lower' if up else 'upper'} {'left' if right else 'right'}"
        axes.annotate(
            s.tag, s.points[0], xytext=(-5 if "left" in side else 5, -4 if "lower" in side else 4),
            textcoords="offset points", fontsize=8, ha="right" if "left" in side else "left",
            va="top" if "lower" in side else "bottom", color=colour,
        )  # fmt: skip


def _bars(axes: Axes, bars: Bars) -> None:
    colour = style.COLOURS[bars.colour]
    left, right = np.array(bars.sides).T if bars.sides else np.zeros((2, 0))
    low, high = np.array(bars.ends).T if bars.ends else np.zeros((2, 0))
    if bars.top_only:
        tops = axes.vlines if bars.sideways else axes.hlines
        tops(high, left, right, color=colour, linewidth=2.0, label=bars.label)
    elif bars.joined:
        axes.stairs(
            high, [*left[:1], *right], baseline=low, fill=True, color=colour, alpha=bars.opacity,
            orientation="horizontal" if bars.sideways else "vertical", label=bars.label,
        )  # fmt: skip
    else:
        (axes.barh if bars.sideways else axes.bar)(
            left, high - low, right - left, low, align="edge", color=colour, alpha=bars.opacity,
            edgecolor="white", linewidth=0.8, label=bars.label,
        )  # fmt: skip
    start, end = axes.get_xlim() if bars.sideways else axes.get_ylim()
    for word, middle, foot, top in zip(bars.words, (left + right) / 2, low, high, strict=False):
        inside = (top - foot) / (end - start) > SHORT
        place, about = (foot if inside else top, middle), (3, 0)
        axes.annotate(
            word, place if bars.sideways else place[::-1], about if bars.sideways else about[::-1],
            textcoords="offset points", fontsize=8, color="white" if inside else style.INK,
            ha="left" if bars.sideways else "center", va="center" if bars.sideways else "bottom",
        )  # fmt: skip


def paint_matrix(axes: Axes, matrix: Matrix, side: float) -> None:
    """Draw a confusion matrix: what is right in blue, what is wrong in orange.

    Args:
        axes: Where.
        matrix: The matrix.
        side: Its side in inches.
    """
    count, none = len(matrix.classes), matrix.counts == 0
    right = np.eye(count, dtype=bool) | none
    full = np.where(right[..., None], to_rgb(style.BLUE), to_rgb(style.RED))
    shades = np.where(none, _BOARD, matrix.shades)[..., None]
    axes.imshow(1 - shades * (1 - full), aspect="auto", interpolation="nearest")
    axes.set(title="Confusion matrix", xlabel="predicted class (colour: share of the true class)",
             ylabel="true class")  # fmt: skip
    axes.grid(False)
    axes.spines[:].set_visible(False)
    ticks = range(0, count, -(-count // NAMED))
    names = [shortened(matrix.classes[k]) for k in ticks]
    row = 72 * side / len(ticks)
    size = min(9.0, max(4.5, 0.72 * row))
    upright = max(len(name) for name in names) * size * 0.7 > row
    axes.set_xticks(ticks, names, rotation=90 if upright else 0, fontsize=size)
    axes.set_yticks(ticks, names, fontsize=size)
    axes.tick_params(length=0)
    if count > NUMBERED:
        return
    longest = max(2, len(str(matrix.counts.max())))
    size = min(10.0, 72 * side / count / longest * 1.3)
    for (i, j), value in np.ndenumerate(matrix.counts):
        if value:
            colour = "white" if matrix.shades[i, j] > 0.6 else style.INK
            axes.text(j, i, str(value), ha="center", va="center", color=colour, fontsize=size)
