"""Accuracy against privacy: which runs are worth their epsilon."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sfumato.charts import pareto, svg
from sfumato.charts.chart import Series, Stop, look
from sfumato.charts.pareto import Point
from sfumato.privacy.statement import upwards
from sfumato.report.markup import Safe
from sfumato.run import Run
from sfumato.text import percent

_NAMED = 5
"""With more runs than this, points bear numbers instead of names."""


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
        tested: How many test images each was tested on, where that is known; the ends of a point
            are those of the 95 % interval then, and else the accuracy itself.
    """
    found = []
    for index, run in runs:
        accuracy, epsilon = run.accuracy, run.epsilon.get("pld")
        if not run.private or not run.finished or accuracy is None or not epsilon:
            continue
        n = tested.get(index, 0)
        ends = interval(accuracy, n) if n else (accuracy, accuracy)
        found.append(Point(epsilon, run.name, accuracy, *ends, index))
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
    series = [
        Series(
            points=((p.epsilon, p.accuracy),), spans=((p.low, p.high),), width=0, size=2,
            hollow=bool(p.dominated),
            tag=str(p.index + 1) if len(found) > _NAMED else _short(p.name),
            run=p.index, **look(p.index),
        )
        for p in found
    ]  # fmt: skip
    front = tuple((p.epsilon, p.accuracy) for p in found if not p.dominated)
    stairs = [pareto.staircase(front)] if len(front) > 1 else []
    made = pareto.chart([*stairs, *series], baseline=baseline,
                        x_label="ε by PLD (smaller is more private)")  # fmt: skip
    told = (
        f"{p.name}: {100 * p.accuracy:.1f} % at epsilon {upwards(p.epsilon, 3)}"
        + (f", {_standing(p)}" if p.dominated else "")
        for p in found
    )
    words = f"Test accuracy against epsilon. {'; '.join(told)}."
    drawing, data = svg.render(
        [(replace(made, words=words, stops=tuple(map(_stop, found))), 222)], key=key, width=440
    )
    return Safe(drawing), data


def _standing(p: Point) -> str:
    return f"dominated by {p.dominated}" if p.dominated else "on the front"


def _stop(p: Point) -> Stop:
    ends = f" ({percent(p.low)} to {percent(p.high)})" if p.low < p.high else ""
    lines = (f"ε {p.epsilon:.4g}", f"accuracy {percent(p.accuracy)}{ends}", _standing(p))
    return Stop(p.epsilon, p.accuracy, p.name, lines, p.index)


def _short(name: str, longest: int = 22) -> str:
    """The end of a name, in which run folders differ."""
    return name if len(name) <= longest else "…" + name[1 - longest :]
