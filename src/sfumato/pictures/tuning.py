"""Accuracy of runs against each of the settings in which they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from sfumato.pictures import style

_LOG_FROM = 8.0
"""Positive values that are so many times apart are drawn on a logarithmic scale."""
_TICKS = 6
"""Values that are written below such a scale at most."""


def draw(
    settings: Sequence[Mapping[str, Any]], accuracies: Sequence[float], path: Path, *, title: str
) -> None:
    """Draw one panel for each setting that differs, into a PNG file, which is replaced.

    Args:
        settings: Of each run, by name; a run has no place in the panel of one that it lacks.
        accuracies: Of each run.
        path: The file.
        title: Over all panels.
    """
    every = list(dict.fromkeys(name for own in settings for name in own))
    values = {n: [own[n] for own in settings if n in own] for n in every}
    names = [n for n in every if len(set(map(repr, values[n]))) > 1] or every[:1]
    best = max(range(len(accuracies)), key=accuracies.__getitem__)
    with style.figure(0.6 + 2.9 * len(names), 3.2, path) as made:
        made.suptitle(title, x=0.01, ha="left", fontsize=10, fontweight="bold")
        row = made.subplots(1, len(names), sharey=True, squeeze=False)[0]
        for axes, name in zip(row, names, strict=True):
            having = [k for k, own in enumerate(settings) if name in own]
            places = _places(axes, values[name])
            shown = [accuracies[k] for k in having]
            axes.plot(places, shown, "o", color=style.BLUE, alpha=0.7)
            if best in having:
                axes.plot(
                    [places[having.index(best)]], [accuracies[best]], "o", color=style.ORANGE,
                    markersize=11, markerfacecolor="none", markeredgewidth=2,
                )  # fmt: skip
            axes.set_xlabel(name)
            style.percent_axis(axes)
        row[0].set_ylabel("accuracy on held-out images")


def _places(axes: Axes, values: Sequence[Any]) -> list[float]:
    """Where values lie on the axis: numbers as they are, others in the order in which they came."""
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        if min(values) > 0 and max(values) >= _LOG_FROM * min(values):
            axes.set_xscale("log")
            shown = sorted(set(values))
            shown = shown[:: -(-len(shown) // _TICKS)]
            axes.set_xticks(shown, [f"{value:g}" for value in shown])
            axes.xaxis.set_minor_locator(NullLocator())
        return list(values)
    words = list(dict.fromkeys(map(str, values)))
    axes.set_xticks(range(len(words)), [style.shortened(w) for w in words])
    return [float(words.index(str(v))) for v in values]
