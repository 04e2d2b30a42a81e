"""Discrimination of one class from all others by a score: ROC and precision-recall, their areas.

Images of equal score cross a threshold together, so that ties count as in scikit-learn. Images may
have weights, and many sets of weights are computed at once: resamples of the images are such sets
(`sfumato.analysis.bootstrap`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato.errors import UserError

Array = npt.NDArray[Any]

SPECIFICITY = 0.95
"""The specificity at which sensitivities are stated unless another is given."""

_EXACT = 1e-9
"""Relative tolerance of the comparison with a specificity: 0.55 of 100 images are 55 of them."""


@dataclass(frozen=True, eq=False)
class Curve:
    """A curve of points, one for each threshold, from the strictest to the loosest.

    Attributes:
        x: `(points,)`, not decreasing.
        y: `(points,)`.
    """

    x: Array
    y: Array


@dataclass(frozen=True, eq=False)
class Counts:
    """Weights of images above thresholds, for many sets of weights at once.

    There is a threshold below each score that a positive image has; at others nothing but the
    false positives changes, which `before` tells.

    Attributes:
        gained: `(thresholds, sets)`, positive images of exactly this score.
        true: `(thresholds, sets)`, positive images of this score or a higher one.
        false: `(thresholds, sets)`, negative images of this score or a higher one.
        before: `(thresholds, sets)`, negative images of a higher score.
        positives: `(sets,)`, all positive images.
        negatives: `(sets,)`, all negative images.
    """

    gained: Array
    true: Array
    false: Array
    before: Array
    positives: Array
    negatives: Array

    def auroc(self) -> Array:
        """Area under the ROC curve, `(sets,)`; NaN without positive or negative images.

        It is the probability that a positive image has a higher score than a negative one, where
        equal scores count half.
        """
        below = self.negatives - (self.false + self.before) / 2
        return ratio((self.gained * below).sum(0), self.positives * self.negatives)

    def average_precision(self) -> Array:
        """Mean precision over the positive images, `(sets,)`; NaN without any.

        The precision is that of the threshold just below each image's score: the area under the
        precision-recall curve in steps, without interpolation.
        """
        precision = self.true / np.maximum(self.true + self.false, 1e-300)
        return ratio((self.gained * precision).sum(0), self.positives)

    def sensitivity_at(self, specificity: float) -> Array:
        """The highest sensitivity at a specificity of at least this, `(sets,)`.

        It is NaN without positive or negative images, and 0 if no threshold has this specificity
        and a true positive.
        """
        check_specificity(specificity)
        kept = (self.negatives - self.false) >= self.negatives * (specificity - _EXACT)
        both = self.positives * (self.negatives > 0)
        return ratio((self.gained * kept).sum(0), both)


@dataclass(frozen=True, eq=False)
class RankedScores:
    """Images in the order of their scores, the highest first.

    Attributes:
        order: `(n,)`, positions of the images.
        positive: `(n,)`, whether each is of the class, in this order.
        ends: `(scores,)`, the number of images down to each different score.
    """

    order: Array
    positive: Array
    ends: Array

    @classmethod
    def of(cls, scores: npt.ArrayLike, positive: npt.ArrayLike) -> RankedScores:
        """Sort images by their scores.

        Args:
            scores: `(n,)`, higher for images that are more likely of the class.
            positive: `(n,)`, whether each is of the class.

        Raises:
            ValueError: If shapes differ, there are no images or a score is NaN.
        """
        s, known = np.asarray(scores), np.asarray(positive, dtype=bool)
        if s.ndim != 1 or s.shape != known.shape or not len(s):
            raise ValueError(f"scores {s.shape} and positive {known.shape}: want (n,) and (n,)")
        if np.isnan(s).any():
            raise ValueError("a score is NaN")
        order = np.argsort(s, kind="stable")[::-1]
        falling = s[order]
        ends = np.append(np.flatnonzero(falling[1:] != falling[:-1]) + 1, len(s))
        return cls(order, known[order], ends)

    def counts(self, weights: Array | None = None) -> Counts:
        """Images above each threshold.

        Args:
            weights: `(n, sets)`, weights of the images, in the order that they were given in; one
                set of ones if None.
        """
        n = len(self.order)
        w = np.ones((n, 1)) if weights is None else np.take(weights, self.order, axis=0)
        above = np.zeros((n + 1, w.shape[1]))
        np.cumsum(w, axis=0, out=above[1:])
        places = np.flatnonzero(self.positive)
        if not len(places):
            none = np.zeros((0, w.shape[1]))
            return Counts(none, none, none, none, np.zeros(w.shape[1]), above[-1])
        score = np.searchsorted(self.ends, places, side="right")
        first = np.flatnonzero(np.diff(score, prepend=-1))
        gained = np.add.reduceat(w[places], first, axis=0, dtype=np.float64)
        true = np.cumsum(gained, axis=0)
        starts = np.append(0, self.ends)[score[first]]
        return Counts(
            gained=gained,
            true=true,
            false=above[self.ends[score[first]]] - true,
            before=above[starts] - (true - gained),
            positives=true[-1],
            negatives=above[-1] - true[-1],
        )

    def roc(self) -> Curve:
        """The ROC curve: sensitivity against the false positive rate, from (0, 0) to (1, 1)."""
        true, false = self._above()
        return Curve(_share(false, false[-1]), _share(true, true[-1]))

    def precision_recall(self) -> Curve:
        """Precision against recall, from recall 0, where the precision is 1 by convention."""
        true, false = self._above()
        precision = np.append(1.0, true[1:] / (true + false)[1:])
        return Curve(_share(true, true[-1]), precision)

    def _above(self) -> tuple[Array, Array]:
        """Positive and negative images above each threshold, first above all scores."""
        true = np.append(0, np.cumsum(self.positive)[self.ends - 1])
        return true, np.append(0, self.ends) - true


def check_specificity(specificity: float) -> None:
    """Refuse a specificity that is not between 0 and 1.

    Raises:
        UserError: If it is not.
    """
    if not 0 < specificity <= 1:
        raise UserError(
            f"A specificity of {specificity:g} is impossible: give a number above 0 and at most 1, "
            "such as 0.95."
        )


def log_odds(logits: npt.ArrayLike) -> Array:
    """The log-odds of each class against all others, `(n, classes)`, in float64.

    They order images as probabilities do, but where probabilities round to 1 and images that a
    confident model tells apart would be tied, these differ.

    Args:
        logits: `(n, classes)`.
    """
    z: Array = np.asarray(logits, dtype=np.float64)
    if z.shape[1] == 1:
        return np.full(z.shape, math.inf)
    rows, best = np.arange(len(z)), z.argmax(1)
    top = z[rows, best]
    others = z.copy()
    others[rows, best] = -np.inf
    second = others.max(1)
    powers = np.exp(others - top[:, None])
    odds: Array = z - top[:, None] - np.log1p(powers.sum(1, keepdims=True) - powers)
    odds[rows, best] = top - second - np.log(np.exp(others - second[:, None]).sum(1))
    return odds


def auroc(scores: npt.ArrayLike, positive: npt.ArrayLike) -> float:
    """Area under the ROC curve of scores `(n,)`; NaN if all or no images are positive."""
    return float(RankedScores.of(scores, positive).counts().auroc()[0])


def average_precision(scores: npt.ArrayLike, positive: npt.ArrayLike) -> float:
    """Mean precision over the positive images of scores `(n,)`; NaN if there are none."""
    return float(RankedScores.of(scores, positive).counts().average_precision()[0])


def sensitivity_at(scores: npt.ArrayLike, positive: npt.ArrayLike, *, specificity: float) -> float:
    """The highest sensitivity of scores `(n,)` at a specificity of at least this."""
    return float(RankedScores.of(scores, positive).counts().sensitivity_at(specificity)[0])


def ratio(part: Array, whole: Array) -> Array:
    """Quotients; NaN where the whole is zero."""
    out = np.full(np.broadcast_shapes(part.shape, whole.shape), math.nan)
    quotient: Array = np.divide(part, whole, out=out, where=whole > 0)
    return quotient


def over_classes(values: Array) -> Array:
    """One number for all classes, from values `(..., classes)` of each against the rest.

    Of two classes it is the second's, which is the positive one as in scikit-learn; of more the
    mean over the classes for which there is a value. NaN if there is none.
    """
    if values.shape[-1] == 2:
        second: Array = values[..., 1]
        return second
    return mean_of_defined(values)


def mean_of_defined(values: Array) -> Array:
    """Mean over the last axis of the values that are not NaN; NaN if all are."""
    defined = ~np.isnan(values)
    return ratio(np.where(defined, values, 0.0).sum(-1), defined.sum(-1))


def _share(part: Array, whole: float) -> Array:
    quotient: Array = part / whole if whole else np.full(len(part), math.nan)
    return quotient
