"""The cost of the best of several runs, beside dp_accounting's, and the number of runs drawn."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import rdp_privacy_accountant
from scipy import stats

from sfumato.errors import UserError
from sfumato.privacy.accounting import accountants
from sfumato.privacy.accounting.accountants import ORDERS, Step
from sfumato.privacy.accounting.budget import (
    batch_for,
    curve,
    noise_multiplier_for,
    steps_for,
)
from sfumato.privacy.accounting.noise_schedule import decaying
from sfumato.privacy.accounting.selection import (
    DISTRIBUTIONS,
    LARGEST_MEAN,
    Distribution,
    Selection,
    covered_score_noise,
)
from sfumato.privacy.accounting.spending import Spending

DELTA = 1e-5
Q = 4096 / 50_000
SHAPES = {"logarithmic": 0.0, "geometric": 1.0, "poisson": math.inf}
RUNS = {1.0: Step(Q, 9.89, 875), 3.002: Step(Q, 3.74, 875), 8.0: Step(Q, 2.73, 2500)}
GRID = {
    1.0: {"logarithmic": 1.763, "geometric": 2.127, "poisson": 2.317},
    3.002: {"logarithmic": 4.909, "geometric": 5.748, "poisson": 6.644},
    8.0: {"logarithmic": 11.79, "geometric": 13.35, "poisson": 17.32},
}
CASES = pytest.mark.parametrize(
    ("one", "distribution"), list(itertools.product(GRID, DISTRIBUTIONS))
)
EACH = pytest.mark.parametrize("distribution", DISTRIBUTIONS)


def of_dp_accounting(
    steps: list[Step], mean: float, distribution: str, before: tuple[Step, ...] = ()
) -> float:
    accountant = rdp_privacy_accountant.RdpAccountant(ORDERS)
    accountant.compose(accountants.to_event(before))
    event = accountants.to_event(steps)
    accountant.compose(dp_event.RepeatAndSelectDpEvent(event, mean, SHAPES[distribution]))
    return float(accountant.get_epsilon(DELTA))


@CASES
def test_totals_of_the_grid(one: float, distribution: Distribution) -> None:
    run = [RUNS[one]]
    assert round(accountants.epsilon(run, delta=DELTA, accountant="rdp"), 3) == one
    total = Selection(10, distribution).epsilon(run, delta=DELTA)
    assert float(f"{total:.4g}") == GRID[one][distribution]


@EACH
@pytest.mark.parametrize("mean", [1.0, 1.5, 10.0, 300.0])
@pytest.mark.parametrize("before", [(), (Step(0.01, 1.1, 200),)])
def test_totals_are_those_of_dp_accounting(
    distribution: Distribution, mean: float, before: tuple[Step, ...]
) -> None:
    steps = [Step(0.05, 2.5, 50), Step(1.0, 9.0)]
    found = Selection(mean, distribution).epsilon(steps, delta=DELTA, before=before)
    wanted = of_dp_accounting(steps, mean, distribution, before)
    assert found == pytest.approx(wanted, rel=1e-7)


def test_nothing_is_chosen_where_nothing_was_run() -> None:
    before = (Step(0.1, 2.0, 5),)
    alone = accountants.epsilon(before, delta=DELTA, accountant="rdp")
    assert Selection(10).epsilon((), delta=DELTA) == 0.0
    assert Selection(10).epsilon((), delta=DELTA, before=before) == alone
    assert Selection(10).epsilon([Step(0.1, 0.0)], delta=DELTA) == math.inf
    assert Selection(10).group_epsilon([Step(0.1, 0.0)], delta=DELTA, size=2) == math.inf


@EACH
def test_fewer_orders_never_give_less(distribution: Distribution) -> None:
    selection, steps = Selection(10, distribution), [Step(Q, 3.74, 875)]
    few = selection.epsilon(steps, delta=DELTA, orders=ORDERS[::4])
    assert few >= selection.epsilon(steps, delta=DELTA)


@EACH
@pytest.mark.parametrize("mean", [1.0, 1.2, 10.0, LARGEST_MEAN])
def test_the_number_of_runs_has_its_distribution(distribution: Distribution, mean: float) -> None:
    selection = Selection(mean, distribution)
    reference = {
        "logarithmic": lambda: stats.logser(1 - selection.gamma),
        "geometric": lambda: stats.geom(1 / mean),
        "poisson": lambda: stats.poisson(mean),
    }
    if mean == 1.0 and distribution != "poisson":
        assert {selection.number(u) for u in (0.0, 0.5, 1 - 2**-53)} == {1}
        return
    law = reference[distribution]()
    assert float(law.mean()) == pytest.approx(mean, rel=1e-6)
    for u in (0.0, 1e-9, 0.1, 0.5, 0.9, 0.999, 1 - 1e-9):
        k = selection.number(u)
        assert law.cdf(k - 1) <= u + 1e-12 and u < law.cdf(k) + 1e-12
    assert law.sf(selection.number(1 - 2**-53)) > 1e-30, "no endless search"


def test_poisson_may_draw_no_run() -> None:
    assert Selection(10, "poisson").number(0.5 * math.exp(-10)) == 0
    assert Selection(10, "poisson").number(1.5 * math.exp(-10)) == 1


def test_the_gamma_is_that_of_dp_accounting() -> None:
    theirs = rdp_privacy_accountant._gamma_truncated_negative_binomial
    for mean in (1.01, 2.0, 10.0, 1000.0):
        assert Selection(mean).gamma == pytest.approx(theirs(0, mean), rel=1e-8)


@pytest.mark.parametrize("run", RUNS.values())
def test_a_covered_score_costs_nothing(run: Step) -> None:
    noise = covered_score_noise([run])
    plain = Selection(10).epsilon([run], delta=DELTA)
    assert Selection(10, score_noise=noise).epsilon([run], delta=DELTA) == plain
    divergences = accountants.compose_rdp((run,), ORDERS)
    assert np.all(np.asarray(ORDERS) / (2 * noise**2) <= divergences)
    assert np.any(np.asarray(ORDERS) / (2 * (0.998 * noise) ** 2) > divergences)


def test_a_score_with_little_noise_is_paid_for() -> None:
    # Its divergence exceeds that of the steps at every order, so it alone counts.
    run, noisy = Step(Q, 9.89, 875), Selection(10, score_noise=0.5)
    assert noisy.epsilon([run], delta=DELTA) == pytest.approx(
        of_dp_accounting([Step(1.0, 0.5)], 10, "logarithmic")
    )


@pytest.mark.parametrize("size", [1, 2, 5])
def test_groups_follow_from_the_bound_of_one(size: int) -> None:
    run, selection = [Step(Q, 9.89, 875)], Selection(10)
    found = selection.group_epsilon(run, delta=DELTA, size=size)
    one = found / size
    smaller = DELTA * math.expm1(one) / math.expm1(found)
    exact = rdp_privacy_accountant.compute_epsilon(
        ORDERS, selection._divergences(run, (), ORDERS), smaller
    )[0]
    assert exact <= one * (1 + 1e-9), "the bound of one image at the smaller delta"
    if size == 1:
        assert found == selection.epsilon(run, delta=DELTA)
    assert found >= size * selection.epsilon(run, delta=DELTA)


def test_a_group_beyond_all_use_is_infinite() -> None:
    assert Selection(10).group_epsilon([Step(Q, 1.734, 875)], delta=DELTA, size=10) == math.inf


@EACH
@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_the_noise_for_a_total_fits_and_less_does_not(
    distribution: Distribution, epsilon: float
) -> None:
    selection = Selection(10, distribution)
    sigma = noise_multiplier_for(
        epsilon=epsilon, delta=DELTA, q=0.1, steps=50, accountant="rdp", selection=selection
    )
    assert selection.epsilon([Step(0.1, sigma, 50)], delta=DELTA) <= epsilon
    unit = 10.0 ** (math.floor(math.log10(sigma)) - 3)
    assert selection.epsilon([Step(0.1, sigma - unit, 50)], delta=DELTA) > epsilon
    one = accountants.epsilon([Step(0.1, sigma, 50)], delta=DELTA, accountant="rdp")
    assert one < epsilon, "one run spends less than all"


def test_steps_and_batch_for_a_total_fit_and_more_do_not() -> None:
    selection = Selection(5, "geometric")
    given = {"epsilon": 3.0, "delta": DELTA, "accountant": "rdp", "selection": selection}
    steps = steps_for(**given, q=0.1, noise_multiplier=4.0)  # type: ignore[arg-type]
    assert selection.epsilon([Step(0.1, 4.0, steps)], delta=DELTA) <= 3.0
    assert selection.epsilon([Step(0.1, 4.0, steps + 1)], delta=DELTA) > 3.0
    batch = batch_for(**given, examples=1000, steps=50, noise_multiplier=4.0)  # type: ignore[arg-type]
    assert selection.epsilon([Step(batch / 1000, 4.0, 50)], delta=DELTA) <= 3.0
    assert selection.epsilon([Step((batch + 1) / 1000, 4.0, 50)], delta=DELTA) > 3.0


def test_the_noise_for_a_total_after_a_start_and_with_a_schedule() -> None:
    selection, before = Selection(10), (Step(0.1, 3.0, 20),)
    given = {
        "epsilon": 3.0, "delta": DELTA, "q": 0.1, "steps": 50, "accountant": "rdp",
        "selection": selection,
    }  # fmt: skip
    sigma = noise_multiplier_for(**given, before=before)  # type: ignore[arg-type]
    assert 2.9 < selection.epsilon([Step(0.1, sigma, 50)], delta=DELTA, before=before) <= 3.0
    schedule = decaying(50, 2.0)
    factor = noise_multiplier_for(**given, schedule=schedule)  # type: ignore[arg-type]
    history = schedule.scaled(factor).history(0.1, 50)
    assert 2.9 < selection.epsilon(history, delta=DELTA) <= 3.0


def test_a_curve_ends_at_the_total_and_never_falls() -> None:
    selection = Selection(10)
    found = curve(2.0, range(0, 51, 5), q=0.1, delta=DELTA, accountant="rdp", selection=selection)
    assert found[0] == 0.0 and found == sorted(found)
    assert found[-1] == selection.epsilon([Step(0.1, 2.0, 50)], delta=DELTA)


@EACH
def test_a_budget_hardly_above_the_cost_of_the_choice_has_an_answer(
    distribution: Distribution,
) -> None:
    selection = Selection(10, distribution)
    epsilon = 1.05 * Spending(DELTA, "rdp", (), selection).floor()
    sigma = noise_multiplier_for(
        epsilon=epsilon, delta=DELTA, q=0.1, steps=5, accountant="rdp", selection=selection
    )
    assert selection.epsilon([Step(0.1, sigma, 5)], delta=DELTA) <= epsilon


def test_a_budget_below_the_cost_of_the_choice_is_refused() -> None:
    floor = Selection(10).floor(DELTA)
    assert 0 < floor < 0.01
    with pytest.raises(UserError, match="best of several runs costs epsilon"):
        noise_multiplier_for(
            epsilon=floor, delta=DELTA, q=0.1, steps=5, accountant="rdp", selection=Selection(10)
        )


def test_only_renyi_divergences_account_for_a_choice() -> None:
    with pytest.raises(UserError, match="RDP"):
        noise_multiplier_for(epsilon=1.0, delta=DELTA, q=0.1, steps=5, selection=Selection(10))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"mean": 0.9}, "from 1 to 1000"),
        ({"mean": 1001}, "from 1 to 1000"),
        ({"mean": math.nan}, "from 1 to 1000"),
        ({"mean": 5, "distribution": "possion"}, "Did you mean 'poisson'"),
        ({"mean": 5, "score_noise": 0.0}, "above 0"),
    ],
)
def test_impossible_selections_are_refused(given: dict[str, float], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Selection(**given)  # type: ignore[arg-type]


def test_a_selection_is_read_back() -> None:
    for selection in (Selection(10), Selection(2.5, "poisson", 1.25)):
        assert Selection.from_dict(selection.to_dict()) == selection
