"""Accounting: the cost of a history of noisy steps in (epsilon, delta).

Mechanisms are data. A history is a sequence of `Step`s, each a run of equal Poisson-subsampled
Gaussian releases. Every number here is that of Google's `dp_accounting` applied to them: its slow
loops are vectorised in `renyi` and `grid_pmf`, with results that are equal to the last bit.

*Guarantee:* all values are for the **add-or-remove-one-example** relation at a fixed q: two data
sets are neighbours when one has exactly one example more. With N and q public, the same values hold
where an example is replaced by nothing (zero-out). They are upper bounds, and hold against anyone
who sees the output of every step, provided that each step draws every example independently with
probability q, that one example moves the released sum by at most one unit (the noise multiplier is
the noise's standard deviation in these units), and that q and the noise of each step were fixed
without looking at the data.

Two accountants:

* `pld` composes privacy-loss distributions numerically, discretised pessimistically ("connect the
  dots", Doroshenko et al. 2022). It is tight: the default.
* `rdp` composes Rényi divergences at the fixed `ORDERS` (Mironov et al. 2019): looser, and what
  most papers report.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

import dp_accounting
import numpy as np
from dp_accounting.rdp import rdp_privacy_accountant

from sfumato.errors import UserError, check_number, nearest
from sfumato.privacy.accounting import loss_distribution, renyi

AccountantName = Literal["pld", "rdp"]
ACCOUNTANTS: tuple[AccountantName, ...] = get_args(AccountantName)
RELATION = "add or remove one example"

ORDERS: tuple[float, ...] = (
    *(1 + tenth / 10 for tenth in range(1, 100)),
    *range(11, 64),
    *(64, 72, 80, 96, 112, 128, 160, 192, 256, 320, 384, 512, 768, 1024, 2048),
)
"""Rényi orders: 1.1 to 10.9 in tenths, 11 to 63, then wider up to 2048 (epsilon of 0.01)."""

REPORT_POINTS = 125_000
"""Most grid points of one step's privacy loss in a reported value."""

SEARCH_POINTS = 10_000
"""Most grid points of one step's privacy loss inside a search or along a curve."""

HOPELESS = 1000.0
"""The epsilon from which on `pld` returns the `rdp` bound: there is no privacy left to measure."""

SMALLEST_DELTA = 1e-12
"""Below this, floating-point rounding errors exceed the probabilities."""

_NO_NOISE = 1e-4
"""A noise multiplier below this counts as none, at an epsilon above ten million."""

_FEW_ORDERS = (1.1, 1.25, 1.5, 2, 3, 4, 8, 16, 32, 64, 128, 256)


LARGEST_NOISE = 1e100
"""Noise multipliers are below this."""


@dataclass(frozen=True)
class Step:
    """A run of `count` equal steps: draw each example with probability `q`, add Gaussian noise.

    Attributes:
        q: Probability with which an example is drawn, in (0, 1].
        noise_multiplier: Standard deviation of the noise over the sensitivity, at least 0.
        count: Number of times that the step is taken, at least 1.
    """

    q: float
    noise_multiplier: float
    count: int = 1

    def __post_init__(self) -> None:
        check_q(self.q)
        check_noise_multiplier(self.noise_multiplier)
        if self.count != int(self.count) or self.count < 1:
            raise UserError(
                f"A step is taken a whole number of times, at least 1, not {self.count}."
            )

    def to_event(self) -> Any:
        """The `dp_accounting.DpEvent` of these steps; q = 1 is the plain Gaussian mechanism."""
        event: Any = dp_accounting.GaussianDpEvent(self.noise_multiplier)
        if self.q < 1:
            event = dp_accounting.PoissonSampledDpEvent(self.q, event)
        return event if self.count == 1 else dp_accounting.SelfComposedDpEvent(event, self.count)


def to_event(steps: Sequence[Step]) -> Any:
    """The `dp_accounting.DpEvent` of a whole history."""
    return dp_accounting.ComposedDpEvent([step.to_event() for step in steps])


