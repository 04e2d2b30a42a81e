"""Test results on the page: confusion matrix, reliability diagram and curves, with numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from sfumato.analysis.classification import Evaluation
from sfumato.charts import svg
from sfumato.charts.chart import Matrix
from sfumato.charts.reliability import reliability as diagram
from sfumato.report.discrimination import charts, of_class
from sfumato.report.markup import Child, Safe, details, element, join, table

MOST_CLASSES = 200
"""Larger confusion matrices are not drawn; their largest errors are listed."""

_LISTED = 20


def confusion(evaluation: Evaluation, key: str) -> tuple[Safe, dict[str, Any]]:
    """The confusion matrix, coloured by the share of the true class, and its values."""
    matrix = Matrix(evaluation.classes, evaluation.confusion)
    count = len(matrix.classes)
    if count > MOST_CLASSES:
        words = f"A matrix of {count} classes is too large to draw; these are its largest errors."
        return join([element("p", {"class": "note"}, words), _largest(matrix)]), {}
    drawing, data = svg.render_matrix(matrix, key=key)
    return join([Safe(drawing), _full(matrix) if count <= _LISTED else _largest(matrix)]), data


def _full(matrix: Matrix) -> Safe:
    rows = [
        [name, *map(str, row)]
        for name, row in zip(matrix.classes, matrix.counts.tolist(), strict=True)
    ]
    summary = "The matrix as a table (rows: true class, columns: predicted)"
    filled = table(["", *matrix.classes], rows, caption="Confusion matrix", classes="numbers")
    return details(summary, filled)


def _largest(matrix: Matrix) -> Safe:
    rows = [[true, predicted, str(n)] for n, true, predicted in matrix.errors(30)]
    summary = f"The {len(rows)} most frequent errors as a table"
    head = ["true class", "predicted", "images"]
    return details(summary, table(head, rows, caption="Most frequent errors", classes="numbers"))


def reliability(evaluation: Evaluation, key: str) -> tuple[Safe, dict[str, Any]]:
    """Accuracy against confidence in bins, with the images in each below."""
    r = evaluation.reliability
    above, below = diagram(r.edges, r.counts, r.accuracy, r.confidence, ece=evaluation.ece)
    drawing, data = svg.render([(above, 190), (below, 52)], key=key, width=400)
    rows = [
        [
            f"{100 * r.edges[k]:.0f}–{100 * r.edges[k + 1]:.0f} %",
            str(int(r.counts[k])),
            f"{100 * r.confidence[k]:.1f} %",
            f"{100 * r.accuracy[k]:.1f} %",
        ]
        for k in np.flatnonzero(r.counts)
    ]
    head = ["confidence", "images", "mean confidence", "accuracy"]
    behind = table(head, rows, caption="Reliability in bins", classes="numbers")
    return join([Safe(drawing), details("The bins as a table", behind)]), data


def curves(evaluation: Evaluation, key: str) -> tuple[list[Safe], dict[str, Any]]:
    """The ROC and the precision-recall curves as panels, and the values of both."""
    panels, data = [], {}
    for chart, name in zip(charts(evaluation), ("roc", "precision"), strict=True):
        title = element("h4", None, chart.title)
        if chart.empty:
            note = element("p", {"class": "note"}, f"This {chart.empty}.")
            panels.append(element("figure", {"class": "panel"}, title, note))
            continue
        drawing, values = svg.render([(chart, 240)], key=f"{key}-{name}", width=400)
        data[f"{key}-{name}"] = values
        panels.append(element("figure", {"class": "panel"}, title, Safe(drawing)))
    return panels, data


def against_the_rest(evaluation: Evaluation) -> Safe:
    """Areas under the curves of each class, with the look of its curves."""
    e = evaluation
    looks = {c.index: index for index, c in enumerate(e.curves)}
    rows: list[list[Child]] = [
        [
            join([Safe(svg.swatch(looks[k])), " ", name]) if k in looks else name,
            *(of_class(e, value, k) for value in ("auroc", "average_precision", "sensitivity")),
        ]
        for k, name in enumerate(e.classes)
    ]
    level = f"sensitivity at specificity {100 * e.specificity:.4g} %"
    head = ["class", "AUROC", "average precision", level]
    caption = "Each class against all others"
    return table(head, rows, caption=caption, classes="numbers sortable classes")
