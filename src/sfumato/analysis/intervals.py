"""Confidence intervals of the results of a classifier, by the bootstrap over units."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sfumato.analysis.bootstrap import percentile_interval, resampled_weights, unit_numbers
from sfumato.discrimination import (
    Array,
    RankedScores,
    mean_of_defined,
    over_classes,
    ratio,
)

LEVEL = 0.95
"""The part of resamples that an interval holds unless another is given."""

MOST_WORK = 4e8
"""Images times classes times resamples up to which areas under curves are resampled: 20 to 30
seconds on one core."""

OVERALL = ("accuracy", "balanced_accuracy", "auroc", "average_precision", "sensitivity")
BY_CLASS = ("precision", "recall", "f1", "auroc", "average_precision", "sensitivity")
_BY_RANK = ("auroc", "average_precision", "sensitivity")

_FEWEST = 2
"""Fewest units with a class, and without it, that its intervals need: with one alone every
resample holds the same images of it, or none."""


@dataclass(frozen=True, eq=False)
class Intervals:
    """Percentile intervals of results, from resamples of the units.

    Each resample has the statistic of an evaluation of its images; means over classes are over
    those that occur in it. An interval is NaN where it is not defined: for a class with fewer than
    two units of it or without it, and for everything that was not resampled.

    Attributes:
        level: The part of resamples that an interval holds.
        resamples: Number of resamples.
        seed: Of the resamples.
        units: Number of units that were resampled.
        unit: The word for one.
        overall: By the names in `OVERALL`, `(2,)`; of areas and sensitivities as
            `discrimination.over_classes` has them.
        by_class: By the names in `BY_CLASS`, `(2, classes)`.
        ranks: Whether areas and sensitivities were resampled; see `MOST_WORK`.
    """

    level: float
    resamples: int
    seed: int
    units: int
    unit: str
    overall: dict[str, Array]
    by_class: dict[str, Array]
    ranks: bool

    @property
    def words(self) -> str:
        """The method in words."""
        method = (
            f"{100 * self.level:g} % intervals: percentiles of {self.resamples} bootstrap "
            f"resamples of the {self.units} {self.unit}s (seed {self.seed})"
        )
        if self.ranks:
            return method
        return f"{method}; areas and sensitivities have none, as there are too many classes"


def intervals(
    probabilities: Array,
    labels: Array,
    *,
    scores: Array,
    specificity: float,
    units: npt.ArrayLike | None = None,
    unit: str = "image",
    resamples: int,
    seed: int = 0,
    level: float = LEVEL,
    advance: Callable[[int], None] = lambda _: None,
) -> Intervals:
    """Resample the units of evaluated images.

    Args:
        probabilities: `(n, classes)`.
        labels: `(n,)`, from 0 to the number of classes minus one.
        scores: `(n, classes)`, what areas and sensitivities rank images by.
        specificity: The specificity at which sensitivities are taken.
        units: `(n,)`, equal for images of one unit; None if each image is one.
        unit: The word for one.
        resamples: Number of resamples.
        seed: Of the resamples.
        level: The part of resamples that an interval holds.
        advance: Told how many more resamples are done.
    """
    n, classes = probabilities.shape
    if resamples < 2 or not 0 < level < 1:
        raise ValueError(f"resamples = {resamples} and level = {level}: want at least 2, in (0, 1)")
    ranks = n * classes * resamples <= MOST_WORK
    resampled: dict[str, list[Array]] = {name: [] for name in BY_CLASS}
    accuracies: list[Array] = []
    ranked = list(_ranked(scores, labels)) if ranks else []
    predicted = probabilities.argmax(1)
    for weights in resampled_weights(units, n, resamples=resamples, seed=seed):
        accuracies.append((predicted == labels) @ weights / weights.sum(0))
        found = _of_predictions(predicted, labels, classes, weights)
        if ranks:
            counts = [images.counts(weights) for images in ranked]
            found["auroc"] = np.stack([c.auroc() for c in counts], axis=1)
            found["average_precision"] = np.stack([c.average_precision() for c in counts], axis=1)
            both = [c.sensitivity_at(specificity) for c in counts]
            found["sensitivity"] = np.stack(both, axis=1)
        for name, values in found.items():
            resampled[name].append(values)
        advance(weights.shape[1])
    drawn = {name: np.concatenate(v) for name, v in resampled.items() if v}
    overall = {
        "accuracy": np.concatenate(accuracies),
        "balanced_accuracy": mean_of_defined(drawn["recall"]),
    }
    overall |= {name: over_classes(drawn[name]) for name in _BY_RANK if name in drawn}
    numbers, count = unit_numbers(units, n)
    few = _few(numbers, count, labels, classes)
    undefined = np.full((2, classes), math.nan)
    by_class = {name: undefined for name in BY_CLASS}
    for name, values in drawn.items():
        by_class[name] = np.where(few, math.nan, percentile_interval(values, level))
    known = {name: np.full(2, math.nan) for name in OVERALL}
    if count >= _FEWEST:
        known |= {name: percentile_interval(v[:, None], level)[:, 0] for name, v in overall.items()}
    return Intervals(level, resamples, seed, count, unit, known, by_class, ranks)


def _ranked(scores: Array, labels: Array) -> Iterator[RankedScores]:
    for k in range(scores.shape[1]):
        yield RankedScores.of(scores[:, k], labels == k)


def _of_predictions(
    predicted: Array, labels: Array, classes: int, weights: Array
) -> dict[str, Array]:
    """Precision, recall and F1 `(resamples, classes)` of the most probable class."""
    right = predicted == labels
    hits = _sums(labels[right], classes, weights[right])
    support, given = _sums(labels, classes, weights), _sums(predicted, classes, weights)
    return {
        "precision": ratio(hits, given),
        "recall": ratio(hits, support),
        "f1": ratio(2 * hits, support + given),
    }


def _sums(index: Array, classes: int, weights: Array) -> Array:
    """Sums of weights `(sets, classes)` of the images of each class."""
    order = np.argsort(index, kind="stable")
    total = np.zeros((len(index) + 1, weights.shape[1]))
    np.cumsum(np.take(weights, order, axis=0), axis=0, out=total[1:])
    ends = np.searchsorted(index[order], np.arange(classes), side="right")
    return np.diff(total[ends], axis=0, prepend=0.0).T


def _few(numbers: Array, count: int, labels: Array, classes: int) -> Array:
    """Mask of the classes with fewer than two units that have it, or that have another."""
    pairs = np.unique(numbers * classes + labels)
    units, kinds = pairs // classes, pairs % classes
    having = np.bincount(kinds, minlength=classes)
    only = np.bincount(kinds[np.bincount(units, minlength=count)[units] == 1], minlength=classes)
    few: Array = (having < _FEWEST) | (count - only < _FEWEST)
    return few
