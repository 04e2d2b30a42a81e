"""Noise, steps and batch: every answer fits, its neighbour does not, known values come out."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sfumato.errors import UserError
from sfumato.privacy.accounting.accountants import Step, epsilon
from sfumato.privacy.accounting.calibration import (
    batch_for,
    check_delta,
    noise_multiplier_for,
    steps_for,
)

DELTA = 1e-5
BOTH = pytest.mark.parametrize("accountant", ["pld", "rdp"])


@pytest.mark.parametrize(
    ("batch", "steps", "eps", "published"),
    [
        (4096, 875, 1, 9.13),
        (4096, 875, 2, 4.93),
        (4096, 875, 3, 3.49),
        (4096, 875, 8, 1.64),
        (4096, 2500, 4, 4.51),
        (8192, 2000, 2, 14.67),
        (8192, 2000, 8, 4.47),
        (16384, 2000, 1, 54.83),
        (16384, 2000, 6, 11.23),
    ],
)
def test_noise_of_known_settings_for_50_000_examples(batch, steps, eps, published):
    """The known values are from a coarser grid, which costs up to 0.3 % at epsilon 1."""
    noise = noise_multiplier_for(epsilon=eps, delta=DELTA, q=batch / 50_000, steps=steps)
    assert noise <= published + 0.01
    assert noise == pytest.approx(published, rel=0.003, abs=0.006)


def unit(value: float) -> float:
    """One in the last of four significant digits."""
    return 10.0 ** (math.floor(math.log10(value)) - 3)


@BOTH
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    target=st.floats(0.2, 12.0),
    delta=st.sampled_from([1e-6, 1e-5, 1e-3]),
    q=st.one_of(st.floats(0.002, 0.6), st.just(1.0)),
    steps=st.integers(1, 2000),
)
def test_noise_fits_and_a_little_less_does_not(accountant, target, delta, q, steps):
    noise = noise_multiplier_for(
        epsilon=target, delta=delta, q=q, steps=steps, accountant=accountant
    )

    def spent(sigma: float) -> float:
        return epsilon([Step(q, sigma, steps)], delta=delta, accountant=accountant)

    assert spent(noise) <= target
    assert spent(noise - unit(noise)) > target


@BOTH
@pytest.mark.parametrize(
    ("target", "q", "noise"),
    [(1.0, 0.08, 9.13), (3.0, 0.5, 6.0), (8.0, 0.02, 0.8), (2.0, 1.0, 30.0), (0.3, 0.001, 10.0)],
)
def test_steps_are_exact(accountant, target, q, noise):
    count = steps_for(
        epsilon=target, delta=DELTA, q=q, noise_multiplier=noise, accountant=accountant
    )
    fits, crosses = (
        epsilon([Step(q, noise, n)], delta=DELTA, accountant=accountant) for n in (count, count + 1)
    )
    assert fits <= target < crosses


@pytest.mark.parametrize(
    ("target", "noise", "known"),
    [(2, 6, 1125), (3, 5, 1609), (4, 4, 1689), (6, 3, 1868), (8, 3, 3066)],
)
def test_known_numbers_of_steps_by_rdp(target, noise, known):
    """De et al. 2022, WRN-16-4 on CIFAR-10 with an expected batch of 4096."""
    q = 4096 / 50_000
    assert known == steps_for(
        epsilon=target, delta=DELTA, q=q, noise_multiplier=noise, accountant="rdp"
    )


@BOTH
@pytest.mark.parametrize(
    ("target", "examples", "steps", "noise"),
    [(1.0, 50_000, 875, 9.13), (3.0, 1437, 100, 6.0), (4.0, 9469, 1000, 1.0)],
)
def test_batch_is_exact(accountant, target, examples, steps, noise):
    batch = batch_for(
        epsilon=target,
        delta=DELTA,
        examples=examples,
        steps=steps,
        noise_multiplier=noise,
        accountant=accountant,
    )
    fits, crosses = (
        epsilon([Step(b / examples, noise, steps)], delta=DELTA, accountant=accountant)
        for b in (batch, batch + 1)
    )
    assert fits <= target < crosses


def test_the_whole_data_set_may_fit():
    assert batch_for(epsilon=8, delta=DELTA, examples=500, steps=10, noise_multiplier=100) == 500


@BOTH
@pytest.mark.parametrize("target", [1e-3, 0.05, 60.0, 400.0])
def test_extreme_budgets(accountant, target):
    noise = noise_multiplier_for(
        epsilon=target, delta=DELTA, q=0.05, steps=50, accountant=accountant
    )
    assert epsilon([Step(0.05, noise, 50)], delta=DELTA, accountant=accountant) <= target


GOOD = {
    noise_multiplier_for: {"epsilon": 1.0, "delta": 1e-5, "q": 0.1, "steps": 10},
    steps_for: {"epsilon": 1.0, "delta": 1e-5, "q": 0.1, "noise_multiplier": 2.0},
    batch_for: {
        "epsilon": 1.0,
        "delta": 1e-5,
        "examples": 100,
        "steps": 10,
        "noise_multiplier": 2.0,
    },
}


@pytest.mark.parametrize(
    ("solve", "wrong", "words"),
    [
        (noise_multiplier_for, {"epsilon": 0.0}, "above 0"),
        (noise_multiplier_for, {"epsilon": math.inf}, "finite"),
        (noise_multiplier_for, {"epsilon": math.nan}, "above 0"),
        (noise_multiplier_for, {"delta": 0.0}, "at least 1e-12 and below 1"),
        (noise_multiplier_for, {"q": 0.0}, "at most 1"),
        (noise_multiplier_for, {"q": 1.5}, "at most 1"),
        (noise_multiplier_for, {"steps": 0}, "from 1 to"),
        (noise_multiplier_for, {"accountant": "gdp"}, "'pld' or 'rdp'"),
        (steps_for, {"epsilon": -1.0}, "above 0"),
        (steps_for, {"noise_multiplier": -1.0}, "at least 0"),
        (steps_for, {"noise_multiplier": 0.0}, "Not even one step"),
        (steps_for, {"noise_multiplier": 0.3}, "Not even one step"),
        (steps_for, {"noise_multiplier": 1e5}, "More than"),
        (batch_for, {"examples": 0}, "above 0"),
        (batch_for, {"steps": 0}, "from 1 to"),
        (batch_for, {"noise_multiplier": 0.1, "steps": 1000}, "Not even an expected batch of 1"),
    ],
)
def test_impossible_requests_are_refused_with_a_sentence(solve, wrong, words):
    with pytest.raises(UserError, match=words):
        solve(**{**GOOD[solve], **wrong})


def test_delta_must_be_below_one_over_n():
    check_delta(1e-5, 50_000)
    with pytest.raises(UserError, match=r"not below 1/N.*Use 1e-05 or less"):
        check_delta(2e-5, 50_000)
    with pytest.raises(UserError, match=r"Use 1e-06 or less"):
        check_delta(1e-5, 100_000)
    with pytest.raises(UserError, match="at least 1e-12 and below 1"):
        check_delta(0.0, 10)
