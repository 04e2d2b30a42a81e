"""A picture of an evaluation: confusion matrix, recall of each class, reliability diagram."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm

from sfumato.analysis.classification import Evaluation
from sfumato.pictures import style

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
    count = len(evaluation.classes)
    side = max(4.4, 0.42 * count) if count <= NUMBERED else min(13.0, max(9.0, 0.13 * count))
    with style.figure(side + 6.6, side + 1.6, Path(path)) as figure:
        parts: Any = figure.subfigures(1, 2, width_ratios=[side + 2.2, 4.4])
        matrix, bars = parts[0].subplots(1, 2, sharey=True, width_ratios=[side, 1.6])
        _confusion(matrix, evaluation, side)
        _recall(bars, evaluation)
        spare = max(0.9, side + 1.6 - 5.4)
        axes, counts, words = parts[1].subplots(3, 1, height_ratios=[3.4, 1.0, spare])
        _reliability(axes, counts, evaluation)
        _summary(words, evaluation, lines=int(spare / 0.2))
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")


def _confusion(axes: Axes, evaluation: Evaluation, side: float) -> None:
    """Counts, coloured by the fraction of the true class; rare errors are made visible."""
    confusion, count = evaluation.confusion, len(evaluation.classes)
    share = confusion / np.maximum(confusion.sum(1, keepdims=True), 1)
    axes.imshow(share, cmap=style.SEQUENTIAL, norm=PowerNorm(0.5, 0, 1), aspect="auto")
    axes.set_title("Confusion matrix")
    axes.set_xlabel("predicted class (colour: share of the true class)")
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
    count, recall = len(evaluation.classes), np.nan_to_num(evaluation.recall)
    if count <= _NAMED:
        axes.barh(np.arange(count), recall, height=0.8, color=style.BLUE)
    else:
        edges = np.arange(count + 1) - 0.5
        axes.stairs(recall, edges, orientation="horizontal", fill=True, color=style.BLUE)
    axes.axvline(evaluation.accuracy, color=style.RED, linewidth=1.2, linestyle="--")
    axes.set_title("Recall")
    axes.set_xlabel(f"dashed: accuracy {style.percent(evaluation.accuracy)}", color=style.RED)
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.5, 1], ["0", "50", "100 %"])
    axes.tick_params(axis="y", length=0, labelleft=False)
    axes.grid(False, axis="y")
    if count > NUMBERED:
        return
    for row, value in enumerate(evaluation.recall):
        inside = value > 0.35
        axes.annotate(
            "no images" if math.isnan(value) else style.percent(value, 0),
            (0 if inside or math.isnan(value) else value, row), xytext=(3, 0),
            textcoords="offset points", va="center", fontsize=8,
            color="white" if inside else style.INK,
        )  # fmt: skip


def _reliability(axes: Axes, counts: Axes, evaluation: Evaluation) -> None:
    """Accuracy against confidence, over how many examples there are of each confidence.

    A bar that ends below its mark was too sure of itself, one that ends above it not sure enough.
    """
    r = evaluation.reliability
    filled = r.counts > 0
    middle, width = ((r.edges[:-1] + r.edges[1:]) / 2)[filled], (0.92 * np.diff(r.edges))[filled]
    accuracy, confidence = r.accuracy[filled], r.confidence[filled]
    axes.bar(middle, accuracy, width, color=style.SKY, label="accuracy")
    axes.hlines(
        confidence, middle - width / 2, middle + width / 2, color=style.INK, linewidth=2.0,
        label="mean confidence",
    )  # fmt: skip
    axes.plot([0, 1], [0, 1], color=style.GREY, linewidth=0.8, linestyle="--")
    axes.set_title(f"Reliability (ECE {evaluation.ece:.3f})")
    axes.set_ylabel("accuracy")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    style.percent_axis(axes)
    axes.tick_params(axis="x", labelbottom=False)
    axes.legend(loc="upper left", frameon=True, framealpha=0.9, edgecolor="none")
    counts.sharex(axes)
    counts.bar(middle, r.counts[filled] / evaluation.n, width, color=style.GREY)
    counts.set_xlabel("confidence (largest probability)")
    counts.set_ylabel("images")
    style.percent_axis(counts, x=True)


def _summary(axes: Axes, evaluation: Evaluation, *, lines: int) -> None:
    """The numbers in words, and the most frequent errors as far as there is room."""
    axes.set_axis_off()
    e = evaluation
    top = "" if len(e.classes) <= 5 else f" · top-5 {style.percent(e.top5)}"
    text = [
        f"{e.n:,} images".replace(",", " ") + f" · accuracy {style.percent(e.accuracy)}{top}",
        f"negative log-likelihood {e.nll:.3f} · Brier score {e.brier:.3f}",
    ]
    errors = e.confusion - np.diag(e.confusion.diagonal())
    worst = [k for k in np.argsort(-errors, axis=None, kind="stable")[:20] if errors.flat[k] > 1]
    room = lines - len(text) - 2
    if worst and room >= 3:
        text += ["", "Most frequent errors (true → predicted)"]
    for k in worst[: max(0, room) if room >= 3 else 0]:
        true, predicted = divmod(int(k), len(e.classes))
        names = f"{style.shortened(e.classes[true])} → {style.shortened(e.classes[predicted])}"
        text.append(f"{errors.flat[k]} × {names}")
    axes.text(0, 1, "\n".join(text), va="top", linespacing=1.5, transform=axes.transAxes)
