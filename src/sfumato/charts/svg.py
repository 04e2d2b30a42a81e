"""Charts drawn as SVG for the HTML page, with the values that its script reads off them.

Colours and type come from the page's style sheet, so a chart follows the reader's light or dark
theme and prints on white.
"""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sfumato.charts.chart import SHAPES, SHORT, Axis, Bars, Chart, Matrix, Series, look, shortened
from sfumato.text import printable

Drawing = tuple[str, dict[str, Any]]
"""The SVG element, and its values for the page's script."""

POINTS = 240
"""Points of a line at most; longer ones are thinned."""

_MARKED = 6
_LINE, _MARK = 1.7, 3.0
_DASHES = {"dashed": "6 4", "dotted": "2 4"}
_POLYGONS = dict(
    zip(
        SHAPES[1:],
        (
            (4, 0.5, 1.25, 1), (3, 0, 1.35, 1), (3, 0.5, 1.35, 1), (4, 0, 1.5, 0.4),
            (4, 0.5, 1.5, 0.4), (5, 0, 1.15, 1), (3, 0.75, 1.35, 1), (3, 0.25, 1.35, 1),
            (5, 0, 1.5, 0.4), (6, 0, 1.1, 1), (4, 0, 1.35, 1),
        ),
        strict=True,
    )
)  # fmt: skip
"""Corners, the place of the first in parts of a turn between two, outer and inner radius."""
_NAMED, _NUMBERED, _SHADES = 40, 16, 8


@dataclass(frozen=True)
class _Scale:
    """The positions of an axis's values."""

    axis: Axis
    start: float
    end: float

    def __call__(self, value: float) -> float:
        low, high, value = (
            math.log(v) if self.axis.log else v for v in (self.axis.low, self.axis.high, value)
        )
        share = (value - low) / (high - low) if high != low else 0.5
        return self.start + share * (self.end - self.start)

    def to_list(self) -> list[float]:
        return [self.axis.low, self.axis.high, self.start, self.end, float(self.axis.log)]


def render(plots: Sequence[tuple[Chart, float]], *, key: str, width: float = 340) -> Drawing:
    """Draw charts below each other.

    Args:
        plots: Charts and the heights of their plots; values are read off the first.
        key: Its key in the page's data.
        width: Of the whole drawing, in the units that its text is set in.
    """
    root = _root(plots[0][0].words, key)
    longest = max(len(c.y.text(tick)) for c, _ in plots for tick in c.y.ticks() or [0])
    left, right, top = max(46.0, 14 + 6.8 * longest), width - 18.0, 14.0
    scales = []
    for chart, height in plots:
        foot = top + height
        x, y = _Scale(chart.x, left, right), _Scale(chart.y, foot, top)
        scales.append((x, y))
        _axes(root, x, y)
        for item in chart.items:
            if isinstance(item, Series):
                _series(root, item, x, y)
            else:
                _bars(root, item, x, y)
        _tags(root, chart.series, x, y)
        top = foot + _room(chart.x) + (16 if chart.x.label else 0)
    root.set("viewBox", f"0 0 {width:g} {top:g}")
    return _text_of(root), _readout(plots[0][0], *scales[0], foot=scales[-1][1].start)


def _room(x: Axis) -> float:
    """The height of the labels below a plot."""
    longest = max((len(x.text(tick)) for tick in x.ticks()), default=0)
    return 12 + 6.8 * longest if x.upright else 24 if longest else 20


def _readout(chart: Chart, x: _Scale, y: _Scale, *, foot: float) -> dict[str, Any]:
    if chart.stops:
        return {
            "kind": "stops",
            "across": [y.end, foot] if any(isinstance(i, Bars) for i in chart.items) else None,
            "stops": [
                {"at": [x(s.x), y(s.y)], "title": s.title, "lines": s.lines, "run": s.run}
                for s in chart.stops
            ],
        }
    return {
        "kind": "lines",
        "x": x.to_list(),
        "y": y.to_list(),
        "xName": chart.x.label,
        "percent": chart.y.percent,
        "series": [
            {"run": s.run, "name": s.label, "points": [list(p) for p in thinned(s.points)]}
            for s in chart.series
            if s.label
        ],
    }


