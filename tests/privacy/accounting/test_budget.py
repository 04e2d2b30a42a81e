"""Noise, steps, batch and curves: every answer fits, its neighbour does not, and stays as it was.

The answers recorded here are those of version 0.1.0: a run that was begun with it is resumed only
if its noise comes out the same.
"""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sfumato.errors import UserError
from sfumato.privacy.accounting.accountants import Step, epsilon
from sfumato.privacy.accounting.budget import (
    CURVE_POINTS,
    batch_for,
    check_delta,
    curve,
    noise_multiplier_for,
    steps_for,
)
from sfumato.privacy.accounting.noise_schedule import decaying
from thinning import with_slow

DELTA = 1e-5
BOTH = pytest.mark.parametrize("accountant", ["pld", "rdp"])
BEFORE = {
    "": (),
    "earlier": (Step(0.1, 1.5, 20),),
    "little": (Step(0.002, 1.1, 500),),
    "two": (Step(0.01, 0.9, 300), Step(1.0, 8.0, 2)),
}


def recorded(*cases: tuple) -> pytest.MarkDecorator:
    """Cases with their answers; those that end in `slow` take long."""
    return pytest.mark.parametrize(
        "case",
        [pytest.param(c[:-1], marks=pytest.mark.slow) if c[-1] == "slow" else c for c in cases],
    )


@recorded(
    ("rdp", 3.0, 4096 / 50_000, 875, "", 3.743),
    ("rdp", 1.0, 0.2, 100, "", 8.278),
    ("rdp", 8.0, 256 / 1437, 200, "", 1.823),
    ("rdp", 0.05, 0.05, 50, "", 23.18),
    ("rdp", 60.0, 0.05, 50, "", 0.3123),
    ("rdp", 2.0, 1.0, 40, "", 13.6),
    ("rdp", 4.0, 1 / 60_000, 100_000, "", 0.4077),
    ("rdp", 1.0, 0.001, 1, "", 0.7943),
    ("rdp", 3.0, 4096 / 50_000, 875, "earlier", 4.657),
    ("rdp", 3.0, 4096 / 50_000, 875, "little", 3.753),
    ("rdp", 8.0, 256 / 1437, 200, "earlier", 1.86),
    ("rdp", 60.0, 0.05, 50, "earlier", 0.3124, "slow"),
    ("rdp", 2.0, 1.0, 40, "earlier", 65.19),
    ("rdp", 2.0, 1.0, 40, "little", 13.68),
    ("rdp", 4.0, 1 / 60_000, 100_000, "earlier", 0.4154),
    ("rdp", 1.0, 0.001, 1, "little", 0.7987),
    ("pld", 3.0, 4096 / 50_000, 875, "", 3.49),
    ("pld", 1.0, 0.2, 100, "", 7.625),
    ("pld", 8.0, 256 / 1437, 200, "", 1.715, "slow"),
    ("pld", 0.05, 0.05, 50, "", 20.64),
    ("pld", 60.0, 0.05, 50, "", 0.2734, "slow"),
    ("pld", 2.0, 1.0, 40, "", 12.61),
    ("pld", 4.0, 1 / 60_000, 100_000, "", 0.3694, "slow"),
    ("pld", 1.0, 0.001, 1, "", 0.4292),
    ("pld", 3.0, 4096 / 50_000, 875, "earlier", 4.084, "slow"),
    ("pld", 3.0, 4096 / 50_000, 875, "little", 3.498, "slow"),
    ("pld", 8.0, 256 / 1437, 200, "earlier", 1.745, "slow"),
    ("pld", 8.0, 256 / 1437, 200, "little", 1.715, "slow"),
    ("pld", 2.0, 1.0, 40, "earlier", 22.49, "slow"),
    ("pld", 2.0, 1.0, 40, "little", 12.68),
)
def test_noise_is_as_recorded(case):
    accountant, target, q, steps, before, answer = case
    assert answer == noise_multiplier_for(
        epsilon=target, delta=DELTA, q=q, steps=steps, before=BEFORE[before], accountant=accountant
    )


