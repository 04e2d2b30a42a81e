"""A picture of an evaluation: confusion matrix, recall of each class, reliability diagram."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure, SubFigure

from sfumato.analysis.classification import Evaluation
from sfumato.report import style

NUMBERED = 20
"""Confusion matrices up to this many classes have their counts written in."""

_NAMED = 120
"""With more classes than this only some are named, evenly spaced."""


def draw(evaluation: Evaluation, path: str | Path, *, title: str = "") -> None:
    """Draw an evaluation into a PNG file, which is replaced if it exists.

    Args:
        evaluation: What `sfumato.analysis.evaluate` found.
        path: The file.
        title: Above the picture.
    """
    side = min(13.0, max(4.4, 0.42 * len(evaluation.classes)))
    side = side if len(evaluation.classes) <= NUMBERED else max(9.0, min(side, 13.0))
    with style.figure(side + 6.6, side + 1.2, Path(path)) as figure:
        left, right = figure.subfigures(1, 2, width_ratios=[side + 2.2, 4.4])
        matrix, bars = left.subplots(1, 2, sharey=True, width_ratios=[side, 1.6])
        _confusion(matrix, evaluation, side)
        _recall(bars, evaluation)
        _reliability(right, evaluation, side + 1.2)
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")


def _confusion(axes: Axes, evaluation: Evaluation, side: float) -> None:
    """Counts, coloured by the fraction of the true class; rare errors are made visible."""
    confusion, count = evaluation.confusion, len(evaluation.classes)
    share = confusion / np.maximum(confusion.sum(1, keepdims=True), 1)
    axes.imshow(share, cmap=style.SEQUENTIAL, norm=PowerNorm(0.5, 0, 1), aspect="auto")
    axes.set_title("Confusion matrix (colour: share of the true class)")
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    axes.grid(False)
    axes.spines[:].set_visible(False)
    every = math.ceil(count / _NAMED)
    ticks = np.arange(0, count, every)
    names = [style.shortened(evaluation.classes[k]) for k in ticks]
    row = 72 * side / len(ticks)
    size = min(9.0, max(4.5, 0.72 * row))
    upright = max(len(name) for name in names) * size * 0.62 > row
    axes.set_xticks(ticks, names, rotation=90 if upright else 0, fontsize=size)
    axes.set_yticks(ticks, names, fontsize=size)
    axes.tick_params(length=0)
    if count > NUMBERED:
        return
    longest = max(2, len(str(confusion.max())))
    size = min(10.0, 72 * side / count / longest * 1.3)
    for (i, j), value in np.ndenumerate(confusion):
        if value:
            colour = "white" if math.sqrt(share[i, j]) > 0.6 else style.INK
            axes.text(j, i, str(value), ha="center", va="center", color=colour, fontsize=size)


def _recall(axes: Axes, evaluation: Evaluation) -> None:
    """One bar per row of the matrix beside it."""
    count = len(evaluation.classes)
    axes.barh(np.arange(count), np.nan_to_num(evaluation.recall), height=0.8, color=style.BLUE)
    axes.axvline(evaluation.accuracy, color=style.RED, linewidth=1.2, linestyle="--")
    axes.set_title("Recall")
    axes.set_xlabel(
        f"dashed: accuracy {evaluation.accuracy:.1%}".replace("%", " %"), color=style.RED
    )
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.5, 1], ["0", "50", "100 %"])
    axes.tick_params(axis="y", length=0, labelleft=False)
    axes.grid(False, axis="y")
    if count > NUMBERED:
        return
    for row, recall in enumerate(evaluation.recall):
        if math.isnan(recall):
            words, inside = "no images", False
        else:
            words, inside = f"{recall:.0%}".replace("%", " %"), recall > 0.45
        axes.annotate(
            words, (0 if math.isnan(recall) else recall, row), xytext=(-3 if inside else 3, 0),
            textcoords="offset points", ha="right" if inside else "left", va="center",
            fontsize=8, color="white" if inside else style.INK,
        )  # fmt: skip


def _reliability(figure: Figure | SubFigure, evaluation: Evaluation, height: float) -> None:
    """Accuracy against confidence, over how many examples there are of each confidence."""
    r = evaluation.reliability
    spare = max(0.01, height - 5.4)
    axes, counts, rest = figure.subplots(3, 1, height_ratios=[3.4, 1.0, spare])
    rest.set_axis_off()
    counts.sharex(axes)
    width = np.diff(r.edges)
    middle = (r.edges[:-1] + r.edges[1:]) / 2
    filled = r.counts > 0
    low = np.minimum(r.accuracy, r.confidence)[filled]
    gap = np.abs(r.accuracy - r.confidence)[filled]
    axes.bar(middle[filled], r.accuracy[filled], width[filled] * 0.92, color=style.BLUE,
             label="accuracy")  # fmt: skip
    axes.bar(middle[filled], gap, width[filled] * 0.92, bottom=low, color="none",
             edgecolor=style.RED, hatch="////", linewidth=0.8, label="gap to confidence")  # fmt: skip
    axes.plot([0, 1], [0, 1], color=style.GREY, linewidth=1.0, linestyle="--", label="calibrated")
    axes.set_title("Reliability")
    axes.set_ylabel("accuracy")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    style.percent_axis(axes)
    axes.tick_params(axis="x", labelbottom=False)
    axes.legend(loc="upper left")
    axes.text(
        0.97, 0.05, f"ECE {evaluation.ece:.3f}\nBrier {evaluation.brier:.3f}\n"
        f"NLL {evaluation.nll:.3f}", ha="right", va="bottom", linespacing=1.4,
        bbox={"facecolor": "white", "edgecolor": style.LIGHT, "pad": 4},
    )  # fmt: skip
    counts.bar(middle, r.counts / evaluation.n, width * 0.92, color=style.SKY)
    counts.set_xlabel("confidence (largest probability)")
    counts.set_ylabel("images")
    style.percent_axis(counts, x=True)