def merge(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The same history with equal steps counted together, in order of first appearance.

    Composition does not depend on the order, so the cost is unchanged.
    """
    counts: dict[tuple[float, float], int] = {}
    for step in steps:
        key = (step.q, step.noise_multiplier)
        counts[key] = counts.get(key, 0) + int(step.count)
    return tuple(Step(q, noise, count) for (q, noise), count in counts.items())


def joint_noise_multiplier(*noise_multipliers: float) -> float:
    """The one noise multiplier that is equivalent to several Gaussian releases from one draw.

    Releases with multipliers z_i on the same sampled examples are one Gaussian release in the
    product space, with 1/z² = Σ 1/z_i². A step that also releases a noised count of its examples
    (adaptive clipping) is such a step.

    *Guarantee:* exact, also under Poisson sampling, as long as all releases use the same draw.
    """
    for noise_multiplier in noise_multipliers:
        check_noise_multiplier(noise_multiplier)
    if not noise_multipliers or 0 in noise_multipliers:
        return 0.0
    return 1 / math.hypot(*(1 / noise_multiplier for noise_multiplier in noise_multipliers))


def without_noise(steps: Sequence[Step]) -> bool:
    """Tell whether a step has so little noise that it counts as none."""
    return any(step.noise_multiplier < _NO_NOISE for step in steps)


def epsilon(steps: Sequence[Step], *, delta: float, accountant: AccountantName = "pld") -> float:
    """The epsilon that `steps` spend at `delta`: 0 for an empty history, infinity without noise.

    *Guarantee:* an upper bound under the add-or-remove-one-example relation.
    """
    check_delta_range(delta)
    check_accountant(accountant)
    history = merge(steps)
    if not history:
        return 0.0
    if without_noise(history):
        return math.inf
    if accountant == "rdp":
        return rdp_epsilon(history, delta)
    return pld_epsilon(history, delta, REPORT_POINTS)


def delta_for(
    steps: Sequence[Step], *, epsilon: float, accountant: AccountantName = "pld"
) -> float:
    """The delta that `steps` need at `epsilon`: 0 for an empty history, 1 without noise.

    *Guarantee:* an upper bound under the add-or-remove-one-example relation.
    """
    if not epsilon >= 0 or math.isinf(epsilon):
        raise UserError(f"epsilon must be a number of at least 0, not {epsilon}.")
    check_accountant(accountant)
    history = merge(steps)
    if not history:
        return 0.0
    if without_noise(history):
        return 1.0
    if accountant == "rdp" or _hopeless(history):
        total = compose_rdp(history, ORDERS)
        return float(rdp_privacy_accountant.compute_delta(ORDERS, total, epsilon)[0])
    return float(compose_pld(history, REPORT_POINTS).get_delta_for_epsilon(epsilon))


def quick_epsilon(
    steps: Sequence[Step],
    *,
    delta: float,
    accountant: AccountantName = "pld",
    orders: tuple[float, ...] = ORDERS,
) -> float:
    """An upper bound of `epsilon`, quick and a little loose: on a coarser grid, or at `orders`."""
    history = merge(steps)
    if without_noise(history):
        return math.inf
    if accountant == "rdp":
        return rdp_epsilon(history, delta, orders)
    return pld_epsilon(history, delta, SEARCH_POINTS)


@lru_cache(maxsize=1024)
def rdp_epsilon(
    history: tuple[Step, ...], delta: float, orders: tuple[float, ...] = ORDERS
) -> float:
    """Epsilon of a merged history with noise everywhere, by Rényi divergences at `orders`."""
    total = compose_rdp(history, orders)
    return float(rdp_privacy_accountant.compute_epsilon(orders, total, delta)[0])


@lru_cache(maxsize=1024)
def pld_epsilon(history: tuple[Step, ...], delta: float, points: int) -> float:
    """Epsilon of a merged history with noise everywhere, by privacy-loss distributions.

    *Guarantee:* rounding to the grid is pessimistic: fewer `points` give a larger epsilon.
    """
    if _hopeless(history):
        return rdp_epsilon(history, delta)
    return float(compose_pld(history, points).get_epsilon_for_delta(delta))


def _hopeless(history: tuple[Step, ...]) -> bool:
    return rdp_epsilon(history, 1e-5, _FEW_ORDERS) > HOPELESS


def compose_rdp(history: tuple[Step, ...], orders: tuple[float, ...]) -> Any:
    """The Rényi divergences of a merged history with noise everywhere, at each of `orders`."""
    total = np.zeros(len(orders))
    for step in history:
        total += step.count * _rdp(step.q, step.noise_multiplier, orders)
    return total


@lru_cache(maxsize=256)
def _rdp(q: float, noise_multiplier: float, orders: tuple[float, ...]) -> Any:
    divergences = renyi.divergences(q, noise_multiplier, orders)
    # With enormous noise, rounding errors can make a divergence negative, which would count as no
    # cost. Sampling never increases it, so the value without sampling is a safe replacement.
    unsampled = np.asarray(orders) / (2 * noise_multiplier**2)
    return np.where(divergences < 0, unsampled, divergences)


def compose_pld(history: tuple[Step, ...], points: int, *, group: int = 1) -> Any:
    """The privacy-loss distribution of a merged history with noise everywhere.

    Args:
        history: The steps.
        points: Most grid points of one step's loss.
        group: Number of examples that are added or removed together.
    """
    width = interval(history, points, group=group)
    total = None
    for q, noise_multiplier, count in _parts(history):
        part = _self_compose(_one_step(q, noise_multiplier, width, group), count)
        total = part if total is None else total.compose(part)
    return total


def interval(history: Sequence[Step], points: int = REPORT_POINTS, *, group: int = 1) -> float:
    """The `value_discretization_interval` used for a history (see `loss_distribution.width`)."""
    merged = merge(history)
    rough = rdp_epsilon(merged, 1e-5, _FEW_ORDERS)
    return loss_distribution.width(
        [(q, noise_multiplier) for q, noise_multiplier, _ in _parts(merged)],
        epsilon=rough * group**2,
        points=points,
        group=group,
    )


def _self_compose(base: Any, count: int) -> Any:
    if count == 1:
        return base
    block = 1000
    if count <= 100 * block:
        return base.self_compose(count)
    # In one stage dp_accounting spends seconds on an integer power from a million steps on.
    whole = base.self_compose(block).self_compose(count // block)
    return whole.compose(base.self_compose(count % block)) if count % block else whole


@lru_cache(maxsize=16)
def _one_step(q: float, noise_multiplier: float, width: float, group: int) -> Any:
    return loss_distribution.one_step(q, noise_multiplier, width, group=group)


def _parts(history: tuple[Step, ...]) -> list[tuple[float, float, int]]:
    """(q, noise multiplier, compositions on the grid): full-batch steps compose in closed form."""
    return [
        (1.0, step.noise_multiplier / math.sqrt(step.count), 1)
        if step.q == 1
        else (step.q, step.noise_multiplier, step.count)
        for step in history
    ]


def check_q(q: float) -> None:
    """Refuse a sampling probability outside (0, 1]."""
    if not 0 < q <= 1:
        raise UserError(
            f"The sampling probability (expected batch / examples) must be above 0 and at most 1, "
            f"not {q}."
        )


def check_noise_multiplier(noise_multiplier: float) -> None:
    """Refuse a negative or undefined noise multiplier, or one whose square overflows."""
    if not 0 <= noise_multiplier < LARGEST_NOISE:
        raise UserError(
            f"The noise multiplier must be a finite number of at least 0 and below "
            f"{LARGEST_NOISE:g}, not {noise_multiplier}."
        )


def check_delta_range(delta: float) -> None:
    """Refuse a delta that is not below 1, or too small for floating point."""
    check_number(delta, "delta")
    if not SMALLEST_DELTA <= delta < 1:
        raise UserError(
            f"delta must be at least {SMALLEST_DELTA:g} and below 1, not {delta}; 1e-5 is usual."
        )


def check_accountant(accountant: str) -> None:
    """Refuse an unknown accountant."""
    if accountant not in ACCOUNTANTS:
        raise UserError(
            f"Unknown accountant '{accountant}': choose 'pld' or 'rdp'."
            f"{nearest(accountant, ACCOUNTANTS)}"
        )
