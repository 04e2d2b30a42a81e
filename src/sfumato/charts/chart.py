"""The description of a chart: axes, series and annotations, independent of how they are drawn.

`charts.png` draws a description with matplotlib, `charts.svg` draws it for the HTML page. Colours
are names of `charts.style.COLOURS`, because the page has a light and a dark shade of each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

Points = tuple[tuple[float, float], ...]
Array = np.ndarray[Any, Any]

SERIES = ("blue", "orange", "green", "red", "purple", "sky", "ink")
"""Colours of series side by side, in their order."""
SHAPES = (
    "circle", "square", "triangle", "down", "plus", "cross", "pentagon", "left", "right", "star",
    "hexagon", "diamond",
)  # fmt: skip
"""Shapes of marks, so that series side by side differ in more than colour."""


@dataclass(frozen=True)
class Axis:
    """A range of values and its tick marks.

    Attributes:
        label: The name of the axis.
        low: The left or lower end.
        high: The right or upper end; below `low` on an axis that runs the other way.
        percent: Fractions are shown as percentages.
        log: The scale is logarithmic.
        whole: Tick marks are whole numbers only.
        at: Positions of tick marks; None to choose round ones.
        names: Words at these positions in place of the numbers.
        upright: The labels of tick marks read upwards, which leaves room for long names.
    """

    label: str
    low: float
    high: float
    percent: bool = False
    log: bool = False
    whole: bool = False
    at: tuple[float, ...] | None = None
    names: tuple[str, ...] = ()
    upright: bool = False

    def ticks(self, count: int = 5) -> list[float]:
        """Positions of tick marks: `at`, or about `count` round values."""
        if self.at is not None:
            return list(self.at)
        if self.log and (found := _log_ticks(self.low, self.high)):
            return found
        step = nice_step((self.high - self.low) / max(1, count), whole=self.whole)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(k * step, 12) for k in range(first, last + 1)]

    def text(self, value: float) -> str:
        """The label of a tick mark, with thin spaces between thousands."""
        if self.names and self.at is not None:
            return self.names[self.at.index(value)]
        return f"{100 * value:.4g} %" if self.percent else f"{value:,.10g}".replace(",", "\u202f")


def value_axis(
    label: str, values: Sequence[float], *, percent: bool = False, zero: bool = True
) -> Axis:
    """An axis around values, with some room; percentages stay within 0 and 100.

    Args:
        label: The name of the axis.
        values: Everything that the axis must hold.
        percent: Fractions are shown as percentages.
        zero: Begin at zero unless the values lie far above it.
    """
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = max(0.06 * (high - low) or 0.05 * (abs(high) or 1), 1e-9)
    low, high = low - room, high + room
    if zero and low + room >= 0 and low < 0.35 * high:
        low = 0.0
    return Axis(label, *((max(0.0, low), min(1.0, high)) if percent else (low, high)), percent)


def nice_step(least: float, *, whole: bool = False) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that is no less."""
    if least <= 0 or (whole and least <= 1):
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    steps = [k * power for k in (1, 2, 2.5, 5, 10) if not whole or (k * power).is_integer()]
    return next(step for step in steps if step >= least * (1 - 1e-9))


