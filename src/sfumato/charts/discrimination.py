"""ROC and precision-recall curves of classes against all others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from sfumato.charts.chart import RULE, Array, Axis, Chart, Points, Series, look, shortened

_QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)
_NONE = "needs images of two classes"


@dataclass(frozen=True, eq=False)
class NamedCurve:
    """A curve of one class.

    Attributes:
        name: Of the class.
        x: `(points,)`, not decreasing.
        y: `(points,)`.
        area: Under it.
    """

    name: str
    x: Array
    y: Array
    area: float


def roc(curves: Sequence[NamedCurve], *, title: str, specificity: float) -> Chart:
    """Sensitivity against the false positive rate; by chance alone it is the dashed diagonal.

    Args:
        curves: One for each class; their areas are AUROCs.
        title: Above the chart.
        specificity: Marked by a line at the false positive rate that it allows.
    """
    allowed = 1 - specificity
    chance = Series(points=((0.0, 0.0), (1.0, 1.0)), colour="grey", dash="dashed", width=0.6)
    mark = Series(
        points=((allowed, 0.0), (allowed, 1.0)),
        tag=f"specificity {100 * specificity:.4g} %",
        **RULE,
    )
    return Chart(
        title=title,
        x=Axis("false positive rate (1 − specificity)", 0.0, 1.0, percent=True, at=_QUARTERS),
        y=Axis("sensitivity", 0.0, 1.0, percent=True, at=_QUARTERS),
        items=(chance, mark, *_series(curves, [_pairs(c.x, c.y) for c in curves])),
        words=f"ROC curves. {_spoken('AUROC', curves)}",
        legend="lower right",
        empty="" if curves else _NONE,
    )


def precision_recall(curves: Sequence[NamedCurve], *, title: str) -> Chart:
    """Precision against recall, in steps, as average precision adds it up.

    Args:
        curves: One for each class; their areas are average precisions.
        title: Above the chart.
    """
    return Chart(
        title=title,
        x=Axis("recall (sensitivity)", 0.0, 1.0, percent=True, at=_QUARTERS),
        y=Axis("precision", 0.0, 1.0, percent=True, at=_QUARTERS),
        items=_series(curves, [_steps(c.x, c.y) for c in curves]),
        words=f"Precision-recall curves. {_spoken('Average precision', curves)}",
        legend="lower left",
        empty="" if curves else _NONE,
    )


def _series(curves: Sequence[NamedCurve], points: Sequence[Points]) -> tuple[Series, ...]:
    return tuple(
        Series(
            points=places, label=curve.name, legend=f"{shortened(curve.name)} ({curve.area:.3f})",
            **look(index),
        )
        for index, (curve, places) in enumerate(zip(curves, points, strict=True))
    )  # fmt: skip


def _pairs(x: Array, y: Array) -> Points:
    return tuple(zip(x.tolist(), y.tolist(), strict=True))


def _steps(x: Array, y: Array) -> Points:
    """The points, each reached along a level line from the x before it."""
    pairs = _pairs(x, y)
    found = list(pairs[:1])
    for (before, _), (after, height) in pairwise(pairs):
        found += [(before, height), (after, height)]
    return tuple(found)


def _spoken(area: str, curves: Sequence[NamedCurve]) -> str:
    told = "; ".join(f"{c.name}: {c.area:.3f}" for c in curves)
    return f"{area} of each class against all others: {told or 'none'}."
