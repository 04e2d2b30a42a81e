"""Axes for charts drawn as SVG: scales, ticks, frames.

Colours and type come from the page's style sheet, so a chart follows the reader's light or dark
theme and prints on white.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sfumato.report.markup import Child, Safe, element, join

Format = Callable[[float], str]


@dataclass(frozen=True)
class Scale:
    """A straight or logarithmic map from values to positions."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The position of a value."""
        low, high, value = (self._linear(v) for v in (self.low, self.high, value))
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)

    def _linear(self, value: float) -> float:
        return math.log(value) if self.log else value

    def ticks(self, count: int = 5) -> list[float]:
        """Round values within the scale."""
        if self.log:
            return _log_ticks(self.low, self.high)
        step = nice_step((self.high - self.low) / max(1, count))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(k * step, 12) for k in range(first, last + 1)]

    def to_list(self) -> list[float]:
        """For the page's script."""
        return [self.low, self.high, self.start, self.end, float(self.log)]


def nice_step(least: float) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that is no less."""
    if least <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    return next(k * power for k in (1, 2, 2.5, 5, 10) if k * power >= least * (1 - 1e-9))


def _log_ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for wanted in ((1, 2, 3, 5, 8), (1, 2, 5), (1, 3), (1,)):
        found = [k * 10.0**p for p in powers for k in wanted if low <= k * 10.0**p <= high]
        if len(found) <= 6:
            break
    return found


@dataclass(frozen=True)
class Frame:
    """A plot's place within its picture."""

    width: float
    height: float
    left: float = 46
    right: float = 14
    top: float = 12
    bottom: float = 40

    def x(self, low: float, high: float, *, log: bool = False) -> Scale:
        """A horizontal scale over the frame."""
        return Scale(low, high, self.left, self.width - self.right, log)

    def y(self, low: float, high: float) -> Scale:
        """A vertical scale over the frame, upwards."""
        return Scale(low, high, self.height - self.bottom, self.top)


def axes(
    frame: Frame,
    x: Scale,
    y: Scale,
    *,
    x_label: str,
    x_format: Format,
    y_format: Format,
    x_ticks: Sequence[float] | None = None,
    y_ticks: Sequence[float] | None = None,
) -> Safe:
    """Grid, ticks and the name of the horizontal axis; the panel's title names the other."""
    parts: list[Safe] = []
    foot, right = frame.height - frame.bottom, frame.width - frame.right
    for value in y.ticks(4) if y_ticks is None else y_ticks:
        at = y(value)
        parts.append(line(frame.left, at, right, at, "grid"))
        parts.append(text(frame.left - 7, at + 4, y_format(value), "tick end"))
    for value in x.ticks(5) if x_ticks is None else x_ticks:
        at = x(value)
        parts.append(line(at, foot, at, foot + 4, "axis"))
        parts.append(text(at, foot + 17, x_format(value), "tick middle"))
    parts.append(line(frame.left, foot, right, foot, "axis"))
    parts.append(text((frame.left + right) / 2, frame.height - 6, x_label, "label middle"))
    return join(parts)


def picture(
    frame: Frame, children: Iterable[Child], *, label: str, chart: str | None = None, kind: str = ""
) -> Safe:
    """The chart itself.

    Args:
        frame: Its size, in the units that its text is set in.
        children: What it shows.
        label: What it shows in words, for those who do not see it.
        chart: Its key in the page's data, if values are read off it.
        kind: A CSS class.
    """
    attributes: dict[str, Any] = {
        "viewBox": f"0 0 {frame.width:g} {frame.height:g}",
        "class": f"chart {kind}".strip(),
        "role": "img",
        "aria-label": label,
        "data-chart": chart,
        "tabindex": "0" if chart else None,
    }
    return element("svg", attributes, element("desc", None, label), *children)


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Safe:
    """A straight line."""
    ends = {"x1": float(x1), "y1": float(y1), "x2": float(x2), "y2": float(y2)}
    return element("line", {**ends, "class": kind})


def text(x: float, y: float, words: str, kind: str, turn: float = 0) -> Safe:
    """Words at a place, turned by some degrees about it."""
    attributes: dict[str, Any] = {"x": float(x), "y": float(y), "class": kind}
    if turn:
        attributes["transform"] = f"rotate({turn:g} {x:.2f} {y:.2f})"
    return element("text", attributes, words)


def path(points: Iterable[tuple[float, float]], kind: str) -> Safe:
    """A line through points."""
    drawn = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return element("path", {"d": f"M{drawn}", "class": kind})


_SHAPES = ((0, 0.0, 1.0), (4, 0.5, 1.25), (3, 0.0, 1.35), (4, 0.0, 1.35), (3, 0.5, 1.35))
"""Corners, where the first is (in parts of a turn between two), and size beside a circle."""


def marker(shape: int, x: float, y: float, size: float, kind: str) -> Safe:
    """One of five shapes, so that runs differ in more than colour."""
    corners, first, larger = _SHAPES[shape % len(_SHAPES)]
    if not corners:
        return element("circle", {"cx": float(x), "cy": float(y), "r": size, "class": kind})
    turns = [math.tau * (k + first) / corners for k in range(corners)]
    radius = size * larger
    points = (f"{x + radius * math.sin(t):.1f},{y - radius * math.cos(t):.1f}" for t in turns)
    return element("polygon", {"points": " ".join(points), "class": kind})


def percent(value: float) -> str:
    """A tick of a share."""
    return f"{100 * value:g} %"


def plain(value: float) -> str:
    """A tick of a number, with thin spaces between thousands."""
    return f"{value:,.10g}".replace(",", "\u202f")
