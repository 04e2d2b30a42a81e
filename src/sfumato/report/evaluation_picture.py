"""A picture of an evaluation: confusion matrix, recall of each class, reliability, curves."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from sfumato.analysis.classification import Evaluation
from sfumato.charts import png, style
from sfumato.charts.chart import Matrix, shortened
from sfumato.charts.png import NAMED, NUMBERED
from sfumato.charts.reliability import reliability
from sfumato.report.discrimination import charts, overall
from sfumato.text import percent

_ROOM = 1.42
"""The end of the axis of accuracies that leaves room for the legend."""


def draw(evaluation: Evaluation, path: str | Path, *, title: str = "") -> None:
    """Draw an evaluation into a PNG file, which is replaced if it exists.

    Args:
        evaluation: What `sfumato.analysis.evaluate` found.
        path: The file.
        title: Above the picture.
    """
    count = len(evaluation.classes)
    side = max(4.4, 0.42 * count) if count <= NUMBERED else min(13.0, max(9.0, 0.13 * count))
    with style.figure(side + 10.8, side + 1.6, Path(path)) as figure:
        parts: Any = figure.subfigures(1, 3, width_ratios=[side + 2.2, 4.4, 4.2])
        matrix, bars = parts[0].subplots(1, 2, sharey=True, width_ratios=[side, 1.6])
        counts = Matrix(evaluation.classes, evaluation.confusion)
        png.paint_matrix(matrix, counts, side)
        _recall(bars, evaluation)
        spare = max(0.9, side + 1.6 - 5.4)
        above, below, words = parts[1].subplots(3, 1, height_ratios=[3.4, 1.0, spare])
        r = evaluation.reliability
        diagram, sizes = reliability(
            r.edges, r.counts, r.accuracy, r.confidence, ece=evaluation.ece
        )
        png.paint(above, replace(diagram, y=replace(diagram.y, high=_ROOM)))
        png.paint(below, sizes)
        _summary(words, evaluation, counts, lines=int(spare / 0.2))
        for axes, chart in zip(parts[2].subplots(2, 1), charts(evaluation), strict=True):
            png.paint(axes, chart)
        png.headline(figure, title)


def _recall(axes: Axes, evaluation: Evaluation) -> None:
    """One bar per row of the matrix beside it."""
    count, recall = len(evaluation.classes), np.nan_to_num(evaluation.recall)
    if count <= NAMED:
        axes.barh(np.arange(count), recall, height=0.8, color=style.BLUE)
    else:
        edges = np.arange(count + 1) - 0.5
        axes.stairs(recall, edges, orientation="horizontal", fill=True, color=style.BLUE)
    axes.axvline(evaluation.accuracy, color=style.RED, linewidth=1.2, linestyle="--")
    axes.set_title("Recall")
    axes.set_xlabel(f"dashed: accuracy {percent(evaluation.accuracy)}", color=style.RED)
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.5, 1], ["0", "50", "100 %"])
    axes.tick_params(axis="y", length=0, labelleft=False)
    axes.grid(False, axis="y")
    if count > NUMBERED:
        return
    for row, value in enumerate(evaluation.recall):
        inside = value > 0.35
        axes.annotate(
            "no images" if math.isnan(value) else percent(value, 0),
            (0 if inside or math.isnan(value) else value, row), xytext=(3, 0),
            textcoords="offset points", va="center", fontsize=8,
            color="white" if inside else style.INK,
        )  # fmt: skip


def _summary(axes: Axes, evaluation: Evaluation, matrix: Matrix, *, lines: int) -> None:
    """The numbers in words, and the most frequent errors as far as there is room."""
    axes.set_axis_off()
    e = evaluation
    top = f" · top-5 {percent(e.top5)}" if e.tells_top5 else ""
    text = [
        f"{e.n:,} images".replace(",", " ") + f" · accuracy {percent(e.accuracy)}{top}",
        f"AUROC {overall(e, 'auroc')} · AP {overall(e, 'average_precision')}",
        f"negative log-likelihood {e.nll:.3f} · Brier score {e.brier:.3f}",
    ]
    worst = [error for error in matrix.errors(20) if error[0] > 1]
    room = lines - len(text) - 2
    if worst and room >= 3:
        text += ["", "Most frequent errors (true → predicted)"]
        text += [f"{n} × {shortened(t)} → {shortened(p)}" for n, t, p in worst[:room]]
    axes.text(0, 1, "\n".join(text), va="top", linespacing=1.5, transform=axes.transAxes)