@recorded(
    ("rdp", 1.0, 1.0, 30, "", 2.0, (31.8457, 16.6759)),
    ("pld", 1.0, 1.0, 30, "", 2.0, (29.3735, 15.3814)),
    ("rdp", 3.0, 0.08, 875, "", 5.0, (9.58164, 2.19172), "slow"),
    ("rdp", 3.0, 0.08, 875, "", 0.5, (2.78745, 5.26165), "slow"),
    ("rdp", 8.0, 0.25, 7, "", 3.0, (1.64659, 0.64213), "slow"),
    ("rdp", 6.0, 0.1, 100, "earlier", 2.0, (1.80331, 0.953062), "slow"),
    ("rdp", 4.0, 0.1, 60, "two", 4.0, (3.52632, 0.989539), "slow"),
    ("pld", 3.0, 0.08, 875, "", 5.0, (8.93925, 2.04478), "slow"),
    ("pld", 3.0, 0.08, 875, "", 0.5, (2.59908, 4.90608), "slow"),
    ("pld", 8.0, 0.25, 7, "", 3.0, (1.52825, 0.595981), "slow"),
    ("pld", 6.0, 0.1, 100, "earlier", 2.0, (1.67978, 0.887777), "slow"),
)
def test_noise_of_a_schedule_is_as_recorded(case):
    accountant, target, q, steps, before, ratio, answer = case
    course = decaying(steps, ratio)
    factor = noise_multiplier_for(
        epsilon=target, delta=DELTA, q=q, steps=steps, before=BEFORE[before], schedule=course,
        accountant=accountant,
    )  # fmt: skip
    found = course.scaled(factor)
    assert (found.multipliers[0], found.multipliers[-1]) == answer
    history = [*BEFORE[before], *found.history(q)]
    assert 0.99 * target < epsilon(history, delta=DELTA, accountant=accountant) <= target


@recorded(
    ("rdp", 3.0, 0.08, 3.5, None, "", 795),
    ("rdp", 1.0, 0.2, 9.0, None, "", 119),
    ("rdp", 8.0, 0.01, 0.6, None, "", 789),
    ("rdp", 2.0, 1.0, 20.0, None, "", 86),
    ("rdp", 1.0, 0.1, 2.0, None, "", 11),
    ("rdp", 1.0, 0.1, 2.8, None, "", 35),
    ("rdp", 3.0, 0.2, 2.0, 50, "earlier", 19),
    ("rdp", 6.0, 0.2, 2.0, 10, "earlier", 10),
    ("rdp", 4.0, 0.1, 3.0, 5000, "earlier", 488),
    ("rdp", 4.0, 0.01, 1.0, 9000, "two", 3222),
    ("pld", 3.0, 0.08, 3.5, None, "", 924),
    ("pld", 1.0, 0.2, 9.0, None, "", 141),
    ("pld", 8.0, 0.01, 0.6, None, "", 1202, "slow"),
    ("pld", 2.0, 1.0, 20.0, None, "", 100),
    ("pld", 0.5, 0.001, 1.0, None, "", 10_989, "slow"),
    ("pld", 1.0, 0.1, 2.0, None, "", 16),
    ("pld", 1.0, 0.1, 2.8, None, "", 44),
    ("pld", 3.0, 0.2, 2.0, 50, "earlier", 26, "slow"),
    ("pld", 6.0, 0.2, 2.0, 10, "earlier", 10),
    ("pld", 4.0, 0.1, 3.0, 5000, "earlier", 592, "slow"),
    ("pld", 4.0, 0.01, 1.0, 9000, "two", 3949, "slow"),
)
def test_steps_are_as_recorded(case):
    accountant, target, q, noise, most, before, answer = case
    assert answer == steps_for(
        epsilon=target, delta=DELTA, q=q, noise_multiplier=noise, before=BEFORE[before], most=most,
        accountant=accountant,
    )  # fmt: skip


