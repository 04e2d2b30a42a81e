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
    settings: Sequence[Mapping[str, Any]],
    accuracies: Sequence[float],
    path: Path,
    *,
    title: str,
    pruned: Sequence[bool] = (),
) -> None:
    """Draw one chart for each setting that differs, into a PNG file, which is replaced.

    Args:
        settings: Of each run, by name; a run has no place in the chart of one that it lacks.
        accuracies: Of each run.
        path: The file.
        title: Over all charts.
        pruned: True for each run that was stopped early; empty if none was.
    """
    early = pruned or [False] * len(settings)
    every = list(dict.fromkeys(name for own in settings for name in own))
    values = {n: [own[n] for own in settings if n in own] for n in every}
    names = [n for n in every if len(set(map(repr, values[n]))) > 1] or every[:1]
    best = max((a for a, cut in zip(accuracies, early, strict=True) if not cut), default=None)
    y = value_axis("accuracy on held-out images", accuracies, percent=True, zero=False)
    row: list[Chart] = []
    for name in names:
        x, places = axis(name, values[name])
        runs = zip(settings, accuracies, early, strict=True)
        having = [(a, cut) for own, a, cut in runs if name in own]
        points = [(at, a, cut) for at, (a, cut) in zip(places, having, strict=True)]
        ended = tuple((at, a) for at, a, cut in points if not cut)
        stopped = tuple((at, a) for at, a, cut in points if cut)
        ring = tuple(point for point in ended if point[1] == best)[:1]
        label = "to the end" if any(early) else ""
        items = [
            Series(points=ring, marker="circle", width=0, size=2.4, hollow=True, colour="orange"),
            Series(points=ended, marker="circle", width=0, size=1.3, label=label),
        ]
        if stopped:
            look: Any = {"marker": "cross", "width": 0, "size": 1.6, "colour": "red"}
            items.append(Series(points=stopped, label="pruned", **look))
        key = "best" if any(early) and not row else ""
        row.append(Chart(x=x, y=y, items=tuple(items), legend=key))
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
        ticks = _apart(sorted(set(values)))
        room = (max(values) / min(values)) ** 0.08
        ends = (min(values) / room, max(values) * room)
        return Axis(name, *ends, log=True, at=tuple(ticks)), list(values)
    return value_axis(name, values, zero=False), list(values)


def _apart(values: Sequence[float]) -> list[float]:
    """Values of a logarithmic scale that are so far apart that their names do not touch."""
    least = (values[-1] / values[0]) ** (1 / _TICKS)
    kept = [values[0]]
    for value in values[1:]:
        if value >= kept[-1] * least:
            kept.append(value)
    return kept