def thinned(items: Sequence[Any], most: int = POINTS) -> list[Any]:
    """Some of the items, evenly spaced, the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(k * (len(items) - 1) / (most - 1))] for k in range(most)]


def _axes(root: ET.Element, x: _Scale, y: _Scale) -> None:
    """Grid, tick marks and the name of the horizontal axis; the title names the other."""
    for value in y.axis.ticks():
        at = y(value)
        _add(root, "line", x1=x.start, y1=at, x2=x.end, y2=at, class_="grid")
        _text(root, x.start - 7, at + 4, y.axis.text(value), "tick end")
    for value in x.axis.ticks():
        at = x(value)
        _add(root, "line", x1=at, y1=y.start, x2=at, y2=y.start + 4, class_="axis")
        if x.axis.upright:
            _text(root, at + 4, y.start + 7, x.axis.text(value), "tick end", turn=-90)
        else:
            _text(root, at, y.start + 17, x.axis.text(value), "tick middle")
    _add(root, "line", x1=x.start, y1=y.start, x2=x.end, y2=y.start, class_="axis")
    if x.axis.label:
        foot = y.start + 10 + _room(x.axis)
        _text(root, (x.start + x.end) / 2, foot, x.axis.label, "label middle")


def _series(root: ET.Element, s: Series, x: _Scale, y: _Scale) -> None:
    kind = f"run {s.colour}" + (" hollow" if s.hollow else "")
    group = _add(root, "g", class_=kind, data_run=s.run, opacity=0.35 if s.faint else None)
    at = [(x(a), y(b)) for a, b in thinned(s.points)]
    if s.width and len(at) > 1:
        _line(group, at, s)
    if s.band and s.spans:
        edge = [(x(a), y(low)) for (a, _), (low, _) in zip(s.points, s.spans, strict=True)]
        edge += [(x(a), y(high)) for (a, _), (_, high) in zip(s.points, s.spans, strict=True)][::-1]
        _add(group, "path", d=_path(edge) + "Z", class_="bar", opacity=0.15)
    for (a, _), (low, high) in zip(s.points, () if s.band else s.spans, strict=False):
        _add(group, "line", x1=x(a), y1=y(high), x2=x(a), y2=y(low), class_="whisker")
    if s.marker or len(at) == 1:
        every = max(1, math.ceil(len(at) / _MARKED)) if s.width else 1
        for place in at[every // 2 :: every]:
            _mark(group, s.marker or "circle", *place, _MARK * s.size)


def _line(group: ET.Element, at: Iterable[tuple[float, float]], s: Series) -> None:
    _add(
        group, "path", d=_path(at), class_="line",
        stroke_width=_LINE * s.width, stroke_dasharray=_DASHES.get(s.dash),
    )  # fmt: skip


def _path(at: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in at)


def _mark(group: ET.Element, shape: str, x: float, y: float, size: float) -> None:
    if shape not in _POLYGONS:
        _add(group, "circle", cx=x, cy=y, r=size, class_="mark")
        return
    corners, first, larger, inner = _POLYGONS[shape]
    places = []
    for k in range(2 * corners):
        if k % 2 and inner == 1:
            continue
        turn, radius = math.tau * (k / 2 + first) / corners, size * larger * (inner if k % 2 else 1)
        places.append(f"{x + radius * math.sin(turn):.1f},{y - radius * math.cos(turn):.1f}")
    _add(group, "polygon", points=" ".join(places), class_="mark")


def _bars(root: ET.Element, bars: Bars, x: _Scale, y: _Scale) -> None:
    group = _add(root, "g", class_=f"run {bars.colour}", opacity=bars.opacity)
    across, along = (y, x) if bars.sideways else (x, y)
    gap = 0 if bars.joined else 1
    words = bars.words or ("",) * len(bars.sides)
    for sides, ends, word in zip(bars.sides, bars.ends, words, strict=True):
        (a, b), (low, high) = sorted(map(across, sides)), map(along, ends)
        if bars.top_only:
            low = high
        box = [(a + gap, b - gap), (min(low, high), max(low, high))]
        (left, right), (top, foot) = box[::-1] if bars.sideways else box
        if bars.top_only:
            _add(group, "line", x1=left, y1=top, x2=right, y2=foot, class_="line", stroke_width=2.2)
        else:
            _add(group, "rect", x=left, y=top, width=right - left, height=foot - top, class_="bar")
        if word:
            inside = abs(high - low) > SHORT * abs(along.end - along.start)
            at = ((left + right) / 2, (top + foot) / 2 + 4)
            if not inside:
                at = (right + 4 + 4 * len(word), at[1]) if bars.sideways else (at[0], top - 4)
            _text(group, *at, word, "cell on-dark" if inside else "cell")


def _tags(root: ET.Element, series: Sequence[Series], x: _Scale, y: _Scale) -> None:
    """The words beside points, where they cover neither marks nor other words."""
    places = [(s, x(s.points[0][0]), y(s.points[0][1])) for s in series if s.tag]
    taken = [(a - 8, b - 8, a + 8, b + 8) for _, a, b in places]
    for s, a, b in places:
        wide = 7.5 * len(s.tag)
        room = [
            (left, foot - 11, left + wide, foot + 2)
            for up, foot in (("upper", b - 10), ("lower", b + 20))
            for side, left in (("right", a + 10), ("left", a - 10 - wide))
            if s.corner in ("", f"{up} {side}")
        ]
        inside = [b for b in room if b[0] >= x.start and b[2] <= x.end + 14 and b[1] >= y.end]
        free = [box for box in inside if not any(_overlap(box, other) for other in taken)]
        box = (free or inside or room)[0]
        taken.append(box)
        on_left = box[0] < a
        group = _add(root, "g", class_=f"run {s.colour}", data_run=s.run)
        at = box[2] if on_left else box[0]
        _text(group, at, box[3] - 2, s.tag, "name end" if on_left else "name")


def _overlap(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def swatch(index: int) -> str:
    """A run's line and mark, small."""
    root = ET.Element("svg", {"viewBox": "0 0 30 12", "class": "swatch", "aria-hidden": "true"})
    own = Series(points=(), **look(index))
    group = _add(root, "g", class_=f"run {own.colour}")
    _line(group, [(1, 6), (29, 6)], own)
    _mark(group, own.marker, 15, 6, 4)
    return ET.tostring(root, encoding="unicode", short_empty_elements=False)


