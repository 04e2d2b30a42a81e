"""Test results on the page: confusion matrix and reliability diagram, with their numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from sfumato.analysis.classification import Evaluation
from sfumato.charts import svg
from sfumato.charts.chart import Matrix
from sfumato.charts.reliability import reliability as diagram
from sfumato.report.markup import Safe, details, element, join, table

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
