"""Accuracy against privacy: which runs are worth their epsilon."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sfumato.privacy.statement import upwards
from sfumato.report import svg
from sfumato.report.learning import style_of
from sfumato.report.markup import Safe, element
from sfumato.run import Run

_NAMED = 5
"""With more runs than this, points bear numbers instead of names."""


@dataclass(frozen=True)
class Point:
    """A finished private run in the plane of epsilon and accuracy.

    Attributes:
        index: Of the run on the page.
        name: Of the run.
        epsilon: Spent, by PLD.
        accuracy: On the test set.
        low: The lower end of its 95 % interval; the accuracy itself if nobody knows how many test
            images there were.
        high: The upper end.
        dominated: The name of a run that is no worse in both and better in one; empty if none is.
    """

    index: int
    name: str
    epsilon: float
    accuracy: float
    low: float
    high: float
    dominated: str = ""


def interval(accuracy: float, n: int) -> tuple[float, float]:
    """The 95 % interval of an accuracy on `n` images by Wilson (1927), which has a width at 100 %.

    Args:
        accuracy: From 0 to 1.
        n: How many images, at least 1.
    """
    z = 1.96
    centre = accuracy + z * z / (2 * n)
    half = z * math.sqrt(accuracy * (1 - accuracy) / n + (z / (2 * n)) ** 2)
    low, high = ((centre + sign * half) / (1 + z * z / n) for sign in (-1, 1))
    return max(0.0, min(low, accuracy)), min(1.0, max(high, accuracy))


def points(runs: Sequence[tuple[int, Run]], tested: Mapping[int, int]) -> list[Point]:
    """The points of runs on one task.

    Args:
        runs: Runs with their place on the page.
        tested: How many test images each was tested on, where that is known.
    """
    found = []
    for index, run in runs:
        accuracy, epsilon = run.accuracy, run.epsilon.get("pld")
        if not run.private or not run.finished or accuracy is None or not epsilon:
            continue
        n = tested.get(index, 0)
        ends = interval(accuracy, n) if n else (accuracy, accuracy)
        found.append(Point(index, run.name, epsilon, accuracy, *ends))
    return [replace(p, dominated=_better(p, found)) for p in found]


def _better(point: Point, others: Sequence[Point]) -> str:
    for other in others:
        no_worse = other.epsilon <= point.epsilon and other.accuracy >= point.accuracy
        same = (other.epsilon, other.accuracy) == (point.epsilon, point.accuracy)
        if no_worse and not same:
            return other.name
    return ""


def chart(found: Sequence[Point], *, key: str, baseline: float | None) -> tuple[Safe, Any]:
    """The front through the points, and the values that the page's script reads off it.

    Args:
        found: At least one point.
        key: The chart's key in the page's data.
        baseline: The best accuracy without privacy, if such a run is shown too.
    """
    frame = svg.Frame(440, 280, left=52, right=20, top=18)
    smallest, largest = min(p.epsilon for p in found), max(p.epsilon for p in found)
    log = largest / smallest > 6
    if log:
        across = frame.x(smallest / 1.5, largest * 1.5, log=True)
    else:
        across = frame.x(max(0.0, smallest - 0.5 * largest), largest * 1.2)
    heights = [end for p in found for end in (p.low, p.high)]
    heights += [] if baseline is None else [baseline]
    low, high = min(heights), max(heights)
    room = max(0.01, 0.12 * (high - low))
    step = svg.nice_step((high - low + 2 * room) / 5)
    up = frame.y(
        max(0.0, math.floor((low - room) / step) * step),
        min(1.0, math.ceil((high + room) / step) * step),
    )
    parts = [
        svg.axes(
            frame, across, up, x_label="ε by PLD (smaller is more private)",
            x_format=svg.plain, y_format=svg.percent,
        )
    ]  # fmt: skip
    if baseline is not None:
        at = up(baseline)
        parts.append(svg.line(frame.left, at, frame.width - frame.right, at, "baseline"))
        words = f"without privacy {100 * baseline:.1f} %"
        parts.append(svg.text(frame.left + 6, at - 5, words, "tick"))
    front = sorted((p for p in found if not p.dominated), key=lambda p: p.epsilon)
    if len(front) > 1:
        parts.append(svg.path(_stairs(front, across, up), "front"))
    parts += _marks(found, across, up, frame)
    parts.append(element("g", {"class": "readout"}))
    worded = (
        f"{p.name}: {100 * p.accuracy:.1f} % at epsilon {upwards(p.epsilon, 3)}"
        + (f", dominated by {p.dominated}" if p.dominated else "")
        for p in found
    )
    label = f"Test accuracy against epsilon. {'; '.join(worded)}."
    data = {
        "kind": "points",
        "x": across.to_list(),
        "y": up.to_list(),
        "points": [
            {
                "run": p.index,
                "name": p.name,
                "at": [p.epsilon, p.accuracy],
                "words": f"dominated by {p.dominated}" if p.dominated else "on the front",
                "interval": [p.low, p.high] if p.low < p.high else None,
            }
            for p in found
        ],
    }
    return svg.picture(frame, parts, label=label, chart=key, kind="wide"), data


def _stairs(front: Sequence[Point], across: svg.Scale, up: svg.Scale) -> list[tuple[float, float]]:
    """What is reached at each epsilon: flat up to the next run of the front."""
    drawn: list[tuple[float, float]] = []
    for p in front:
        x, y = across(p.epsilon), up(p.accuracy)
        if drawn:
            drawn.append((x, drawn[-1][1]))
        drawn.append((x, y))
    return drawn


def _marks(
    found: Sequence[Point], across: svg.Scale, up: svg.Scale, frame: svg.Frame
) -> list[Safe]:
    """A mark for each point, and its name where it covers neither marks nor other names."""
    places = [(across(p.epsilon), up(p.accuracy)) for p in found]
    taken = [(x - 8, y - 8, x + 8, y + 8) for x, y in places]
    drawn = []
    for p, (x, y) in zip(found, places, strict=True):
        inner = []
        if p.low < p.high:
            inner.append(svg.line(x, up(p.high), x, up(p.low), "whisker"))
        inner.append(svg.marker(p.index, x, y, 6, "mark"))
        words = str(p.index + 1) if len(found) > _NAMED else _short(p.name)
        wide = 7.5 * len(words)
        room = [
            (left, foot - 11, left + wide, foot + 2)
            for foot in (y - 10, y + 20)
            for left in (x + 10, x - 10 - wide)
        ]
        inside = [box for box in room if box[0] >= frame.left and box[2] <= frame.width]
        free = [box for box in inside if not any(_overlap(box, other) for other in taken)]
        box = (free or inside or room)[0]
        taken.append(box)
        on_left = box[0] < x
        at = box[2] if on_left else box[0]
        inner.append(svg.text(at, box[3] - 2, words, "name end" if on_left else "name"))
        look = style_of(p.index) + (" hollow" if p.dominated else "")
        drawn.append(element("g", {"class": look, "data-run": p.index}, *inner))
    return drawn


def _overlap(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _short(name: str, longest: int = 22) -> str:
    return name if len(name) <= longest else "…" + name[1 - longest :]
