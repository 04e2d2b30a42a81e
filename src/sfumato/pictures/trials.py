"""Accuracy of runs against each of the settings in which they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sfumato.pictures import style

_LOG_FROM = 8.0
"""Positive values that are so many times apart are drawn on a logarithmic scale."""


def draw(
    settings: Sequence[Mapping[str, Any]], accuracies: Sequence[float], path: Path, *, title: str
) -> None:
    """Draw one panel for each setting that differs, into a PNG file, which is replaced.

    Args:
        settings: Of each run, by the same names.
        accuracies: Of each run.
        path: The file.
        title: Over all panels.
    """
    names = [
        n for n in settings[0] if len({repr(s[n]) for s in settings}) > 1
    ] or list(settings[0])[:1]  # fmt: skip
    best = max(range(len(accuracies)), key=accuracies.__getitem__)
    with style.figure(0.6 + 2.9 * len(names), 3.2, path) as made:
        made.suptitle(title, x=0.01, ha="left", fontsize=10, fontweight="bold")
        row = made.subplots(1, len(names), sharey=True, squeeze=False)[0]
        for axes, name in zip(row, names, strict=True):
            values = [s[name] for s in settings]
            numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
            if numbers:
                places = values
                if min(values) > 0 and max(values) >= _LOG_FROM * min(values):
                    axes.set_xscale("log")
            else:
                words = list(dict.fromkeys(map(str, values)))
                places = [words.index(str(v)) for v in values]
                axes.set_xticks(range(len(words)), [style.shortened(w) for w in words])
            axes.plot(places, accuracies, "o", color=style.BLUE, alpha=0.7)
            axes.plot(
                [places[best]], [accuracies[best]], "o", color=style.ORANGE, markersize=11,
                markerfacecolor="none", markeredgewidth=2,
            )  # fmt: skip
            axes.set_xlabel(name)
            style.percent_axis(axes)
        row[0].set_ylabel("accuracy on held-out images")
