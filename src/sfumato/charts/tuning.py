"""Accuracy of runs against each of the settings in which they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sfumato.charts import png
from sfumato.charts.chart import Axis, Chart, Series, shortened, value_axis

_LOG_FROM = 8.0
"""Positive values that are so many times apart are drawn on a logarithmic scale."""
_TICKS = 6
"""Values that are written below such a scale at most."""


def draw(
    settings: Sequence[Mapping[str, Any]], accuracies: Sequence[float], path: Path, *, title: str
) -> None:
    """Draw one chart for each setting that differs, into a PNG file, which is replaced.

    Args:
        settings: Of each run, by name; a run has no place in the chart of one that it lacks.
        accuracies: Of each run.
        path: The file.
        title: Over all charts.
    """
    every = list(dict.fromkeys(name for own in settings for name in own))
    values = {n: [own[n] for own in settings if n in own] for n in every}
    names = [n for n in every if len(set(map(repr, values[n]))) > 1] or every[:1]
    best = max(accuracies)
    y = value_axis("accuracy on held-out images", accuracies, percent=True, zero=False)
    row = []
    for name in names:
        x, places = axis(name, values[name])
        having = [a for own, a in zip(settings, accuracies, strict=True) if name in own]
        points = tuple(zip(places, having, strict=True))
        ring = tuple(point for point in points if point[1] == best)[:1]
        items = (
            Series(points=points, marker="circle", width=0, size=1.3),
            Series(points=ring, marker="circle", width=0, size=2.4, hollow=True, colour="orange"),
        )
        row.append(Chart(x=x, y=y, items=items[::-1]))
    png.draw([row], path, width=0.6 + 2.9 * len(names), height=3.2, title=title)


def axis(name: str, values: Sequence[Any]) -> tuple[Axis, list[float]]:
    """The axis of a setting, and the places of its values: numbers as they are, words in order."""
    if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        words = list(dict.fromkeys(map(str, values)))
        at = tuple(float(k) for k in range(len(words)))
        shown = tuple(shortened(word) for word in words)
        ends = (-0.4, len(words) - 0.6)
        return Axis(name, *ends, at=at, names=shown), [float(words.index(str(v))) for v in values]
    if min(values) > 0 and max(values) >= _LOG_FROM * min(values):
        ticks = sorted(set(values))
        ticks = ticks[:: -(-len(ticks) // _TICKS)]
        room = (max(values) / min(values)) ** 0.08
        ends = (min(values) / room, max(values) * room)
        return Axis(name, *ends, log=True, at=tuple(ticks)), list(values)
    return value_axis(name, values, zero=False), list(values)
