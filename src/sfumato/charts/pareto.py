"""Accuracy against epsilon: the axes, and the front of what is reached at each epsilon."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from sfumato.charts.chart import RULE, Axis, Chart, Points, Series, value_axis

_LOG_FROM = 6.0
"""Epsilons that are so many times apart are drawn on a logarithmic scale."""


@dataclass(frozen=True)
class Point:
    """An accuracy that is reached at an epsilon.

    Attributes:
        epsilon: The epsilon.
        name: The run or the network.
        accuracy: The accuracy.
        low: The lower end of its interval, or of its seeds.
        high: The upper end.
        index: The place of the run on the page.
        dominated: The name of a run that is no worse in both and better in one; empty if none is.
    """

    epsilon: float
    name: str
    accuracy: float
    low: float
    high: float
    index: int = 0
    dominated: str = ""


def chart(
    series: Sequence[Series],
    *,
    x_label: str,
    ticks: tuple[float, ...] | None = None,
    baseline: float | None = None,
) -> Chart:
    """Accuracy, with the intervals it lies in, against epsilon.

    Args:
        series: Pairs of epsilon and accuracy, at least one.
        x_label: The name of the horizontal axis.
        ticks: Epsilons at the tick marks, from end to end; None to choose them.
        baseline: The best accuracy without privacy, drawn as a line.
    """
    epsilons = ticks or [e for s in series for e, _ in s.points]
    low, high = min(epsilons), max(epsilons)
    if high > _LOG_FROM * low:
        room = 1.1 if ticks else 1.5
        x = Axis(x_label, low / room, high * room, log=True, at=ticks)
    else:
        x = Axis(x_label, max(0.0, low - 0.5 * high), 1.2 * high, at=ticks)
    heights = [end for s in series for pair in s.spans for end in pair]
    heights += [accuracy for s in series for _, accuracy in s.points]
    rule = []
    if baseline is not None:
        heights.append(baseline)
        ends = ((x.low, baseline), (x.high, baseline))
        look = RULE | {"colour": "grey", "tag": f"without privacy {100 * baseline:.1f} %"}
        rule = [Series(points=ends, **look)]
    y = value_axis("test accuracy", heights, percent=True, zero=False)
    return Chart(x=x, y=y, items=(*rule, *series))


def staircase(points: Points) -> Series:
    """The accuracy that is reached at each epsilon: flat up to the next point of the front."""
    front = sorted(points)
    joined = [p for (x, y), (after, _) in pairwise(front) for p in ((x, y), (after, y))]
    return Series(points=(*joined, front[-1]), colour="grey", dash="dashed", width=0.9)
