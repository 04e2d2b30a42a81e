"""Charts drawn with matplotlib, into PNG files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from sfumato.charts import style
from sfumato.charts.chart import SHAPES, Axis, Bars, Chart, Matrix, Series, shortened

NUMBERED = 20
"""Confusion matrices up to this many classes have their counts written in."""
NAMED = 120
"""With more classes than this only some are named, evenly spaced."""

_MARKERS = dict(zip(SHAPES, "os^vPXp<>*hD", strict=True))
_DASHES = {"": "-", "dashed": "--", "dotted": ":"}
_MARKED = 12
_BOARD = 0.04
_LINE, _MARK = 1.3, 4.5


def draw(
    rows: Sequence[Sequence[Chart]],
    path: Path,
    *,
    width: float,
    height: float,
    title: str = "",
    note: str = "",
) -> None:
    """Draw charts in rows into a PNG file, which is replaced if it exists.

    Axes that are equal within a row or a column are labelled once.

    Args:
        rows: The charts, as many in each row.
        path: The file.
        width: In inches.
        height: In inches.
        title: Above all charts.
        note: Small print below all charts.
    """
    with style.figure(width, height, path) as figure:
        panels = figure.subplots(len(rows), len(rows[0]), squeeze=False)
        for i, row in enumerate(rows):
            for j, chart in enumerate(row):
                paint(panels[i, j], chart)
                if i + 1 < len(rows) and rows[i + 1][j].x == chart.x:
                    panels[i, j].tick_params(labelbottom=False)
                    panels[i, j].set_xlabel("")
                if j and row[j - 1].y == chart.y:
                    panels[i, j].tick_params(labelleft=False)
                    panels[i, j].set_ylabel("")
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
    axes.set_title(chart.title)
    _scale(axes, chart.x, "x")
    if chart.empty:
        axes.set_ylabel(chart.y.label)
        axes.set_yticks([])
        axes.grid(False)
        axes.text(0.5, 0.5, chart.empty, color=style.GREY, ha="center", va="center",
                  transform=axes.transAxes)  # fmt: skip
        return
    _scale(axes, chart.y, "y")
    for item in chart.items:
        if isinstance(item, Series):
            _series(axes, item)
        else:
            _bars(axes, item)
    if not axes.get_legend_handles_labels()[0]:
        return
    if chart.legend == "outside":
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=7.5)
    elif chart.legend:
        place: Any = chart.legend
        axes.legend(loc=place)


def _scale(axes: Axes, axis: Axis, which: str) -> None:
    if axis.log:
        axes.set(**{f"{which}scale": "log"})
        axes.minorticks_off()
    axes.set(**{f"{which}lim": (axis.low, axis.high), f"{which}label": axis.label})
    ticks = axis.ticks(6 if which == "x" else 8)
    axes.set(**{f"{which}ticks": ticks, f"{which}ticklabels": [axis.text(t) for t in ticks]})


def _series(axes: Axes, s: Series) -> None:
    colour = style.COLOURS[s.colour]
    xs, ys = [x for x, _ in s.points], [y for _, y in s.points]
    look: dict[str, Any] = {
        "color": colour,
        "linewidth": _LINE * s.width,
        "linestyle": _DASHES[s.dash] if s.width else "",
        "marker": _MARKERS[s.marker] if s.marker else "o" if len(xs) == 1 else "",
        "markersize": _MARK * s.size,
        "markevery": max(1, len(xs) // _MARKED),
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
        axes.vlines(xs, low, high, color=colour, linewidth=1.0)
        axes.plot(xs * 2, [*low, *high], "_", color=colour, markersize=5)
    axes.plot(xs, ys, **look)
    if s.tag:
        right, up = axes.transLimits.transform(axes.transScale.transform(s.points[0])) > 0.7
        axes.annotate(
            s.tag, s.points[0], xytext=(-5 if right else 5, -4 if up else 4), color=colour,
            textcoords="offset points", fontsize=8, ha="right" if right else "left",
            va="top" if up else "bottom",
        )  # fmt: skip


def _bars(axes: Axes, bars: Bars) -> None:
    colour = style.COLOURS[bars.colour]
    left, right = np.array(bars.sides).T if bars.sides else np.zeros((2, 0))
    low, high = np.array(bars.ends).T if bars.ends else np.zeros((2, 0))
    if bars.top_only:
        axes.hlines(high, left, right, color=colour, linewidth=2.0, label=bars.label)
    else:
        axes.bar(
            left, high - low, right - left, low, align="edge", color=colour, alpha=bars.opacity,
            edgecolor="white", linewidth=0.8, label=bars.label,
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
