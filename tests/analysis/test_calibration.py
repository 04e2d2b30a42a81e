"""Calibration against scikit-learn, SciPy and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from scipy.special import softmax as scipy_softmax
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, log_loss

from sfumato.analysis import (
    adaptive_reliability,
    calibrate,
    fit_temperature,
    scores,
    softmax,
)
from sfumato.errors import UserError


def drawn(n: int = 2000, classes: int = 5, *, heat: float = 1.0, seed: int = 0) -> tuple:
    """Logits, and labels drawn from exactly softmax(logits / heat)."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, classes)) * 2
    p = scipy_softmax(z / heat, axis=1)
    y = (p.cumsum(1) > rng.random((n, 1))).argmax(1)
    return z, y


def test_brier_and_likelihood_are_scikit_learns() -> None:
    z, y = drawn(classes=2)
    found = scores(softmax(z), y)
    p = softmax(z)[:, 1]
    assert found.brier == pytest.approx(2 * brier_score_loss(y, p), rel=1e-12)
    assert found.nll == pytest.approx(log_loss(y, p), rel=1e-12)
    z, y = drawn(classes=7, seed=1)
    found = scores(softmax(z), y)
    one_hot = np.eye(7)[y]
    by_class = [brier_score_loss(one_hot[:, k], softmax(z)[:, k]) for k in range(7)]
    assert found.brier == pytest.approx(sum(by_class), rel=1e-12)
    rows = ((softmax(z) - one_hot) ** 2).sum(1)
    assert found.brier_error == pytest.approx(rows.std(ddof=1) / math.sqrt(len(y)), rel=1e-12)


@pytest.mark.parametrize(("strategy", "adaptive"), [("uniform", False), ("quantile", True)])
def test_bins_are_scikit_learns(strategy: str, adaptive: bool) -> None:
    z, y = drawn(n=1500)
    p = softmax(z)
    right, confidence = p.argmax(1) == y, p.max(1)
    accuracy, mean = calibration_curve(right, confidence, n_bins=15, strategy=strategy)
    found = scores(p, y)
    bins = found.adaptive_bins if adaptive else found.bins
    filled = bins.counts > 0
    tolerance = 0.02 if adaptive else 1e-12  # its quantile edges may move one example over
    np.testing.assert_allclose(bins.confidence[filled], mean, atol=tolerance)
    np.testing.assert_allclose(bins.accuracy[filled], accuracy, atol=tolerance)
    by_hand = (np.abs(bins.accuracy - bins.confidence) * bins.counts)[filled].sum() / len(y)
    assert (found.adaptive_ece if adaptive else found.ece) == pytest.approx(by_hand)


def test_adaptive_bins_hold_equally_many_and_order_does_not_matter() -> None:
    z, y = drawn(n=100)
    bins = adaptive_reliability(softmax(z), y, bins=7)
    assert bins.counts.sum() == 100 and set(bins.counts) == {14, 15}
    assert (np.diff(bins.confidence) > 0).all() and (np.diff(bins.edges) >= 0).all()
    order = np.random.default_rng(3).permutation(100)
    again = adaptive_reliability(softmax(z)[order], y[order], bins=7)
    assert again.ece == pytest.approx(bins.ece)
    few = adaptive_reliability(softmax(z)[:3], y[:3])
    assert list(few.counts) == [1, 1, 1]


def test_ece_in_closed_form() -> None:
    p = np.array([[0.9, 0.1]] * 10 + [[0.6, 0.4]] * 10)
    y = np.array([0] * 5 + [1] * 5 + [0] * 10)
    found = scores(p, y, bins=10)
    assert found.ece == pytest.approx(0.5 * 0.4 + 0.5 * 0.4)
    assert found.mce == pytest.approx(0.4)
    assert scores(p, y, bins=2).adaptive_ece == pytest.approx(0.4)


@pytest.mark.parametrize("heat", [0.4, 1.0, 3.0])
def test_temperature_is_scipys_minimum_and_recovers_the_truth(heat: float) -> None:
    z, y = drawn(n=20_000, heat=heat)
    found = fit_temperature(z, y)

    def loss(log_t: float) -> float:
        return -log_softmax(z / math.exp(log_t), axis=1)[np.arange(len(y)), y].mean()

    best = minimize_scalar(loss, bounds=(-3, 3), method="bounded", options={"xatol": 1e-10})
    assert found == pytest.approx(math.exp(best.x), rel=1e-4)
    assert found == pytest.approx(heat, rel=0.05)


def test_calibrate_fits_on_other_images_and_scores_on_the_rest() -> None:
    z, y = drawn(n=3000, heat=2.5)
    other, theirs = drawn(n=3000, heat=2.5, seed=9)
    found = calibrate(z, y, held_out=(other, theirs, "validation"))
    assert found.fitted_on == "3000 validation images"
    assert found.temperature == fit_temperature(other, theirs)
    assert found.before.n == found.after.n == 3000
    assert found.after.ece < 0.5 * found.before.ece
    assert found.after.accuracy == found.before.accuracy
    half = calibrate(z, y, seed=4)
    assert half.before.n == 1500 and "scored on the others" in half.fitted_on
    order = np.random.default_rng(4).permutation(3000)
    assert half.temperature == fit_temperature(z[order[:1500]], y[order[:1500]])
    assert half.before.nll == scores(softmax(z[order[1500:]]), y[order[1500:]]).nll


def test_what_cannot_be_calibrated_is_refused() -> None:
    z, y = drawn(n=10)
    with pytest.raises(UserError, match="no held-out images"):
        fit_temperature(z[:0], y[:0])
    with pytest.raises(UserError, match="not finite"):
        fit_temperature(np.where(z == z[0, 0], np.nan, z), y)
    with pytest.raises(UserError, match="at least two"):
        calibrate(z[:1], y[:1])
    assert np.isfinite(softmax(z * 1e5)).all()
