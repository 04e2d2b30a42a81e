"""ROC and precision-recall curves of classes against all others, in few enough points to draw."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sfumato.discrimination import Array, Curve, RankedScores

MOST_CURVES = 10
"""Classes whose curves are kept; of more classes these are the ones of lowest AUROC."""

_POINTS = 200


@dataclass(frozen=True, eq=False)
class ClassCurves:
    """The curves of one class against all others, in about 200 points each.

    Attributes:
        index: The class, counted from 0.
        roc: Sensitivity against the false positive rate.
        precision_recall: Precision against recall, down to the first threshold that finds every
            image of the class.
    """

    index: int
    roc: Curve
    precision_recall: Curve


def class_curves(scores: Array, labels: Array, aurocs: Array) -> tuple[ClassCurves, ...]:
    """The curves of at most `MOST_CURVES` classes, in the order of classes.

    Args:
        scores: `(n, classes)`, higher for images that are more likely of the class.
        labels: `(n,)`.
        aurocs: `(classes,)`, of each class; one whose AUROC is NaN has no curves.
    """
    order = np.argsort(aurocs, kind="stable")
    shown = sorted(int(k) for k in order[~np.isnan(aurocs[order])][:MOST_CURVES])
    found = []
    for k in shown:
        ranked = RankedScores.of(scores[:, k], labels == k)
        roc, both = ranked.roc(), _to_full_recall(ranked.precision_recall())
        found.append(ClassCurves(k, _thinned(roc, roc.x + roc.y), _thinned(both, both.x)))
    return tuple(found)


def _to_full_recall(curve: Curve) -> Curve:
    last = int(np.searchsorted(curve.x, 1.0)) + 1
    return Curve(curve.x[:last], curve.y[:last])


def _thinned(curve: Curve, along: Array) -> Curve:
    """Some points of a curve, evenly spaced along values that do not decrease, with both ends."""
    if len(along) <= _POINTS:
        return curve
    wanted = np.linspace(along[0], along[-1], _POINTS)
    kept = np.unique([0, *np.searchsorted(along, wanted), len(along) - 1])
    return Curve(curve.x[kept], curve.y[kept])
