"""Evaluation of class probabilities: accuracy, areas under curves, calibration, errors by class.

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

from sfumato.analysis.class_curves import ClassCurves, class_curves
from sfumato.analysis.intervals import BY_CLASS, OVERALL, Intervals, intervals
from sfumato.data.progress_bar import progress
from sfumato.discrimination import (
    SPECIFICITY,
    RankedScores,
    check_specificity,
    log_odds,
    over_classes,
    ratio,
)
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
        auroc: Per class, the area under the ROC curve against all others; NaN if it has no examples
            or there are no others.
        average_precision: Per class, the mean precision over its examples; NaN if it has none.
        sensitivity: Per class, the sensitivity at the specificity; NaN as for `auroc`.
        specificity: That specificity.
        curves: ROC and precision-recall curves, as `class_curves` chooses them.
        intervals: Confidence intervals of these results, if they were asked for.
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
    auroc: Array
    average_precision: Array
    sensitivity: Array
    specificity: float
    curves: tuple[ClassCurves, ...]
    intervals: Intervals | None = None

    @property
    def absent(self) -> tuple[str, ...]:
        """Classes without examples, which are left out of means over classes."""
        return tuple(self.classes[k] for k in np.flatnonzero(self.support == 0))

    def overall(self, name: str) -> float:
        """A result over all classes, by a name in `sfumato.analysis.intervals.OVERALL`.

        Areas and sensitivities are those of the second of two classes, or the mean over more.
        """
        if name in ("accuracy", "balanced_accuracy"):
            return float(getattr(self, name))
        return float(over_classes(getattr(self, name)))

    @property
    def balanced_accuracy(self) -> float:
        """Mean recall of the classes that occur."""
        return float(self.recall[self.support > 0].mean())

    @property
    def tells_top5(self) -> bool:
        """Tell whether five guesses leave out half of the classes, so that top-5 says anything."""
        return len(self.classes) >= 10

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; what is not defined is None."""
        r = self.reliability
        return {
            "n": self.n,
            **{name: _plain(self.overall(name)) for name in OVERALL},
            "specificity": self.specificity,
            **({"positive": self.classes[1]} if len(self.classes) == 2 else {}),
            **({"top5": self.top5} if self.tells_top5 else {}),
            "nll": self.nll,
            "brier": self.brier,
            "ece": self.ece,
            "absent": list(self.absent),
            "intervals": self._intervals(),
            "per_class": [self._of_class(k) for k in range(len(self.classes))],
            "confusion": self.confusion.tolist(),
            "reliability": {
                "edges": r.edges.tolist(),
                "counts": r.counts.tolist(),
                "confidence": [_plain(value) for value in r.confidence],
                "accuracy": [_plain(value) for value in r.accuracy],
            },
            "curves": [
                {
                    "class": self.classes[c.index],
                    "false_positive_rate": c.roc.x.tolist(),
                    "sensitivity": c.roc.y.tolist(),
                    "recall": c.precision_recall.x.tolist(),
                    "precision": c.precision_recall.y.tolist(),
                }
                for c in self.curves
            ],
        }

    def _of_class(self, k: int) -> dict[str, Any]:
        found: dict[str, Any] = {"class": self.classes[k], "support": int(self.support[k])}
        found |= {name: _plain(getattr(self, name)[k]) for name in BY_CLASS}
        if self.intervals is None:
            return found
        ends = {name: _ends(self.intervals.by_class[name][:, k]) for name in BY_CLASS}
        return found | {"intervals": ends}

    def _intervals(self) -> dict[str, Any] | None:
        """The intervals over all classes, and the resampling behind them."""
        i = self.intervals
        if i is None:
            return None
        made = {
            "method": "percentile bootstrap over units",
            "level": i.level,
            "resamples": i.resamples,
            "seed": i.seed,
            "unit": i.unit,
            "units": i.units,
        }
        return made | {name: _ends(i.overall[name]) for name in OVERALL}


