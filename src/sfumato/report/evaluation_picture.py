"""A picture of an evaluation: confusion matrix, recall of each class, reliability, curves."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from sfumato.analysis.classification import Evaluation
from sfumato.charts import png, style
from sfumato.charts.chart import Axis, Bars, Chart, Matrix, Series, shortened
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
        matrix, bars = parts[0].subplots(1, 2, width_ratios=[side, 1.6])
        counts = Matrix(evaluation.classes, evaluation.confusion)
        png.paint_matrix(matrix, counts, side)
        png.paint(bars, recall(evaluation))
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


def recall(evaluation: Evaluation) -> Chart:
    """One bar for each row of the matrix beside it."""
    e, rows = evaluation, np.arange(len(evaluation.classes) + 1) - 0.5
    words = f"dashed: accuracy {percent(e.accuracy)}"
    shown = len(e.classes) if len(e.classes) <= NUMBERED else 0
    bars = Bars(
        sides=tuple(pairwise(rows.tolist())),
        ends=tuple((0.0, value) for value in np.nan_to_num(e.recall).tolist()),
        words=tuple("no images" if math.isnan(v) else percent(v, 0) for v in e.recall[:shown]),
        colour="blue", joined=len(e.classes) > NAMED, sideways=True,
    )  # fmt: skip
    rule = Series(points=tuple((e.accuracy, end) for end in rows[[0, -1]].tolist()),
                  colour="red", dash="dashed")  # fmt: skip
    return Chart(
        title="Recall", items=(bars, rule), words=f"Recall of each class; {words}.",
        x=Axis(words, 0.0, 1.0, at=(0.0, 0.5, 1.0), names=("0", "50", "100 %")),
        y=Axis("", float(rows[-1]), float(rows[0]), at=()),
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
