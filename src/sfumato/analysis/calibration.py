"""Calibration: proper scores, calibration errors in two kinds of bins, and temperature scaling.

Everything here is a function of logits `(n, classes)` or probabilities, and labels `(n,)`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato.analysis.classification import (
    BINS,
    Reliability,
    brier_score,
    check_probabilities,
    negative_log_likelihood,
    reliability,
    softmax,
)
from sfumato.errors import UserError

HOTTEST = 1e3
"""Temperatures are sought between 1/HOTTEST and HOTTEST."""


@dataclass(frozen=True, eq=False)
class Scores:
    """Proper scores and calibration errors of class probabilities.

    Attributes:
        n: Number of examples.
        accuracy: Fraction whose largest probability is the true class's.
        nll: Mean negative log-likelihood, in nats.
        brier: Brier score, from 0 to 2.
        brier_error: Its standard error over examples.
        ece: Expected calibration error in bins of equal width.
        adaptive_ece: The same in bins of equally many examples (Nixon et al., 2019).
        mce: The largest gap between confidence and accuracy of a bin of equal width.
        confidence: Mean largest probability; above `accuracy` the model is too sure of itself.
        bins: The bins of equal width.
        adaptive_bins: The bins of equally many examples.
    """

    n: int
    accuracy: float
    nll: float
    brier: float
    brier_error: float
    ece: float
    adaptive_ece: float
    mce: float
    confidence: float
    bins: Reliability
    adaptive_bins: Reliability

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        plain = {
            name: getattr(self, name)
            for name in ("n", "accuracy", "nll", "brier", "brier_error", "ece", "adaptive_ece",
                         "mce", "confidence")
        }  # fmt: skip
        return plain | {"bins": _bins(self.bins), "adaptive_bins": _bins(self.adaptive_bins)}


@dataclass(frozen=True, eq=False)
class Calibration:
    """The result of `calibrate`.

    Attributes:
        scores: Of the probabilities as they are, on all examples scored.
        temperature: What the logits are divided by to be best calibrated; above 1 the model is too
            sure of itself.
        fitted_on: Which examples the temperature was fitted on, in words.
        before: Scores on the examples that the temperature was not fitted on, as they are.
        after: Scores on the same with the temperature.
    """

    scores: Scores
    temperature: float
    fitted_on: str
    before: Scores
    after: Scores

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return self.scores.to_dict() | {
            "temperature": {
                "value": self.temperature,
                "fitted_on": self.fitted_on,
                "before": self.before.to_dict(),
                "after": self.after.to_dict(),
            }
        }


def scores(probabilities: npt.ArrayLike, labels: npt.ArrayLike, *, bins: int = BINS) -> Scores:
    """Every score of probabilities `(n, classes)` against labels `(n,)`."""
    p, y = np.asarray(probabilities, dtype=np.float64), np.asarray(labels)
    brier, width = brier_score(p, y), reliability(p, y, bins=bins)
    equal = adaptive_reliability(p, y, bins=bins)
    each = np.einsum("ij,ij->i", p, p) - 2 * p[np.arange(len(y)), y] + 1
    filled = width.counts > 0
    return Scores(
        n=len(y),
        accuracy=float((p.argmax(1) == y).mean()),
        nll=negative_log_likelihood(p, y),
        brier=brier,
        brier_error=float(each.std(ddof=1) / math.sqrt(len(y))) if len(y) > 1 else math.nan,
        ece=width.ece,
        adaptive_ece=equal.ece,
        mce=float(np.abs(width.accuracy - width.confidence)[filled].max()),
        confidence=float(p.max(1).mean()),
        bins=width,
        adaptive_bins=equal,
    )


def adaptive_reliability(
    probabilities: npt.ArrayLike, labels: npt.ArrayLike, *, bins: int = BINS
) -> Reliability:
    """Confidence against accuracy in bins of equally many examples (but for one), by confidence.

    With fewer examples than bins there are as many bins as examples.
    """
    p, y = np.asarray(probabilities, dtype=np.float64), np.asarray(labels)
    check_probabilities(p, y)
    if bins < 1:
        raise ValueError(f"bins = {bins}, but at least one is needed")
    confidence = p.max(1)
    order = np.argsort(confidence, kind="stable")
    parts = np.array_split(order, min(bins, len(y)))
    right = p.argmax(1) == y
    inner = [(confidence[a[-1]] + confidence[b[0]]) / 2 for a, b in pairwise(parts)]
    return Reliability(
        edges=np.array([0.0, *inner, 1.0]),
        counts=np.array([len(part) for part in parts]),
        confidence=np.array([confidence[part].mean() for part in parts]),
        accuracy=np.array([right[part].mean() for part in parts]),
    )


def fit_temperature(logits: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """The temperature that maximises the likelihood of held-out labels (Guo et al., 2017).

    The log-likelihood is concave in 1/T, so the root of its derivative is found by bisection, to
    nine digits, between 1/`HOTTEST` and `HOTTEST`.

    Raises:
        UserError: If there are no examples, or a logit is not finite.
    """
    z, y = np.asarray(logits, dtype=np.float64), np.asarray(labels)
    if not len(y):
        raise UserError("A temperature cannot be fitted: there are no held-out images.")
    if not np.isfinite(z).all():
        raise UserError(
            "A temperature cannot be fitted: some of the model's outputs are not finite."
        )
    true = z[np.arange(len(y)), y]

    def slope(inverse: float) -> float:
        return float((np.einsum("ij,ij->i", softmax(z, 1 / inverse), z) - true).mean())

    low, high = -math.log(HOTTEST), math.log(HOTTEST)
    for _ in range(60):
        middle = (low + high) / 2
        if slope(math.exp(middle)) < 0:
            low = middle
        else:
            high = middle
    return math.exp(-(low + high) / 2)


def calibrate(
    logits: npt.ArrayLike,
    labels: npt.ArrayLike,
    *,
    held_out: tuple[npt.ArrayLike, npt.ArrayLike, str] | None = None,
    seed: int = 0,
    bins: int = BINS,
) -> Calibration:
    """Scores of a model's outputs, and what a temperature makes of them.

    Args:
        logits: `(n, classes)`.
        labels: `(n,)`.
        held_out: Logits and labels of other images to fit the temperature on, and their name.
            Without them it is fitted on a random half of the images, and scored on the other half.
        seed: Of that half.
        bins: Of the calibration errors.
    """
    z, y = np.asarray(logits, dtype=np.float64), np.asarray(labels)
    whole = scores(softmax(z), y, bins=bins)
    if held_out is not None:
        theirs, fitted_on = np.asarray(held_out[1]), held_out[2]
        temperature = fit_temperature(held_out[0], theirs)
        fitted_on = f"{len(theirs)} {fitted_on} images"
        rest = np.arange(len(y))
    else:
        if len(y) < 2:
            raise UserError("A temperature needs at least two images: one to fit, one to score.")
        order = np.random.default_rng(seed).permutation(len(y))
        half, rest = order[: len(y) // 2], order[len(y) // 2 :]
        temperature = fit_temperature(z[half], y[half])
        fitted_on = f"a random {len(half)} of these {len(y)} images, scored on the others"
    return Calibration(
        scores=whole,
        temperature=temperature,
        fitted_on=fitted_on,
        before=scores(softmax(z[rest]), y[rest], bins=bins),
        after=scores(softmax(z[rest], temperature), y[rest], bins=bins),
    )


def _bins(found: Reliability) -> dict[str, Any]:
    return {
        "edges": found.edges.tolist(),
        "counts": found.counts.tolist(),
        "confidence": [None if math.isnan(v) else float(v) for v in found.confidence],
        "accuracy": [None if math.isnan(v) else float(v) for v in found.accuracy],
    }
