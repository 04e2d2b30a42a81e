"""Epsilon of several examples together, beside computations that share nothing with it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy import integrate, stats

from sfumato.errors import UserError
from sfumato.privacy.accounting import accountants
from sfumato.privacy.accounting.accountants import Step, compose_pld
from sfumato.privacy.accounting.budget import noise_multiplier_for
from sfumato.privacy.accounting.group_privacy import SIZES, group_epsilon

DELTA = 1e-5


def densities(x: np.ndarray, q: float, sigma: float, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Of a step's output with the group, and without it."""
    chances = [math.comb(size, j) * q**j * (1 - q) ** (size - j) for j in range(size + 1)]
    with_group = sum(c * stats.norm.pdf(x, j, sigma) for j, c in enumerate(chances))
    return np.asarray(with_group), stats.norm.pdf(x, 0, sigma)


def divergence(q: float, sigma: float, size: int, epsilon: float) -> float:
    """The larger hockey-stick divergence of one step, by quadrature."""
    ends = -12 * sigma, size + 12 * sigma

    def one_way(x: float, turn: int) -> float:
        p, r = densities(np.array([x]), q, sigma, size)[::turn]
        return max(0.0, float(p[0] - math.exp(epsilon) * r[0]))

    return max(
        integrate.quad(one_way, *ends, args=(turn,), limit=2000, epsabs=1e-12)[0]
        for turn in (1, -1)
    )


@pytest.mark.parametrize(
    ("q", "sigma", "size"),
    [
        (0.1, 1.0, 2),
        (0.02, 0.7, 3),
        (1.0, 5.0, 3),
        *(pytest.param(*c, marks=pytest.mark.slow) for c in ((0.5, 2.0, 5), (0.3, 4.0, 10))),
    ],
)
def test_one_step_agrees_with_quadrature(q: float, sigma: float, size: int) -> None:
    found = group_epsilon([Step(q, sigma)], delta=DELTA, size=size)
    assert divergence(q, sigma, size, found) <= DELTA, "an upper bound"
    assert divergence(q, sigma, size, 0.995 * found) > DELTA, "and hardly more"


def test_two_steps_agree_with_a_double_sum() -> None:
    q, sigma, size = 0.2, 1.5, 3
    x = np.linspace(-11 * sigma, size + 11 * sigma, 4001)
    p, r = densities(x, q, sigma, size)
    cell = (x[1] - x[0]) ** 2
    both = np.outer(p, p), np.outer(r, r)

    def delta(epsilon: float) -> float:
        ways = (both, both[::-1])
        return max(cell * np.maximum(0, a - math.exp(epsilon) * b).sum() for a, b in ways)

    found = group_epsilon([Step(q, sigma, 2)], delta=DELTA, size=size)
    assert delta(found) <= DELTA < delta(0.995 * found)


@pytest.mark.parametrize("size", (2, 5))
def test_many_steps_agree_with_google_s_own(size: int) -> None:
    q, sigma, count = 0.05, 2.0, 60
    chances = [float(c) for c in stats.binom.pmf(range(size + 1), size, q)]
    theirs = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        sigma, list(range(size + 1)), chances, value_discretization_interval=5e-3
    )
    expected = theirs.self_compose(count).get_epsilon_for_delta(DELTA)
    found = group_epsilon([Step(q, sigma, count)], delta=DELTA, size=size)
    assert found == pytest.approx(expected, rel=0.01)


def test_k_times_epsilon_is_not_enough() -> None:
    """CIFAR-10 in batches of 4096, 1000 steps at epsilon 3."""
    q = 4096 / 50_000
    sigma = noise_multiplier_for(epsilon=3, delta=DELTA, q=q, steps=1000)
    found = [group_epsilon([Step(q, sigma, 1000)], delta=DELTA, size=k) for k in (1, *SIZES)]
    assert [round(value, 1) for value in found] == [3.0, 6.7, 11.0, 21.2, 55.8]
    assert all(value > k * 3 for k, value in zip(SIZES, found[1:], strict=True))


def test_one_example_is_no_group() -> None:
    steps = [Step(0.1, 1.3, 40), Step(0.2, 2.0, 7)]
    assert group_epsilon(steps, delta=DELTA, size=1) == accountants.epsilon(steps, delta=DELTA)


def test_full_batches_are_gaussian() -> None:
    found = group_epsilon([Step(1.0, 20.0, 16)], delta=DELTA, size=5)
    assert found == pytest.approx(accountants.epsilon([Step(1.0, 1.0)], delta=DELTA), rel=1e-2)
    assert found >= accountants.epsilon([Step(1.0, 1.0)], delta=DELTA) * (1 - 1e-9)


def test_epsilon_grows_with_the_size_of_the_group() -> None:
    steps = [Step(0.01, 1.0, 200)]
    found = [group_epsilon(steps, delta=DELTA, size=k) for k in (1, 2, 3, 4, 5, 8, 10)]
    assert found == sorted(found) and len(set(found)) == len(found)


def test_noise_plans_are_bounded_from_above_and_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = [Step(0.05, 2.0 + 0.025 * k) for k in range(40)]
    composed: list[tuple[Step, ...]] = []

    def compose(history: tuple[Step, ...], *given: Any, **named: Any) -> Any:
        composed.append(history)
        return compose_pld(history, *given, **named)

    monkeypatch.setattr(accountants, "compose_pld", compose)
    found = group_epsilon(plan, delta=DELTA, size=3)
    assert [len(history) for history in composed] == [16]
    least = group_epsilon([Step(0.05, 2.975, 40)], delta=DELTA, size=3)
    most = group_epsilon([Step(0.05, 2.0, 40)], delta=DELTA, size=3)
    exact = accountants.compose_pld(accountants.merge(plan), 4000, group=3)
    assert least < found < most
    assert 0.99 * exact.get_epsilon_for_delta(DELTA) <= found
    assert found <= 1.1 * exact.get_epsilon_for_delta(DELTA)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("q", "noise", "count"),
    [(0.5, 0.0, 1000), (0.5, 1e-5, 1000), (0.5, 0.01, 1000), (0.5, 0.1, 1000), (1e-3, 0.05, 1),
     (0.02, 0.2, 1)],
)  # fmt: skip
def test_too_much_to_compute_is_infinite(q: float, noise: float, count: int) -> None:
    assert group_epsilon([Step(q, noise, count)], delta=DELTA, size=10) == math.inf


def test_no_steps_cost_a_group_nothing() -> None:
    assert group_epsilon([], delta=DELTA, size=5) == 0
    with pytest.raises(UserError, match="at least one"):
        group_epsilon([], delta=DELTA, size=0)
