"""Evaluation of class probabilities: accuracy, proper scores, calibration, errors by class.

Everything here is a function of probabilities `(n, classes)` and labels `(n,)`; there are no files
and no models.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato.errors import UserError

Array = npt.NDArray[Any]

BINS = 15
"""Bins of the calibration error, as in Guo et al. (2017)."""

SMALLEST = float(np.finfo(np.float32).tiny)
"""Probabilities below the smallest normal float32 count as this in the log-likelihood, so that an
example whose class was given probability 0 costs 87.3 nats and not infinitely many."""

_SUM_TOLERANCE = 1e-3


@dataclass(frozen=True, eq=False)
class Reliability:
    """Confidence against accuracy, in bins of equal width.

    Bin `m` of `M` holds the examples whose largest probability lies in `(m/M, (m+1)/M]`.

    Attributes:
        edges: `(M + 1,)`, from 0 to 1.
        counts: `(M,)`, examples in each bin.
        confidence: `(M,)`, their mean largest probability; NaN for an empty bin.
        accuracy: `(M,)`, the fraction of them predicted correctly; NaN for an empty bin.
    """

    edges: Array
    counts: Array
    confidence: Array
    accuracy: Array

    @property
    def ece(self) -> float:
        """Expected calibration error: |accuracy - confidence|, averaged over examples."""
        filled = self.counts > 0
        gaps = np.abs(self.accuracy[filled] - self.confidence[filled])
        return float((self.counts[filled] * gaps).sum() / self.counts.sum())


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The result of `evaluate`.

    Attributes:
        classes: Class names, in the order of rows and columns.
        n: Number of examples.
        accuracy: Fraction whose largest probability is the true class's.
        top5: Fraction whose true class is among the five (or all, if fewer) most probable.
        nll: Mean negative log-likelihood in nats; see `negative_log_likelihood`.
        brier: Brier score from 0 to 2; see `brier_score`.
        ece: Expected calibration error of the largest probability, in 15 bins.
        reliability: Those bins.
        confusion: `(classes, classes)` counts; rows are true classes, columns predicted ones.
        precision: Per class, of those predicted as it, the fraction that is; NaN if none was.
        recall: Per class, of its examples, the fraction predicted as it; NaN if it has none.
        f1: Per class, the harmonic mean of the two; NaN if it neither occurs nor was predicted.
        support: Per class, its number of examples.
    """

    classes: tuple[str, ...]
    n: int
    accuracy: float
    top5: float
    nll: float
    brier: float
    ece: float
    reliability: Reliability
    confusion: Array
    precision: Array
    recall: Array
    f1: Array
    support: Array

    @property
    def balanced_accuracy(self) -> float:
        """Mean recall of the classes that occur."""
        return float(self.recall[self.support > 0].mean())

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; what is not defined is None."""
        r = self.reliability
        columns = zip(self.classes, self.support, self.precision, self.recall, self.f1, strict=True)
        return {
            "n": self.n,
            "accuracy": self.accuracy,
            "balanced_accuracy": self.balanced_accuracy,
            "top5": self.top5,
            "nll": self.nll,
            "brier": self.brier,
            "ece": self.ece,
            "per_class": [
                {
                    "class": name,
                    "support": int(support),
                    "precision": _plain(precision),
                    "recall": _plain(recall),
                    "f1": _plain(f1),
                }
                for name, support, precision, recall, f1 in columns
            ],
            "confusion": self.confusion.tolist(),
            "reliability": {
                "edges": r.edges.tolist(),
                "counts": r.counts.tolist(),
                "confidence": [_plain(value) for value in r.confidence],
                "accuracy": [_plain(value) for value in r.accuracy],
            },
        }


def evaluate(
    probabilities: npt.ArrayLike, labels: npt.ArrayLike, classes: Sequence[str]
) -> Evaluation:
    """Compare predicted probabilities with the true classes.

    Args:
        probabilities: `(n, classes)`, each row summing to 1.
        labels: `(n,)`, from 0 to the number of classes minus one.
        classes: Their names.

    Raises:
        UserError: If there are no examples, or a probability is NaN or infinite.
        ValueError: If shapes, labels or sums are not as stated.
    """
    p, y = _checked(probabilities, labels)
    count = len(classes)
    if p.shape[1] != count:
        raise ValueError(f"there are {p.shape[1]} probabilities per example but {count} classes")
    predicted = p.argmax(1)
    bins = reliability(p, y)
    confusion = np.bincount(y * count + predicted, minlength=count * count).reshape(count, count)
    right, support, given = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
    return Evaluation(
        classes=tuple(classes),
        n=len(y),
        accuracy=float((predicted == y).mean()),
        top5=float((_rank(p, y) < 5).mean()),
        nll=negative_log_likelihood(p, y),
        brier=brier_score(p, y),
        ece=bins.ece,
        reliability=bins,
        confusion=confusion,
        precision=_ratio(right, given),
        recall=_ratio(right, support),
        f1=_ratio(2 * right, support + given),
        support=support,
    )


def negative_log_likelihood(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Mean of -log p(true class), in nats, with p no smaller than `SMALLEST`."""
    p, y = _checked(probabilities, labels)
    return float(-np.log(np.maximum(p[np.arange(len(y)), y], SMALLEST)).mean())


