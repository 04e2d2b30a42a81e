"""Intervals by the bootstrap over units, against scikit-learn on each resample."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from sklearn import metrics

from sfumato.analysis import evaluate
from sfumato.analysis.bootstrap import percentile_interval, resampled_weights
from sfumato.analysis.intervals import BY_CLASS, OVERALL
from thinning import with_slow


def names(classes: int) -> list[str]:
    return [f"class {k}" for k in range(classes)]


def tied(n: int, classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of few different values."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n)
    p = rng.dirichlet(np.ones(classes), n)
    p[np.arange(n), y] += rng.uniform(0, 1, n)
    p = np.round(p / p.sum(1, keepdims=True), 1) + 0.01
    return p / p.sum(1, keepdims=True), y


def slow(p: np.ndarray, y: np.ndarray, units: np.ndarray, draw: np.ndarray) -> dict[str, float]:
    """Results of one resample, by copying the images of each unit drawn."""
    chosen = np.concatenate([np.flatnonzero(units == u) for u in draw])
    p, y = p[chosen], y[chosen]
    predicted, every = p.argmax(1), [k for k in range(p.shape[1]) if (y == k).any()]
    shown = [1] if p.shape[1] == 2 else every
    fpr, tpr = zip(
        *(metrics.roc_curve(y == k, p[:, k], drop_intermediate=False)[:2] for k in shown),
        strict=True,
    )
    reached = [t[f <= 0.2 + 1e-12].max() for f, t in zip(fpr, tpr, strict=True)]
    return {
        "accuracy": float(metrics.accuracy_score(y, predicted)),
        "balanced_accuracy": float(np.mean([(predicted[y == k] == k).mean() for k in every])),
        "auroc": float(np.mean([metrics.roc_auc_score(y == k, p[:, k]) for k in shown])),
        "average_precision": float(
            np.mean([metrics.average_precision_score(y == k, p[:, k]) for k in shown])
        ),
        "sensitivity": float(np.mean(reached)),
    }


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("patients", with_slow([40, 150], 150))
def test_agrees_with_scikit_learn_on_the_same_resamples(classes: int, patients: int) -> None:
    p, y = tied(150, classes)
    rng = np.random.default_rng(3)
    units = np.arange(150) if patients == 150 else rng.integers(0, patients, 150)
    found = evaluate(
        p, y, names(classes), specificity=0.8, units=units, unit="patient", resamples=50, seed=7
    ).intervals
    assert found is not None
    count = len(np.unique(units))
    assert (found.units, found.resamples, found.level) == (count, 50, 0.95)
    draws = np.random.default_rng(7)
    known = np.unique(units)
    each = [slow(p, y, units, known[draws.integers(0, count, count)]) for _ in range(50)]
    for name in OVERALL:
        expected = np.quantile([values[name] for values in each], [0.025, 0.975])
        np.testing.assert_allclose(found.overall[name], expected, rtol=1e-12, err_msg=name)
    assert f"50 bootstrap resamples of the {count} patients" in found.words


def test_units_of_one_image_give_the_resamples_of_images() -> None:
    p, y = tied(80, 3)
    alone = evaluate(p, y, names(3), resamples=40).intervals
    units = evaluate(p, y, names(3), resamples=40, units=np.arange(80) * 5).intervals
    assert alone is not None and units is not None
    for name in BY_CLASS:
        np.testing.assert_array_equal(alone.by_class[name], units.by_class[name])


def test_copies_of_images_in_one_unit_leave_the_interval_as_it_is() -> None:
    """Taken as images of their own they would narrow it."""
    p, y = tied(100, 3)
    once = evaluate(p, y, names(3), resamples=200).intervals
    copies = np.repeat(p, 4, axis=0), np.repeat(y, 4)
    units = evaluate(*copies, names(3), resamples=200, units=np.repeat(np.arange(100), 4)).intervals
    images = evaluate(*copies, names(3), resamples=200).intervals
    assert once is not None and units is not None and images is not None
    for name in OVERALL:
        np.testing.assert_allclose(units.overall[name], once.overall[name], rtol=1e-12)
        wide, narrow = (np.ptp(i.overall[name]) for i in (units, images))
        assert narrow < 0.85 * wide, name


def test_an_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """Accuracy 0.7 of 200 units of three equal images each, over 60 sets."""
    rng, held = np.random.default_rng(0), 0
    for seed in range(60):
        right = np.repeat(rng.random(200) < 0.7, 3)
        p = np.where(right[:, None], [[0.8, 0.2]], [[0.2, 0.8]])
        units = np.repeat(np.arange(200), 3)
        found = evaluate(
            p, np.zeros(600, dtype=int), ["a", "b"], units=units, resamples=100, seed=seed
        ).intervals
        assert found is not None
        low, high = found.overall["accuracy"]
        held += low <= 0.7 <= high
    assert 0.88 <= held / 60 <= 0.99


def test_classes_without_images_are_named_and_have_no_numbers() -> None:
    p, y = tied(60, 4)
    y = np.where(y == 2, 1, y)
    found = evaluate(p, y, names(4), resamples=30)
    assert found.absent == ("class 2",)
    assert math.isnan(found.auroc[2]) and math.isnan(found.sensitivity[2])
    assert math.isnan(found.average_precision[2])
    rest = [metrics.roc_auc_score(y == k, p[:, k]) for k in (0, 1, 3)]
    assert found.overall("auroc") == pytest.approx(np.mean(rest))
    assert [c.index for c in found.curves] == [0, 1, 3]
    content = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert content["absent"] == ["class 2"]
    assert content["per_class"][2]["auroc"] is None
    assert content["per_class"][2]["intervals"]["auroc"] is None
    low, high = content["per_class"][1]["intervals"]["auroc"]
    assert low < content["per_class"][1]["auroc"] < high
    assert content["intervals"]["resamples"] == 30


def test_one_class_alone_has_no_areas() -> None:
    found = evaluate([[0.8, 0.2]] * 5, [0] * 5, ["a", "b"], resamples=20)
    assert math.isnan(found.overall("auroc")) and found.curves == ()
    assert found.intervals is not None and np.isnan(found.intervals.overall["auroc"]).all()
    json.dumps(found.to_dict(), allow_nan=False)


def test_a_class_of_one_unit_has_no_interval() -> None:
    """Every resample that holds it holds the same images of it."""
    p, y = tied(40, 2)
    units = np.where(y == 1, 1000, np.arange(40))
    found = evaluate(p, y, ["a", "b"], units=units, resamples=20).intervals
    assert found is not None
    assert all(np.isnan(found.by_class[name]).all() for name in BY_CLASS)
    assert np.isfinite(found.overall["accuracy"]).all()


def test_too_many_classes_have_intervals_of_accuracies_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    p, y = tied(60, 3)
    monkeypatch.setattr("sfumato.analysis.intervals.MOST_WORK", 60 * 3 * 19)
    found = evaluate(p, y, names(3), resamples=20).intervals
    assert found is not None and not found.ranks and "too many" in found.words
    assert np.isnan(found.overall["auroc"]).all()
    assert np.isfinite(found.overall["accuracy"]).all()


def test_of_many_classes_those_of_lowest_auroc_have_curves() -> None:
    p, y = tied(900, 14)
    found = evaluate(p, y, names(14))
    kept = [c.index for c in found.curves]
    assert kept == sorted(np.argsort(found.auroc)[:10].tolist())
    for c in found.curves:
        assert len(c.roc.x) <= 202 and (c.roc.x[-1], c.roc.y[-1]) == (1.0, 1.0)


def test_resamples_are_multinomial_and_repeatable() -> None:
    units = np.array([3, 3, 8, 8, 8, 1])
    blocks = list(resampled_weights(units, 6, resamples=40, seed=1))
    drawn = np.concatenate(blocks, axis=1)
    assert drawn.shape == (6, 40)
    assert (drawn[0] == drawn[1]).all() and (drawn[2] == drawn[4]).all()
    assert (drawn[[0, 2, 5]].sum(0) == 3).all()
    again = np.concatenate(list(resampled_weights(units, 6, resamples=40, seed=1)), axis=1)
    assert (drawn == again).all()
    with pytest.raises(ValueError, match="want one for each"):
        next(resampled_weights([1, 2], 3, resamples=1, seed=0))


def test_percentiles_leave_undefined_resamples_out() -> None:
    values = np.array([[1.0, np.nan], [2.0, np.nan], [np.nan, np.nan], [3.0, np.nan]])
    found = percentile_interval(values, 0.5)
    np.testing.assert_allclose(found[:, 0], [1.5, 2.5])
    assert np.isnan(found[:, 1]).all()