@recorded(
    ("rdp", 40, "", 3.0, 40, "slow"),
    ("rdp", 400, "", 3.0, 195),
    ("rdp", 300, "earlier", 0.5, 300),
    ("pld", 400, "", 3.0, 214, "slow"),
)
def test_steps_of_a_schedule_are_as_recorded(case):
    accountant, most, before, ratio, answer = case
    course = decaying(most, ratio)
    assert answer == steps_for(
        epsilon=3.0, delta=DELTA, q=0.1, noise_multiplier=course.scaled(3 / course.multipliers[0]),
        before=BEFORE[before], accountant=accountant,
    )  # fmt: skip


@recorded(
    ("rdp", 1.0, 50_000, 875, 9.13, 3777),
    ("rdp", 3.0, 1437, 100, 6.0, 563),
    ("rdp", 4.0, 9469, 1000, 1.0, 176),
    ("rdp", 8.0, 500, 10, 100.0, 500),
    ("rdp", 0.5, 60_000, 2000, 0.9, 1),
    ("pld", 1.0, 50_000, 875, 9.13, 4100),
    ("pld", 3.0, 1437, 100, 6.0, 607),
    ("pld", 4.0, 9469, 1000, 1.0, 193, "slow"),
    ("pld", 8.0, 500, 10, 100.0, 500),
    ("pld", 0.5, 60_000, 2000, 0.9, 106, "slow"),
)
def test_batches_are_as_recorded(case):
    accountant, target, examples, steps, noise, answer = case
    assert answer == batch_for(
        epsilon=target, delta=DELTA, examples=examples, steps=steps, noise_multiplier=noise,
        accountant=accountant,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("before", "noise", "sentence"),
    [
        (
            "",
            0.3,
            "Not even one step fits into epsilon = 1.5: with a sampling probability of 0.1 and a "
            "noise multiplier of 0.3 it costs 16.33. Raise the noise or epsilon, or lower the "
            "batch.",
        ),
        (
            "",
            1e5,
            "More than 10000000 steps fit into epsilon = 1.5: a noise multiplier of 100000 is far "
            "more than this budget asks for. Lower the noise.",
        ),
        (
            "earlier",
            3.0,
            "The start has already spent epsilon 1.963 on these images (at delta = 1e-05), which "
            "leaves nothing of the budget of 1.5. Raise epsilon, or start from a run that spent "
            "less.",
        ),
        (
            "little",
            0.4,
            "Not even one step fits into what the start has left of epsilon = 1.5: with a sampling "
            "probability of 0.1 and a noise multiplier of 0.4 it costs 10.5 with it. Raise the "
            "noise or epsilon, or lower the batch.",
        ),
    ],
)
def test_refusals_say_what_to_do(before, noise, sentence):
    with pytest.raises(UserError) as caught:
        steps_for(
            epsilon=1.5, delta=DELTA, q=0.1, noise_multiplier=noise, before=BEFORE[before],
            accountant="rdp",
        )  # fmt: skip
    assert str(caught.value) == sentence


def test_a_budget_of_which_little_is_left_is_refused():
    spent = epsilon(BEFORE["earlier"], delta=DELTA, accountant="rdp")
    with pytest.raises(UserError, match="what is left is too little for 20 steps"):
        noise_multiplier_for(
            epsilon=spent * (1 + 1e-9), delta=DELTA, q=1.0, steps=20, before=BEFORE["earlier"],
            accountant="rdp",
        )  # fmt: skip


