from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from sfumato.analysis import (
    brier_score,
    evaluate,
    negative_log_likelihood,
    reliability,
)
from sfumato.analysis.classification import SMALLEST
from sfumato.errors import UserError


def sample(n: int, classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    logits = rng.normal(size=(n, classes))
    logits[np.arange(n), labels] += rng.uniform(0, 3, n)
    powers = np.exp(logits)
    return powers / powers.sum(1, keepdims=True), labels


def names(classes: int) -> list[str]:
    return [f"class {k}" for k in range(classes)]


@pytest.mark.parametrize("classes", [2, 3, 10, 30])
def test_agrees_with_scikit_learn(classes: int) -> None:
    p, y = sample(400, classes)
    found = evaluate(p, y, names(classes))
    every = list(range(classes))
    predicted = p.argmax(1)
    assert found.n == 400
    assert found.accuracy == pytest.approx(metrics.accuracy_score(y, predicted))
    assert found.balanced_accuracy == pytest.approx(metrics.balanced_accuracy_score(y, predicted))
    assert found.nll == pytest.approx(metrics.log_loss(y, p, labels=every))
    assert found.brier == pytest.approx(
        metrics.brier_score_loss(y, p, labels=every, scale_by_half=False)
        if classes > 2
        else 2 * metrics.brier_score_loss(y, p[:, 1])
    )
    if classes > 5:
        assert found.top5 == pytest.approx(metrics.top_k_accuracy_score(y, p, k=5, labels=every))
    else:
        assert found.top5 == 1.0
    assert (found.confusion == metrics.confusion_matrix(y, predicted, labels=every)).all()
    precision, recall, f1, support = metrics.precision_recall_fscore_support(
        y, predicted, labels=every, zero_division=np.nan
    )
    np.testing.assert_allclose(found.precision, precision)
    np.testing.assert_allclose(found.recall, recall)
    np.testing.assert_allclose(found.f1, f1)
    assert (found.support == support).all()


def test_rows_of_the_confusion_matrix_are_true_classes() -> None:
    found = evaluate([[0.2, 0.8, 0.0]] * 3, [0, 0, 1], names(3))
    assert found.confusion.tolist() == [[0, 2, 0], [0, 1, 0], [0, 0, 0]]


def test_classes_that_do_not_occur_are_undefined_and_none_in_json() -> None:
    found = evaluate([[0.2, 0.8, 0.0]] * 3, [0, 0, 1], names(3))
    assert math.isnan(found.precision[0]) and found.recall[0] == 0 and found.f1[0] == 0
    assert math.isnan(found.precision[2]) and math.isnan(found.recall[2])
    assert math.isnan(found.f1[2])
    assert found.balanced_accuracy == 0.5
    content = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert content["per_class"][2] == {
        "class": "class 2", "support": 0, "precision": None, "recall": None, "f1": None,
        "auroc": None, "average_precision": None, "sensitivity": None,
    }  # fmt: skip
    assert content["confusion"] == [[0, 2, 0], [0, 1, 0], [0, 0, 0]]
    assert content["reliability"]["counts"] == found.reliability.counts.tolist()


def test_uniform_probabilities_in_closed_form() -> None:
    k = 8
    found = evaluate(np.full((16, k), 1 / k), np.arange(16) % k, names(k))
    assert found.nll == pytest.approx(math.log(k))
    assert found.brier == pytest.approx(1 - 1 / k)
    assert found.accuracy == pytest.approx(1 / k)
    assert found.ece == pytest.approx(0, abs=1e-12)
    assert found.top5 == pytest.approx(5 / k)


def test_perfect_and_worst_predictions() -> None:
    perfect = evaluate(np.eye(3), [0, 1, 2], names(3))
    assert (perfect.accuracy, perfect.nll, perfect.brier, perfect.ece) == (1, 0, 0, 0)
    worst = evaluate(np.eye(3)[[1, 2, 0]], [0, 1, 2], names(3))
    assert (worst.accuracy, worst.brier, worst.ece) == (0, 2, 1)
    assert worst.nll == pytest.approx(-math.log(SMALLEST)) and worst.nll < 88


def test_calibration_error_in_closed_form() -> None:
    p = np.array([[0.9, 0.1]] * 10 + [[0.6, 0.4]] * 10)
    y = np.array([0] * 7 + [1] * 3 + [0] * 8 + [1] * 2)
    assert evaluate(p, y, names(2)).ece == pytest.approx(0.5 * 0.2 + 0.5 * 0.2)


def test_bins_are_open_below_and_closed_above() -> None:
    p = np.array([[1 / 3, 1 / 3, 1 / 3], [2 / 3, 1 / 3, 0], [0.667, 0.333, 0], [1, 0, 0]])
    found = reliability(p, [0, 0, 0, 0], bins=3)
    assert found.counts.tolist() == [1, 1, 2]
    assert found.edges.tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert reliability(p, [0, 1, 0, 2], bins=1).counts.tolist() == [4]


def test_calibration_error_against_a_loop() -> None:
    p, y = sample(500, 5, seed=3)
    expected = 0.0
    for m in range(15):
        inside = (p.max(1) > m / 15) & (p.max(1) <= (m + 1) / 15)
        if inside.any():
            right = (p.argmax(1) == y)[inside].mean()
            expected += inside.mean() * abs(right - p.max(1)[inside].mean())
    assert reliability(p, y).ece == pytest.approx(expected)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.integers(2, 12), st.integers(0, 10_000))
