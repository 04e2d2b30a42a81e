"""Epsilon against dp_accounting used directly, Opacus' two accountants and the closed form."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
import warnings

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant, privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from sfumato.errors import UserError
from sfumato.privacy.accounting import accountants, loss_distribution
from sfumato.privacy.accounting.accountants import (
    ORDERS,
    Step,
    delta_for,
    epsilon,
    interval,
    joint_noise_multiplier,
    merge,
    to_event,
)
from thinning import with_slow

DELTA = 1e-5
GRID = [
    (4096 / 50_000, 9.13, 875),
    (16384 / 50_000, 54.83, 2000),
    (0.5, 7.0, 100),
    (0.02, 1.1, 500),
    (256 / 60_000, 2.0, 5000),
    (0.1, 3.0, 1),
]


def pld_directly(steps: list[Step], width: float) -> PLDAccountant:
    accountant = PLDAccountant(value_discretization_interval=width)
    accountant.compose(to_event(steps))
    return accountant


def opacus(name: str, steps: list[Step]):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus.accountants import PRVAccountant, RDPAccountant
    accountant = {"prv": PRVAccountant, "rdp": RDPAccountant}[name]()
    accountant.history = [(step.noise_multiplier, step.q, step.count) for step in steps]
    return accountant


@pytest.mark.parametrize("setting", GRID)
def test_pld_equals_dp_accounting_with_its_defaults(setting):
    steps = [Step(*setting)]
    assert interval(steps) == 1e-4, "the default of PLDAccountant"
    direct = pld_directly(steps, 1e-4)
    assert epsilon(steps, delta=DELTA) == pytest.approx(direct.get_epsilon(DELTA), abs=1e-6)
    assert delta_for(steps, epsilon=1.0) == pytest.approx(
        direct.get_delta(1.0), rel=1e-6, abs=1e-12
    )


@pytest.mark.parametrize("setting", [(0.001, 10.0, 10_000), (0.2, 0.4, 3), (1.0, 5.0, 30)])
def test_pld_equals_dp_accounting_on_the_interval_it_states(setting):
    steps = [Step(*setting)]
    direct = pld_directly(steps, interval(steps)).get_epsilon(DELTA)
    assert epsilon(steps, delta=DELTA) == pytest.approx(direct, abs=1e-6)


def test_finer_grid_where_the_default_of_dp_accounting_is_far_off():
    steps = [Step(0.001, 10.0, 100_000)]
    finest = pld_directly(steps, 2e-6).get_epsilon(DELTA)
    assert finest <= epsilon(steps, delta=DELTA) <= finest * 1.001
    assert pld_directly(steps, 1e-4).get_epsilon(DELTA) > finest * 1.05


@pytest.mark.parametrize("setting", GRID)
def test_rdp_equals_dp_accounting(setting):
    steps = [Step(*setting)]
    direct = RdpAccountant(ORDERS)
    direct.compose(to_event(steps))
    ours = epsilon(steps, delta=DELTA, accountant="rdp")
    assert ours == pytest.approx(direct.get_epsilon(DELTA), rel=1e-12)
    assert delta_for(steps, epsilon=1.0, accountant="rdp") == direct.get_delta(1.0)


@pytest.mark.parametrize("setting", [*GRID, (0.005, 0.8, 20_000), (0.01, 0.7, 100)])
def test_rdp_within_1e_3_of_opacus_with_the_same_orders(setting):
    steps = [Step(*setting)]
    theirs = opacus("rdp", steps).get_epsilon(DELTA, alphas=list(ORDERS))
    assert epsilon(steps, delta=DELTA, accountant="rdp") == pytest.approx(theirs, abs=1e-3)


def test_rdp_of_large_batches_with_little_noise_is_above_that_of_opacus():
    """There dp_accounting bounds the series of a fractional order by its absolute values."""
    steps = [Step(0.3, 1.2, 100)]
    theirs = opacus("rdp", steps).get_epsilon(DELTA, alphas=list(ORDERS))
    assert theirs <= epsilon(steps, delta=DELTA, accountant="rdp") <= 1.02 * theirs


@pytest.mark.parametrize("setting", with_slow([s for s in GRID if s[2] < 1000], GRID[0], GRID[2]))
def test_pld_within_1e_3_of_opacus_prv(setting):
    """PRV's upper bound is its estimate plus the error it was asked for, here half of 1e-3."""
    steps = [Step(*setting)]
    theirs = opacus("prv", steps).get_epsilon(DELTA, eps_error=5e-4, delta_error=DELTA / 1e4)
    assert epsilon(steps, delta=DELTA) == pytest.approx(theirs, abs=1e-3)


HISTORY = [Step(0.1, 2.0, 30), Step(0.1, 3.0, 50), Step(0.05, 2.0, 20), Step(0.1, 2.0, 10)]