def _log_ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for wanted in ((1, 2, 3, 5, 8), (1, 2, 5), (1, 3), (1,)):
        found = [k * 10.0**p for p in powers for k in wanted if low <= k * 10.0**p <= high]
        if len(found) <= 6:
            break
    return found


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points that belong together: a line through them, a mark at each, or both.

    Attributes:
        points: Pairs of x and y.
        label: In legends and readouts; empty for neither.
        legend: Words for the legend in place of the label; empty for none.
        colour: A name of `charts.style.COLOURS`.
        width: Of the line, as a multiple of the usual width; 0 for no line.
        dash: How the line is broken.
        marker: One of `SHAPES`; empty for no marks.
        size: Of the marks, as a multiple of the usual size.
        spans: The ends of each point's error bar.
        band: The spans are drawn as one band around the line.
        tag: Words beside the first point.
        corner: Where the tag is, seen from the point; empty to choose.
        faint: Pale.
        hollow: Marks are outlines.
        run: The run on the page that the series belongs to; None if it belongs to no run.
    """

    points: Points
    label: str = ""
    legend: str | None = None
    colour: str = "blue"
    width: float = 1.0
    dash: Literal["", "dashed", "dotted"] = ""
    marker: str = ""
    size: float = 1.0
    spans: Points = ()
    band: bool = False
    tag: str = ""
    corner: Literal["", "upper left", "upper right", "lower left", "lower right"] = ""
    faint: bool = False
    hollow: bool = False
    run: int | None = None


SHORT = 0.35
"""A bar that covers less of its axis has no room for words."""


def look(index: int) -> dict[str, Any]:
    """The colour, mark and dashes of one of many things, as arguments of its series."""
    again = index // len(SERIES)
    return {
        "colour": SERIES[index % len(SERIES)],
        "marker": SHAPES[index % len(SHAPES)],
        "dash": ("", "dashed", "dotted")[min(again, 2)],
    }


RULE: dict[str, Any] = {"colour": "red", "dash": "dotted", "width": 0.7}
"""The look of a line at a limit, as arguments of its series; its tag says which."""


@dataclass(frozen=True, kw_only=True)
class Bars:
    """Upright bars, or sideways ones, whose sides are on the vertical axis.

    Attributes:
        sides: The left and right side of each bar.
        ends: The lower and upper end of each bar.
        words: Of each bar: in it, or beside its end if it is short; empty for none.
        label: In legends; empty for none.
        colour: A name of `charts.style.COLOURS`.
        opacity: From 0 to 1.
        top_only: Draw the upper end of each bar alone, as a line.
        joined: Each bar begins where the one before ends, and nothing separates them.
        sideways: The bars lie on their sides.
    """

    sides: Points
    ends: Points
    words: tuple[str, ...] = ()
    label: str = ""
    colour: str = "sky"
    opacity: float = 1.0
    top_only: bool = False
    joined: bool = False
    sideways: bool = False


@dataclass(frozen=True)
class Stop:
    """A place of a chart on the page at which a reader is told its values.

    Attributes:
        x: The value on the horizontal axis.
        y: The value on the vertical axis.
        title: The heading.
        lines: The values in words.
        run: The run on the page that it belongs to; None if it belongs to no run.
    """

    x: float
    y: float
    title: str
    lines: tuple[str, ...]
    run: int | None = None


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One pair of axes and everything between them.

    Attributes:
        title: Above the chart.
        x: The horizontal axis.
        y: The vertical axis.
        items: What is drawn, the last on top.
        words: What the chart shows, for those who do not see it.
        legend: Where the legend is: a location of matplotlib's, `outside`, to the right, or
            `above`; empty for none. The page explains its charts in the text below them.
        small: Set in small type, as one picture of many.
        empty: Words in place of a chart that has nothing to show.
        stops: Places with values to be read off; the page reads lines by itself where there is
            none.
    """

    title: str = ""
    x: Axis
    y: Axis
    items: tuple[Series | Bars, ...] = ()
    words: str = ""
    legend: str = ""
    small: bool = False
    empty: str = ""
    stops: tuple[Stop, ...] = ()

    @property
    def series(self) -> tuple[Series, ...]:
        """The series among the items."""
        return tuple(item for item in self.items if isinstance(item, Series))


@dataclass(frozen=True, eq=False)
class Matrix:
    """A confusion matrix.

    Attributes:
        classes: Class names, in the order of rows and columns.
        counts: Rows are true classes, columns predicted ones.
        shades: From 0 to 1: the root of the share of the true class, which shows rare errors too.
    """

    classes: Sequence[str]
    counts: Array
    shades: Array = field(init=False)

    def __post_init__(self) -> None:
        share = self.counts / np.maximum(self.counts.sum(1, keepdims=True), 1)
        object.__setattr__(self, "shades", np.sqrt(share))

    def errors(self, most: int) -> list[tuple[int, str, str]]:
        """The most frequent errors: how many, the true class and the predicted one."""
        errors = self.counts - np.diag(self.counts.diagonal())
        order = np.argsort(-errors, axis=None, kind="stable")[:most]
        pairs = [divmod(int(place), len(self.classes)) for place in order]
        return [
            (int(errors[i, j]), self.classes[i], self.classes[j]) for i, j in pairs if errors[i, j]
        ]

    @property
    def words(self) -> str:
        """The matrix in words, for readers who do not see it."""
        n = int(self.counts.sum())
        share = 100 * self.counts.trace() / max(1, n)
        spoken = "; ".join(f"{n} × {t} taken for {p}" for n, t, p in self.errors(3)) or "none"
        return (
            f"Confusion matrix of {len(self.classes)} classes and {n} images, {share:.1f} % on the "
            f"diagonal. Most frequent errors: {spoken}."
        )


def shortened(name: str, longest: int = 18) -> str:
    """A name that leaves room for the chart."""
    return name if len(name) <= longest else name[: longest - 1] + "…"
