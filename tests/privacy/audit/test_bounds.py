"""Lower bounds of epsilon from guesses, against published values and against simulated audits."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from scipy import special, stats

from sfumato.privacy.accounting.accountants import Step, delta_for, epsilon
from sfumato.privacy.audit import f_dp, one_run, order_statistics
from sfumato.privacy.audit.lower_bound import epsilon_bound, largest_rejected
from sfumato.privacy.audit.pairs import Array, Gaussian, History, Pair, family_of

HALF = History((Step(0.5, 1.0),))
MANY = History((Step(0.02, 1.5, 2000),))
SOME = History((Step(0.2, 1.5, 10),))
FULL = History((Step(1.0, 1.0),))


@cache
def thresholds(shift: float) -> tuple[tuple[int, int], ...]:
    """(guesses, correct) at the vertices of the ROC curve of JAX-Privacy's test of bounds.

    10 000 scores of canaries that are in lie at the quantiles of N(shift, 1), and as many of those
    that are out at the quantiles of N(0, 1).
    """
    out = stats.norm.ppf((np.arange(10_000) + 0.5) / 10_000)
    at = np.append(np.union1d(out, out + shift), np.inf)
    below_in = np.searchsorted(out + shift, at)
    below_out = np.searchsorted(out, at)
    hull: list[tuple[int, int]] = []
    for x, y in zip(below_in.tolist(), below_out.tolist(), strict=True):
        while len(hull) > 1 and _no_left_turn(hull[-2], hull[-1], (x, y)):
            hull.pop()
        hull.append((x, y))
    return tuple((20_000 - x - y, 10_000 - x) for x, y in hull)


def _no_left_turn(a: tuple[int, int], b: tuple[int, int], c: tuple[int, int]) -> bool:
    return (b[1] - a[1]) * (c[0] - b[0]) <= (c[1] - b[1]) * (b[0] - a[0])


def best_of_all(shift: float, rejected: Callable[[float, int, int, float], bool]) -> float:
    """The largest epsilon rejected at any threshold, each at its share of the significance."""
    counts = thresholds(shift)
    best = 0.0
    # Those of high precision first, so that most others are ruled out by one test.
    for guesses, correct in sorted(counts, key=lambda c: -c[1] / max(1, c[0] + 100)):
        if guesses and correct / guesses > special.expit(best) and rejected(
            best + 1e-6, guesses, correct, 0.05 / len(counts)
        ):  # fmt: skip
            best = largest_rejected(
                lambda e, g=guesses, c=correct: rejected(e, g, c, 0.05 / len(counts)),  # type: ignore[misc]
                most=30.0,
            )
    return best


@pytest.mark.parametrize(
    ("shift", "published"),
    [(1, 1.13346), pytest.param(2, 2.311945, marks=pytest.mark.slow), (4, 4.395568)],
)
def test_one_run_equals_the_values_of_jax_privacy(shift: float, published: float) -> None:
    def rejected(eps: float, guesses: int, correct: int, significance: float) -> bool:
        return one_run.p_value(
            canaries=20_000, guesses=guesses, correct=correct, epsilon=eps, delta=1e-6
        ) < significance  # fmt: skip

    assert best_of_all(shift, rejected) == pytest.approx(published, rel=1e-5)


@cache
def gaussian(eps: float) -> Gaussian:
    """The Gaussian pair with this epsilon at delta 1e-6."""
    mu = largest_rejected(lambda mu: Gaussian(mu).epsilon(1e-6) < eps, most=30, precision=1e-9)
    return Gaussian(mu)


@pytest.mark.parametrize(
    ("shift", "published"),
    [(1, 2.164749), pytest.param(2, 4.7218075, marks=pytest.mark.slow), (4, 9.133752)],
)
def test_f_dp_equals_the_values_of_jax_privacy(shift: float, published: float) -> None:
    def rejected(eps: float, guesses: int, correct: int, significance: float) -> bool:
        return f_dp.rejects(
            gaussian(eps), canaries=20_000, guesses=guesses, correct=correct,
            significance=significance,
        )  # fmt: skip

    assert best_of_all(shift, rejected) == pytest.approx(published, rel=1e-5)


@pytest.mark.parametrize(
    ("canaries", "guesses", "wrong", "published"),
    [
        (1_000, 100, 26, 1.1926), (1_000, 1_000, 401, 1.4140), (1_000, 100, 1, 5.9018),
        (10_000, 1_000, 97, 4.0141), (10_000, 5_000, 202, 9.6526), (100_000, 10_000, 967, 4.2662),
    ],
)  # fmt: skip
def test_order_statistics_equal_the_tables_of_xiang(
    canaries: int, guesses: int, wrong: int, published: float
) -> None:
    found = epsilon_bound(
        order_statistics.rejects,
        Gaussian,
        canaries=canaries,
        guesses=guesses,
        correct=guesses - wrong,
        delta=1e-5,
    )
    assert found == pytest.approx(published, abs=1.5e-4)


def test_order_statistics_of_a_sampled_step_equal_the_tables_of_xiang() -> None:
    # Xiang's tables have the noise fixed at 1 and search for the shift: the same pairs.
    found = epsilon_bound(
        order_statistics.rejects,
        family_of(HALF.steps),
        canaries=10_000,
        guesses=1_000,
        correct=758,
        delta=1e-5,
    )
    assert found == pytest.approx(3.1102, abs=5e-4)


@pytest.mark.parametrize(
    ("canaries", "guesses", "wrong", "published"),
    [(1_000, 100, 26, 0.6519), (10_000, 1_000, 97, 2.0466), (10_000, 5_000, 202, 3.0457)],
)
def test_one_run_equals_the_comparison_of_xiang(
    canaries: int, guesses: int, wrong: int, published: float
) -> None:
    found = one_run.epsilon_bound(
        canaries=canaries, guesses=guesses, correct=guesses - wrong, delta=1e-5
    )
    assert found == pytest.approx(published, abs=3e-4)


def test_one_run_is_a_binomial_tail_without_delta() -> None:
    found = one_run.p_value(canaries=50, guesses=10, correct=9, epsilon=1.0, delta=0.0)
    chance = math.e / (1 + math.e)
    assert found == pytest.approx(10 * chance**9 * (1 - chance) + chance**10)


@pytest.mark.parametrize("pair", [Gaussian(1.0), FULL, HALF, SOME], ids=str)
def test_the_law_of_wrong_guesses_is_that_of_simulated_audits(pair: Pair) -> None:
    canaries, guesses, audits = 400, 80, 2_000
    source = np.random.default_rng(0)
    counts = []
    for _ in range(audits):
        certainty, wrong = outcomes(pair, source, canaries)
        kept = np.argsort(-certainty, kind="stable")[:guesses]
        counts.append(int(wrong[kept].sum()))
    for level in (0.05, 0.5, 0.9):
        most = int(np.quantile(counts, level))
        expected = order_statistics.p_value(
            pair, canaries=canaries, guesses=guesses, correct=guesses - most
        )
        found = float(np.mean(np.array(counts) <= most))
        # Four standard deviations; a chance of 6e-5 for each of twelve comparisons.
        assert abs(found - expected) < 4 * math.sqrt(0.25 / audits)


def outcomes(pair: Pair, source: np.random.Generator, canaries: int) -> tuple[Array, Array]:
    """Certainty and error of the best guess for each canary, from losses drawn one by one."""
    coins = source.random(canaries) < 0.5
    if isinstance(pair, Gaussian):
        losses = pair.mu * (source.standard_normal(canaries) + pair.mu * (coins - 0.5))
    else:
        assert isinstance(pair, History)
        losses = np.zeros(canaries)
        for step in pair.steps:
            shape = (canaries, step.count)
            drawn = coins[:, None] & (source.random(shape) < step.q)
            x = step.noise_multiplier * source.standard_normal(shape) + drawn
            ratio = np.exp((x - 0.5) / step.noise_multiplier**2)
            losses += np.log(1 - step.q + step.q * ratio).sum(1)
    return np.abs(losses), (losses > 0) != coins


def test_a_composed_history_of_full_batches_is_a_gaussian_pair() -> None:
    composed, same = History((Step(1.0, 4.0, 16),)), Gaussian(1.0)
    at = np.linspace(0.0, 0.999, 50)
    np.testing.assert_allclose(composed.mean_error(at), same.mean_error(at), atol=2e-4)
    for mass in (0.01, 0.3, 0.9):
        assert composed.least(mass) == pytest.approx(same.least(mass), abs=2e-4)
    assert composed.share_in(0.2) == pytest.approx(0.5, abs=2e-3)
    assert composed.epsilon(1e-5) == pytest.approx(same.epsilon(1e-5), rel=1e-3)


@pytest.mark.parametrize("pair", [HALF, MANY, FULL], ids=str)
def test_a_history_never_claims_more_wrong_guesses_than_its_divergences_allow(
    pair: History,
) -> None:
    # TPR <= e^eps FPR + delta(eps) for every eps, with equality somewhere.
    false, true = pair.curve
    for eps in (0.0, 0.5, 1.5):
        gap = float(np.max(true - math.exp(eps) * false))
        assert gap == pytest.approx(delta_for(pair.steps, epsilon=eps), abs=2e-3)


def test_sampling_makes_guesses_that_a_canary_is_in_the_certain_ones() -> None:
    assert HALF.share_in(0.05) > 0.95
    assert 0.5 < MANY.share_in(0.2) < 0.55


def test_bounds_of_perfect_and_of_random_guesses() -> None:
    family = family_of((Step(0.1, 1.0, 50),))
    given = {"canaries": 500, "guesses": 100, "delta": 1e-5}
    for rejects in (f_dp.rejects, order_statistics.rejects):
        assert epsilon_bound(rejects, family, correct=50, **given) == 0.0
        few, many = (epsilon_bound(rejects, family, correct=c, **given) for c in (80, 100))
        assert 0 < few < many
    assert one_run.epsilon_bound(correct=50, **given) == 0.0
    assert one_run.epsilon_bound(correct=100, **given) > 3


def test_at_scale_one_a_family_is_the_claim_itself() -> None:
    steps = (Step(0.1, 1.0, 50),)
    assert family_of(steps)(1.0).epsilon(1e-5) == epsilon(steps, delta=1e-5)
    assert family_of(steps)(2.0).epsilon(1e-5) > epsilon(steps, delta=1e-5)