def test_heterogeneous_history_equals_direct_composition():
    direct = pld_directly(HISTORY, interval(HISTORY)).get_epsilon(DELTA)
    assert epsilon(HISTORY, delta=DELTA) == pytest.approx(direct, abs=1e-6)
    by_rdp = RdpAccountant(ORDERS)
    for step in HISTORY:
        by_rdp.compose(step.to_event())
    ours = epsilon(HISTORY, delta=DELTA, accountant="rdp")
    assert ours == pytest.approx(by_rdp.get_epsilon(DELTA), rel=1e-9)


@pytest.mark.slow
def test_heterogeneous_history_is_within_1e_3_of_opacus_prv():
    two = HISTORY[:2]
    theirs = opacus("prv", two).get_epsilon(DELTA, eps_error=5e-4, delta_error=DELTA / 1e3)
    assert epsilon(two, delta=DELTA) == pytest.approx(theirs, abs=1e-3)


def test_merging_counts_equal_steps_and_changes_no_cost():
    assert merge(HISTORY) == (Step(0.1, 2.0, 40), Step(0.1, 3.0, 50), Step(0.05, 2.0, 20))
    one_by_one = [Step(0.1, 2.0)] * 40 + [Step(0.05, 2.0)] * 20 + [Step(0.1, 3.0)] * 50
    assert epsilon(one_by_one, delta=DELTA) == pytest.approx(
        epsilon(HISTORY, delta=DELTA), abs=1e-9
    )


def analytic_gaussian_delta(mu: float, eps: float) -> float:
    """Balle and Wang 2018, for sensitivity / deviation = mu."""
    return norm.cdf(mu / 2 - eps / mu) - math.exp(eps) * norm.cdf(-mu / 2 - eps / mu)


@pytest.mark.parametrize(("noise", "count"), [(1.0, 1), (0.7, 1), (5.0, 1), (30.0, 100), (4.0, 7)])
def test_full_batch_is_the_analytic_gaussian_mechanism(noise, count):
    steps = [Step(1.0, noise, count)]
    eps = epsilon(steps, delta=DELTA)
    exact = analytic_gaussian_delta(math.sqrt(count) / noise, eps)
    assert exact <= DELTA * (1 + 1e-9), "epsilon must be an upper bound"
    assert exact == pytest.approx(DELTA, rel=1e-3)
    pessimistic = delta_for(steps, epsilon=1.0)
    assert pessimistic == pytest.approx(
        analytic_gaussian_delta(math.sqrt(count) / noise, 1.0), rel=1e-3
    )


def test_one_subsampled_step_is_the_closed_form():
    """Removing is worst at small delta: amplification gives epsilon = log(1 + q (e^e0 - 1))."""
    q, noise = 0.01, 1.0
    eps = epsilon([Step(q, noise)], delta=1e-6)
    inner = math.log(1 + (math.exp(eps) - 1) / q)
    assert q * analytic_gaussian_delta(1 / noise, inner) == pytest.approx(1e-6, rel=1e-3)