def brier_score(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Mean over examples of the squared error summed over classes, as Brier (1950) wrote it.

    It lies between 0 and 2. For two classes it is twice the score that looks at one class only;
    libraries that average over classes give this divided by their number.
    """
    p, y = _checked(probabilities, labels)
    squares = np.einsum("ij,ij->i", p, p)
    true = p[np.arange(len(y)), y]
    return float((squares - 2 * true + 1).mean())


def reliability(
    probabilities: npt.ArrayLike, labels: npt.ArrayLike, *, bins: int = BINS
) -> Reliability:
    """Sort examples into bins by their largest probability, and see how many are right in each."""
    if bins < 1:
        raise ValueError(f"bins = {bins}, but at least one is needed")
    p, y = _checked(probabilities, labels)
    confidence = p.max(1)
    bin_of = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    counts = np.bincount(bin_of, minlength=bins)
    return Reliability(
        edges=np.linspace(0, 1, bins + 1),
        counts=counts,
        confidence=_ratio(np.bincount(bin_of, weights=confidence, minlength=bins), counts),
        accuracy=_ratio(np.bincount(bin_of, weights=p.argmax(1) == y, minlength=bins), counts),
    )


def _checked(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> tuple[Array, Array]:
    p, y = np.asarray(probabilities, dtype=np.float64), np.asarray(labels)
    if p.ndim != 2 or y.shape != p.shape[:1]:
        raise ValueError(f"probabilities {p.shape} and labels {y.shape}: want (n, classes), (n,)")
    if not len(y):
        raise UserError("There are no images to evaluate: the part of the data asked for is empty.")
    broken = np.flatnonzero(~np.isfinite(p).all(1))
    if len(broken):
        raise UserError(
            f"The model's probabilities for {len(broken)} of {len(y)} images are not finite "
            f"(the first is image {broken[0]}, counted from 0): either these images hold NaN, or "
            "training diverged and the weights do."
        )
    if y.dtype.kind not in "iu" or y.min() < 0 or y.max() >= p.shape[1]:
        raise ValueError(f"labels must be whole numbers from 0 to {p.shape[1] - 1}")
    if p.min() < 0 or np.abs(p.sum(1) - 1).max() > _SUM_TOLERANCE:
        raise ValueError("each row of probabilities must be non-negative and sum to 1")
    return p, y.astype(np.int64)


def _rank(p: Array, y: Array) -> Array:
    """The number of classes before the true one; of equals the first is first, as in argmax."""
    true = p[np.arange(len(y)), y][:, None]
    earlier = np.arange(p.shape[1])[None] < y[:, None]
    ranks: Array = ((p > true) | ((p == true) & earlier)).sum(1)
    return ranks


def _ratio(part: Array, whole: Array) -> Array:
    quotient: Array = np.divide(part, whole, out=np.full(len(whole), math.nan), where=whole > 0)
    return quotient


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