def test_bounds(n: int, classes: int, seed: int) -> None:
    p, y = sample(n, classes, seed)
    found = evaluate(p.astype(np.float32), y, names(classes))
    assert 0 <= found.accuracy <= found.top5 <= 1
    assert 0 <= found.ece <= 1 and 0 <= found.brier <= 2 and found.nll >= 0
    assert found.confusion.sum() == found.reliability.counts.sum() == n


def test_equal_probabilities_rank_like_argmax() -> None:
    p = np.full((6, 6), 1 / 6)
    found = evaluate(p, np.arange(6), names(6))
    assert found.accuracy == pytest.approx(1 / 6)
    assert found.top5 == pytest.approx(5 / 6)


def test_takes_tensors() -> None:
    p, y = sample(20, 3)
    from_tensors = evaluate(torch.tensor(p), torch.tensor(y), names(3))
    assert from_tensors.to_dict() == evaluate(p, y, names(3)).to_dict()


def test_no_examples_is_a_sentence() -> None:
    with pytest.raises(UserError, match="no images"):
        evaluate(np.zeros((0, 3)), np.zeros(0, dtype=int), names(3))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_probabilities_that_are_not_finite_are_counted(bad: float) -> None:
    p, y = sample(10, 3)
    p[4] = bad
    p[7, 1] = bad
    with pytest.raises(UserError, match=r"2 of 10 images .*image 4\b"):
        evaluate(p, y, names(3))


@pytest.mark.parametrize(
    ("p", "y"),
    [
        ([[0.5, 0.5]], [2]),
        ([[0.5, 0.5]], [-1]),
        ([[0.5, 0.5]], [0.0]),
        ([[0.5, 0.5]], [0, 1]),
        ([0.5, 0.5], [0, 1]),
        ([[0.5, 0.6]], [0]),
        ([[1.5, -0.5]], [0]),
        ([[0.2, 0.3, 0.5]], [0]),
    ],
)
def test_wrong_arguments_are_refused(p: list[list[float]], y: list[int]) -> None:
    with pytest.raises(ValueError):
        evaluate(p, y, names(2))


def test_scores_alone() -> None:
    p, y = sample(50, 4)
    found = evaluate(p, y, names(4))
    assert negative_log_likelihood(p, y) == found.nll
    assert (
        brier_score(p, y) == found.brier == pytest.approx(((p - np.eye(4)[y]) ** 2).sum(1).mean())
    )