def evaluate(
    probabilities: npt.ArrayLike,
    labels: npt.ArrayLike,
    classes: Sequence[str],
    *,
    scores: npt.ArrayLike | None = None,
    specificity: float = SPECIFICITY,
    units: npt.ArrayLike | None = None,
    unit: str = "image",
    resamples: int = 0,
    seed: int = 0,
) -> Evaluation:
    """Compare predicted probabilities with the true classes.

    Args:
        probabilities: `(n, classes)`, each row summing to 1.
        labels: `(n,)`, from 0 to the number of classes minus one.
        classes: Their names.
        scores: `(n, classes)`, what areas and sensitivities rank images by: the probabilities if
            None. `log_odds` of logits are not rounded to 1 where a model is certain.
        specificity: The specificity at which sensitivities are stated.
        units: `(n,)`, equal for images of one unit, which intervals take together; None if each
            image is one.
        unit: The word for one.
        resamples: Bootstrap resamples for 95 % intervals; 0 for none.
        seed: Of the resamples.

    Raises:
        UserError: If there are no examples, a probability is NaN or infinite, or the specificity is
            impossible.
        ValueError: If shapes, labels or sums are not as stated.
    """
    check_specificity(specificity)
    p, y = check_probabilities(probabilities, labels)
    count = len(classes)
    if p.shape[1] != count:
        raise ValueError(f"there are {p.shape[1]} probabilities per example but {count} classes")
    predicted = p.argmax(1)
    bins = reliability(p, y)
    confusion = np.bincount(y * count + predicted, minlength=count * count).reshape(count, count)
    right, support, given = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
    ranking = p if scores is None else np.asarray(scores)
    if ranking.shape != p.shape:
        raise ValueError(f"scores {ranking.shape} are not of the shape of probabilities {p.shape}")
    by_rank = np.array([_by_rank(ranking[:, k], y == k, specificity) for k in range(count)])
    found = None
    if resamples:
        with progress("resampling", resamples, unit="resamples") as advance:
            found = intervals(
                p, y, scores=ranking, specificity=specificity, units=units, unit=unit,
                resamples=resamples, seed=seed, advance=advance,
            )  # fmt: skip
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
        precision=ratio(right, given),
        recall=ratio(right, support),
        f1=ratio(2 * right, support + given),
        support=support,
        auroc=by_rank[:, 0],
        average_precision=by_rank[:, 1],
        sensitivity=by_rank[:, 2],
        specificity=specificity,
        curves=class_curves(ranking, y, by_rank[:, 0]),
        intervals=found,
    )


def evaluate_logits(
    logits: npt.ArrayLike, labels: npt.ArrayLike, classes: Sequence[str], **options: Any
) -> Evaluation:
    """Compare a model's outputs with the true classes, and rank images by their log-odds.

    Probabilities of a confident model round to 1, so that images would be tied which its logits
    tell apart.

    Args:
        logits: `(n, classes)`.
        labels: `(n,)`.
        classes: Their names.
        options: Those of `evaluate`, but for `scores`.

    Raises:
        UserError: As for `evaluate`.
    """
    with np.errstate(invalid="ignore"):  # Logits that are not finite are refused by `evaluate`.
        p = softmax(logits)
    check_probabilities(p, labels)
    return evaluate(p, labels, classes, scores=log_odds(logits), **options)


def _by_rank(scores: Array, positive: Array, specificity: float) -> tuple[float, float, float]:
    """AUROC, average precision and sensitivity of one class."""
    counts = RankedScores.of(scores, positive).counts()
    found = counts.auroc(), counts.average_precision(), counts.sensitivity_at(specificity)
    auroc, precision, sensitivity = (float(value[0]) for value in found)
    return auroc, precision, sensitivity


def softmax(logits: npt.ArrayLike, temperature: float = 1.0) -> Array:
    """Probabilities of logits divided by a temperature, in float64."""
    z = np.asarray(logits, dtype=np.float64) / temperature
    powers = np.exp(z - z.max(1, keepdims=True))
    quotient: Array = powers / powers.sum(1, keepdims=True)
    return quotient


def negative_log_likelihood(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Mean of -log p(true class), in nats, with p no smaller than `SMALLEST`."""
    p, y = check_probabilities(probabilities, labels)
    return float(-np.log(np.maximum(p[np.arange(len(y)), y], SMALLEST)).mean())


def brier_score(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Mean over examples of the squared error summed over classes, as Brier (1950) wrote it.

    It lies between 0 and 2. For two classes it is twice the score that looks at one class only;
    libraries that average over classes give this divided by their number.
    """
    p, y = check_probabilities(probabilities, labels)
    squares = np.einsum("ij,ij->i", p, p)
    true = p[np.arange(len(y)), y]
    return float((squares - 2 * true + 1).mean())


def reliability(
    probabilities: npt.ArrayLike, labels: npt.ArrayLike, *, bins: int = BINS
) -> Reliability:
    """Sort examples into bins by their largest probability, and see how many are right in each."""
    if bins < 1:
        raise ValueError(f"bins = {bins}, but at least one is needed")
    p, y = check_probabilities(probabilities, labels)
    confidence = p.max(1)
    bin_of = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    counts = np.bincount(bin_of, minlength=bins)
    return Reliability(
        edges=np.linspace(0, 1, bins + 1),
        counts=counts,
        confidence=ratio(np.bincount(bin_of, weights=confidence, minlength=bins), counts),
        accuracy=ratio(np.bincount(bin_of, weights=p.argmax(1) == y, minlength=bins), counts),
    )


def check_probabilities(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> tuple[Array, Array]:
    """Probabilities as float64 and labels as int64, if they are such.

    Raises:
        UserError: If there are no examples, or a probability is NaN or infinite.
        ValueError: If shapes, labels or sums are not those of probabilities and labels.
    """
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


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _ends(interval: Array) -> list[float] | None:
    """The ends of an interval; None where there is none."""
    return None if np.isnan(interval).any() else [float(end) for end in interval]