@pytest.mark.parametrize(
    "setting", [(0.08, 9.0, 1e-4), (0.5, 0.8, 1e-3), (1e-4, 1.0, 1e-3), (1, 2, 1e-3)]
)
def test_one_step_is_the_distribution_of_dp_accounting(setting):
    q, noise, width = setting
    theirs = privacy_loss_distribution.from_gaussian_mechanism(
        noise, sampling_prob=q, value_discretization_interval=width
    )
    ours = loss_distribution.one_step(q, noise, width)
    at = np.linspace(-1, 5, 61)
    np.testing.assert_allclose(
        ours.get_delta_for_epsilon(at), theirs.get_delta_for_epsilon(at), rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_an_empty_history_is_free_and_one_without_noise_costs_everything(accountant):
    assert epsilon([], delta=DELTA, accountant=accountant) == 0
    assert delta_for([], epsilon=1, accountant=accountant) == 0
    silent = [Step(0.1, 5.0, 10), Step(0.1, 0.0)]
    assert epsilon(silent, delta=DELTA, accountant=accountant) == math.inf
    assert delta_for(silent, epsilon=1, accountant=accountant) == 1
    absurd = [Step(0.5, 0.01, 10**6)]
    assert 1e3 < epsilon(absurd, delta=DELTA, accountant=accountant) < math.inf
    assert delta_for(absurd, epsilon=1.0, accountant=accountant) == pytest.approx(1)


def test_epsilon_and_delta_are_inverse():
    steps = [Step(0.05, 2.0, 300)]
    assert delta_for(steps, epsilon=epsilon(steps, delta=1e-6)) == pytest.approx(1e-6, rel=1e-6)


def test_steps_become_events_of_dp_accounting():
    gaussian = dp_accounting.GaussianDpEvent(2.0)
    sampled = dp_accounting.PoissonSampledDpEvent(0.1, gaussian)
    assert Step(1.0, 2.0).to_event() == gaussian
    assert Step(0.1, 2.0).to_event() == sampled
    assert Step(0.1, 2.0, 7).to_event() == dp_accounting.SelfComposedDpEvent(sampled, 7)


def test_two_stage_composition_of_very_many_steps():
    base = loss_distribution.one_step(0.01, 20.0, 1e-4)
    whole = base.self_compose(100_500).get_epsilon_for_delta(DELTA)
    staged = accountants._self_compose(base, 100_500).get_epsilon_for_delta(DELTA)
    assert staged == pytest.approx(whole, rel=1e-6)


def test_rounding_errors_never_make_a_step_free():
    """dp_accounting's own divergences are negative here, which it takes for epsilon = 0."""
    enormous = Step(0.1, 2e7, 100)
    direct = RdpAccountant(ORDERS)
    direct.compose(enormous.to_event())
    assert direct.get_epsilon(1e-12) == 0
    assert epsilon([enormous], delta=1e-12, accountant="rdp") > 0


def test_releases_from_one_draw_are_one_gaussian():
    joint = joint_noise_multiplier(3.0, 4.0)
    assert joint == pytest.approx(2.4)
    together = epsilon([Step(1.0, joint)], delta=DELTA)
    assert epsilon([Step(1.0, 3.0), Step(1.0, 4.0)], delta=DELTA) == pytest.approx(
        together, abs=1e-3
    )
    assert joint_noise_multiplier(3.0, 0.0) == 0
    assert joint_noise_multiplier(3.0) == pytest.approx(3.0)


def test_no_warning_of_orders_that_do_not_converge(caplog):
    logger = logging.getLogger("absl")
    filters = list(logger.filters)
    with caplog.at_level(logging.WARNING, logger="absl"):
        logger.addHandler(caplog.handler)
        try:
            RdpAccountant(ORDERS).compose(Step(0.5, 1.37, 10).to_event())
            assert "failed to converge" in caplog.text, "dp_accounting itself warns here"
            caplog.clear()
            assert epsilon([Step(0.5, 1.37, 10)], delta=DELTA, accountant="rdp") > 0
            assert caplog.text == ""
        finally:
            logger.removeHandler(caplog.handler)
    assert logger.filters == filters


base = st.fixed_dictionaries(
    {
        "q": st.floats(0.002, 0.4),
        "noise": st.floats(0.9, 12.0),
        "steps": st.integers(1, 400),
        "delta": st.sampled_from([1e-6, 1e-5, 1e-4]),
    }
)
MORE_PRIVATE = {
    "q": lambda v, f: v * f,
    "noise": lambda v, f: v / f,
    "steps": lambda v, f: max(1, int(v * f)),
    "delta": lambda v, f: min(0.5, v / f),
}


@pytest.mark.parametrize("argument", list(MORE_PRIVATE))
@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(setting=base, factor=st.floats(0.3, 0.98))
def test_epsilon_is_monotone_in_each_argument(accountant, argument, setting, factor):
    def spent(q, noise, steps, delta):
        return epsilon([Step(q, noise, steps)], delta=delta, accountant=accountant)

    safer = {**setting, argument: MORE_PRIVATE[argument](setting[argument], factor)}
    assert spent(**safer) <= spent(**setting) * (1 + 2e-3) + 1e-9


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (lambda: Step(0.0, 1.0), "above 0 and at most 1"),
        (lambda: Step(1.2, 1.0), "above 0 and at most 1"),
        (lambda: Step(math.nan, 1.0), "above 0 and at most 1"),
        (lambda: Step(0.1, -1.0), "at least 0"),
        (lambda: Step(0.1, math.inf), "finite"),
        (lambda: Step(0.1, 1.0, 0), "at least 1"),
        (lambda: epsilon([Step(0.1, 1.0)], delta=0.0), "at least 1e-12 and below 1"),
        (lambda: epsilon([Step(0.1, 1.0)], delta=1.0), "at least 1e-12 and below 1"),
        (lambda: epsilon([Step(0.1, 1.0)], delta=1e-5, accountant="pdl"), "Did you mean 'pld'"),
        (lambda: delta_for([Step(0.1, 1.0)], epsilon=-1.0), "at least 0"),
    ],
)
def test_mistakes_are_refused_with_a_sentence(mistake, words):
    with pytest.raises(UserError, match=words):
        mistake()


def test_accounting_does_not_import_torch():
    code = (
        "import sys, sfumato.privacy.accounting, sfumato.privacy.accounting.budget;"
        "print('torch' in sys.modules, 'matplotlib' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
