"""Areas under the curves of an evaluation in words, and the charts of these curves."""

from __future__ import annotations

import numpy as np

from sfumato.analysis.classification import Evaluation
from sfumato.charts.chart import Chart
from sfumato.charts.discrimination import NamedCurve, precision_recall, roc
from sfumato.text import NONE, percent

_SHARES = ("accuracy", "balanced_accuracy", "sensitivity", "precision", "recall", "f1")
_FEW = 5


def overall(evaluation: Evaluation, name: str, decimals: int = 2) -> str:
    """A result over all classes with its interval, such as `0.982 [0.971, 0.990]`.

    Args:
        evaluation: The evaluation.
        name: One of `sfumato.analysis.intervals.OVERALL`.
        decimals: Of percentages; areas have three.
    """
    i = evaluation.intervals
    ends = None if i is None else i.overall[name]
    return _with_interval(evaluation.overall(name), ends, name in _SHARES, decimals)


def of_class(evaluation: Evaluation, name: str, index: int) -> str:
    """A result of one class with its interval; `name` is one of `intervals.BY_CLASS`."""
    i = evaluation.intervals
    ends = None if i is None else i.by_class[name][:, index]
    return _with_interval(float(getattr(evaluation, name)[index]), ends, name in _SHARES, 1)


def rows(evaluation: Evaluation) -> list[tuple[str, str]]:
    """Names and values of the results over all classes that curves give."""
    e = evaluation
    level = f"sensitivity at specificity {100 * e.specificity:.4g} %"
    return [
        ("AUROC", overall(e, "auroc")),
        ("average precision", overall(e, "average_precision")),
        (level, overall(e, "sensitivity")),
    ]


def meaning(evaluation: Evaluation) -> str:
    """The classes that results over all classes are about, in words."""
    if len(evaluation.classes) == 2:
        return f"'{evaluation.classes[1]}' against '{evaluation.classes[0]}'"
    return "mean over classes, each against all others"


def notes(evaluation: Evaluation) -> list[str]:
    """Sentences on how intervals were made, and on classes without images."""
    found = [] if evaluation.intervals is None else [f"{evaluation.intervals.words}."]
    absent = evaluation.absent
    if absent:
        few = ", ".join(f"'{name}'" for name in absent[:_FEW])
        more = f" and {len(absent) - _FEW} more" if len(absent) > _FEW else ""
        found.append(f"No image is of {few}{more}: means over classes leave that out.")
    return found


def charts(evaluation: Evaluation) -> tuple[Chart, Chart]:
    """The ROC and the precision-recall curves."""
    e = evaluation
    which = [c.index for c in e.curves]
    known = int((~np.isnan(e.auroc)).sum())
    shown = "" if len(which) == known else f", the {len(which)} classes of lowest AUROC"
    rocs = [NamedCurve(e.classes[c.index], c.roc.x, c.roc.y, e.auroc[c.index]) for c in e.curves]
    both = [
        NamedCurve(
            e.classes[c.index], c.precision_recall.x, c.precision_recall.y,
            e.average_precision[c.index],
        )
        for c in e.curves
    ]  # fmt: skip
    return (
        roc(rocs, title=f"ROC{shown}", specificity=e.specificity),
        precision_recall(both, title=f"Precision and recall{shown}"),
    )


def _with_interval(value: float, ends: object, share: bool, decimals: int) -> str:
    if value != value:
        return NONE
    text = percent(value, decimals) if share else f"{value:.3f}"
    if ends is None or np.isnan(low_high := np.asarray(ends)).any():
        return text
    scale, places = (100, decimals) if share else (1, 3)
    low, high = scale * low_high
    return f"{text} [{low:.{places}f}, {high:.{places}f}]"