@recorded(
    ("rdp", 4.0, range(7, 700, 7), "", 1, (0.293549899, 3.048487, 198.391911)),
    ("rdp", 2.5, range(4, 101, 4), "earlier", 1, (1.99320782, 2.67645059, 58.7885071)),
    ("rdp", 3.0, (10, 50, 90, 100), "", 2.0, (0.697346355, 2.61944146, 7.07487652)),
    ("rdp", 3.0, (10, 50, 90, 100), "earlier", 2.0, (2.05874669, 3.16111489, 10.5340499)),
    ("pld", 4.0, (1, 10, 100), "", 1, (0.110385627, 0.982853507, 1.39823535)),
    ("pld", 2.5, range(4, 101, 4), "earlier", 1, (1.72316162, 2.39789411, 51.9762816), "slow"),
    ("pld", 3.0, (10, 50, 90, 100), "", 2.0, (0.616834474, 2.35561591, 6.35112643), "slow"),
    ("pld", 3.0, (10, 50, 90, 100), "earlier", 2.0, (1.7891851, 2.84728304, 9.37948479), "slow"),
)
def test_curves_are_as_recorded(case):
    accountant, noise, counts, before, ratio, answer = case
    chosen = noise if ratio == 1 else decaying(100, ratio).scaled(noise)
    found = curve(
        chosen, list(counts), q=0.1, delta=DELTA, before=BEFORE[before], accountant=accountant
    )
    assert (found[0], found[-1], sum(found)) == pytest.approx(answer, rel=1e-8)


@pytest.mark.parametrize("ratio", [1.0, 2.0])
@BOTH
def test_the_curve_bounds_epsilon_from_above(accountant, ratio):
    noise, counts = 2.5, [0, 20, 60, 100]
    schedule = decaying(100, ratio, pieces=3).scaled(noise)
    for before in ((), BEFORE["earlier"]):
        found = curve(
            noise if ratio == 1 else schedule, counts, q=0.2, delta=DELTA, before=before,
            accountant=accountant,
        )  # fmt: skip
        assert found == sorted(found)
        for place in (0, 1, 3):
            history = [*before, *schedule.history(0.2, counts[place])]
            exact = epsilon(history, delta=DELTA, accountant=accountant)
            assert exact <= found[place] * (1 + 1e-9) <= exact * (1.15 if ratio == 1 else 2) + 1e-9
        assert found[-1] == exact


@BOTH
def test_curve_is_monotone_tight_and_above_epsilon(accountant):
    counts = [100, 1, 0, 40, 7, 40]
    values = curve(1.5, counts, q=0.1, delta=DELTA, accountant=accountant)
    exact = [
        epsilon([Step(0.1, 1.5, n)] if n else [], delta=DELTA, accountant=accountant)
        for n in counts
    ]
    assert values[0] == exact[0], "the last is not an approximation"
    for value, true in zip(values, exact, strict=True):
        assert true - 1e-9 <= value <= true * 1.001 + 1e-9


def test_a_curve_of_many_counts_is_interpolated_from_above():
    counts = list(range(1, 201))
    values = curve(4.0, counts, q=0.05, delta=DELTA)
    assert all(a <= b for a, b in pairwise(values))
    for n in (1, 77, 133, 200):
        assert epsilon([Step(0.05, 4.0, n)], delta=DELTA) <= values[n - 1] + 1e-9
    assert len(set(values)) <= CURVE_POINTS
    assert curve(0.0, [1, 2], q=0.05, delta=DELTA) == [math.inf, math.inf]
    assert curve(4.0, [], q=0.05, delta=DELTA) == []
    with pytest.raises(UserError, match="at least 0"):
        curve(1.0, [-1], q=0.1, delta=DELTA)


@pytest.mark.parametrize(
    ("batch", "steps", "eps", "published"),
    [
        (4096, 875, 1, 9.13),
        pytest.param(4096, 875, 2, 4.93, marks=pytest.mark.slow),
        (4096, 875, 3, 3.49),
        (4096, 875, 8, 1.64),
        (4096, 2500, 4, 4.51),
        (8192, 2000, 2, 14.67),
        pytest.param(8192, 2000, 8, 4.47, marks=pytest.mark.slow),
        pytest.param(16384, 2000, 1, 54.83, marks=pytest.mark.slow),
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
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
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
@pytest.mark.parametrize("target", with_slow([1e-3, 0.05, 60.0, 400.0], 0.05, 60.0))
def test_noise_for_an_extreme_budget_stays_within_it(accountant, target):
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
