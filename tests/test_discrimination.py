"""Areas under curves, against scikit-learn and against counting pairs."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from sfumato.analysis import (
    RankedScores,
    auroc,
    average_precision,
    evaluate,
    evaluate_logits,
    log_odds,
    sensitivity_at,
)
from sfumato.errors import UserError

SCORES = st.lists(
    st.tuples(st.integers(0, 6), st.booleans(), st.integers(0, 3)), min_size=1, max_size=40
)
"""Few different scores, so that most are tied, with a weight each."""


def by_pairs(scores: np.ndarray, positive: np.ndarray, weights: np.ndarray) -> float:
    """The share of pairs in which the positive image has the higher score, the slow way."""
    won = total = 0.0
    for i in np.flatnonzero(positive):
        for j in np.flatnonzero(~positive):
            pair = weights[i] * weights[j]
            total += pair
            won += pair * (1.0 if scores[i] > scores[j] else 0.5 if scores[i] == scores[j] else 0.0)
    return won / total if total else math.nan


def best_sensitivity(
    scores: np.ndarray, positive: np.ndarray, weights: np.ndarray, specificity: float
) -> float:
    """The highest sensitivity over every threshold with this specificity, the slow way."""
    p, n = weights[positive].sum(), weights[~positive].sum()
    if not p or not n:
        return math.nan
    best = 0.0
    for threshold in (*np.unique(scores), np.inf):
        above = scores >= threshold
        if (n - weights[above & ~positive].sum()) / n >= specificity - 1e-12:
            best = max(best, weights[above & positive].sum() / p)
    return best


@settings(max_examples=100, deadline=None)
@given(SCORES)
def test_agrees_with_scikit_learn_whatever_is_tied(drawn: list[tuple[int, bool, int]]) -> None:
    scores = np.array([s / 7 for s, _, _ in drawn])
    positive = np.array([p for _, p, _ in drawn])
    if not positive.any() or positive.all():
        assert math.isnan(auroc(scores, positive))
    else:
        assert auroc(scores, positive) == pytest.approx(metrics.roc_auc_score(positive, scores))
        roc = RankedScores.of(scores, positive).roc()
        fpr, tpr, _ = metrics.roc_curve(positive, scores, drop_intermediate=False)
        np.testing.assert_allclose(roc.x, fpr)
        np.testing.assert_allclose(roc.y, tpr)
    if not positive.any():
        assert math.isnan(average_precision(scores, positive))
        return
    expected = metrics.average_precision_score(positive, scores)
    assert average_precision(scores, positive) == pytest.approx(expected)
    curve = RankedScores.of(scores, positive).precision_recall()
    precision, recall, _ = metrics.precision_recall_curve(positive, scores)
    np.testing.assert_allclose(curve.x, recall[::-1])
    np.testing.assert_allclose(curve.y, precision[::-1])


@settings(max_examples=100, deadline=None)
@given(SCORES, st.sampled_from([0.05, 0.5, 0.8, 0.95, 1.0]))
def test_sets_of_weights_are_computed_as_each_alone(
    drawn: list[tuple[int, bool, int]], specificity: float
) -> None:
    scores = np.array([s / 7 for s, _, _ in drawn])
    positive = np.array([p for _, p, _ in drawn])
    weights = np.array([w for _, _, w in drawn], dtype=float)
    both = np.stack([weights, np.ones(len(weights))], axis=1)
    counts = RankedScores.of(scores, positive).counts(both)
    for k in range(2):
        w = both[:, k]
        np.testing.assert_allclose(counts.auroc()[k], by_pairs(scores, positive, w))
        np.testing.assert_allclose(
            counts.sensitivity_at(specificity)[k],
            best_sensitivity(scores, positive, w, specificity),
        )
        if w[positive].sum():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                expected = metrics.average_precision_score(positive, scores, sample_weight=w)
            assert counts.average_precision()[k] == pytest.approx(expected)
        else:
            assert math.isnan(counts.average_precision()[k])


@pytest.mark.parametrize("specificity", [0.55, 0.9, 0.95])
def test_a_specificity_that_is_reached_exactly_counts(specificity: float) -> None:
    """0.55 times 100 is more than 55 in floating point."""
    scores = np.arange(101.0)
    positive = scores == round(100 * specificity)
    assert sensitivity_at(scores, positive, specificity=specificity) == 1.0
    assert sensitivity_at(scores, positive, specificity=specificity + 0.01) == 0.0


@pytest.mark.parametrize("specificity", [0.0, -0.5, 1.5, math.nan])
def test_an_impossible_specificity_is_a_sentence(specificity: float) -> None:
    with pytest.raises(UserError, match="specificity of"):
        sensitivity_at([0.1, 0.2], [True, False], specificity=specificity)


def test_scores_must_be_numbers_in_one_row() -> None:
    with pytest.raises(ValueError, match="NaN"):
        auroc([0.5, math.nan], [True, False])
    for scores, positive in (([0.5], [True, False]), ([], []), ([[0.5]], [[True]])):
        with pytest.raises(ValueError, match="want"):
            auroc(scores, positive)


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_log_odds_are_those_of_the_probabilities(classes: int) -> None:
    logits = np.random.default_rng(0).normal(size=(50, classes)) * 3
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(log_odds(logits), np.log(p) - np.log1p(-p), rtol=1e-9)


def test_log_odds_of_one_class_and_of_equal_classes() -> None:
    assert (log_odds([[3.0], [4.0]]) == np.inf).all()
    np.testing.assert_allclose(log_odds([[2.0, 2.0, 2.0]]), np.log(0.5))


def test_a_certain_model_is_ranked_by_its_logits() -> None:
    """Probabilities that round to 1 tie images that the model tells apart."""
    rng = np.random.default_rng(1)
    labels = np.repeat([0, 1], 100)
    margin = rng.normal(size=200) * 5 + 40 + 10 * labels
    logits = np.stack([np.zeros(200), margin], axis=1).astype(np.float32)
    found = evaluate_logits(logits, labels, ["a", "b"])
    expected = metrics.roc_auc_score(labels, margin)
    np.testing.assert_allclose(found.auroc, [expected, expected], rtol=1e-6)
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    assert evaluate(p, labels, ["a", "b"]).auroc[1] < 0.6 < 0.9 < expected


def test_logits_that_are_not_finite_are_a_sentence() -> None:
    with pytest.raises(UserError, match="not finite"):
        evaluate_logits([[0.0, math.nan], [1.0, 2.0]], [0, 1], ["a", "b"])
    with pytest.raises(UserError, match="not finite"):
        evaluate_logits([[0.0, math.inf], [1.0, 2.0]], [0, 1], ["a", "b"])


def test_a_small_curve_by_hand() -> None:
    scores, positive = [3.0, 2.0, 1.0, 2.0, 0.0], [True, True, True, False, False]
    curve = RankedScores.of(scores, positive).roc()
    assert curve.x.tolist() == [0, 0, 0.5, 0.5, 1]
    assert curve.y.tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1, 1])
    # Pairs that are ordered rightly, and half of those that are equal: 4.5 of 6.
    assert auroc(scores, positive) == pytest.approx(4.5 / 6)
    found = [sensitivity_at(scores, positive, specificity=1 - rate) for rate in (0.0, 0.1, 0.6)]
    assert found == pytest.approx([1 / 3, 1 / 3, 1.0])