def render_matrix(matrix: Matrix, *, key: str) -> Drawing:
    """Draw a confusion matrix: what is right in blue, what is wrong in orange."""
    root = _root(matrix.words, key, "square")
    count, side, top = len(matrix.classes), 400.0, 8.0
    names = [shortened(name, 15) for name in matrix.classes] if count <= _NAMED else []
    longest = max(map(len, names), default=0)
    left = 30 + min(110.0, 7.0 * longest)
    upright = longest > (3 if count <= 10 else 2)
    cell = side / count
    _add(root, "rect", x=left, y=top, width=side, height=side, class_="board")
    shades = np.ceil(matrix.shades * _SHADES).astype(int)
    right = np.eye(count, dtype=bool)
    for where, kind in ((right, "hit"), (~right, "miss")):
        for shade in range(1, _SHADES + 1):
            squares = "".join(
                f"M{left + j * cell:.1f} {top + i * cell:.1f}h{cell:.2f}v{cell:.2f}h{-cell:.2f}z"
                for i, j in np.argwhere((shades == shade) & where)
            )
            if squares:
                _add(root, "path", d=squares, class_=f"{kind}{shade}")
    size = "cell" if cell >= 30 else "cell small"
    for (i, j), value in np.ndenumerate(matrix.counts):
        if value and count <= _NUMBERED:
            dark = " on-dark" if shades[i, j] > _SHADES * 0.62 else ""
            x, y = left + (j + 0.5) * cell, top + (i + 0.5) * cell + 4
            _text(root, x, y, str(value), size + dark)
    size = "tick" if cell >= 14 else "tick small"
    for k, name in enumerate(names):
        middle, foot = (k + 0.5) * cell, top + side
        _text(root, left - 6, top + middle + 4, name, f"{size} end")
        if upright:
            _text(root, left + middle + 4, foot + 7, name, f"{size} end", turn=-90)
        else:
            _text(root, left + middle, foot + 17, name, f"{size} middle")
    height = side + (left + 12 if upright else 46)
    _text(root, left + side / 2, height - 6, "predicted class", "label middle")
    _text(root, 13, top + side / 2, "true class", "label middle", turn=-90)
    root.set("viewBox", f"0 0 {left + side + 8:g} {height:g}")
    data = {
        "kind": "matrix",
        "left": left,
        "top": top,
        "cell": cell,
        "classes": list(matrix.classes),
        "counts": matrix.counts.tolist(),
    }
    return _text_of(root), data


def _root(words: str, key: str, kind: str = "") -> ET.Element:
    root = ET.Element("svg", {"class": f"chart {kind}".strip(), "role": "img"})
    root.attrib |= {"aria-label": printable(words), "data-chart": key, "tabindex": "0"}
    _add(root, "desc").text = printable(words)
    return root


def _text_of(root: ET.Element) -> str:
    _add(root, "g", class_="readout")
    return ET.tostring(root, encoding="unicode", short_empty_elements=False)


def _add(parent: ET.Element, name: str, **attributes: Any) -> ET.Element:
    """Append an element; `stroke_width` becomes `stroke-width`, None leaves an attribute out."""
    written = {
        key.rstrip("_").replace("_", "-"): _short(value)
        for key, value in attributes.items()
        if value is not None
    }
    return ET.SubElement(parent, name, written)


def _short(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def _text(
    parent: ET.Element, x: float, y: float, words: str, kind: str, *, turn: float | None = None
) -> None:
    """Append words at a place, turned by some degrees about it."""
    about = None if turn is None else f"rotate({turn:g} {x:.2f} {y:.2f})"
    _add(parent, "text", x=x, y=y, class_=kind.strip(), transform=about).text = printable(words)
