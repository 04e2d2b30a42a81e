"""Calibration: the noise, the steps or the batch that a privacy budget allows.

Each question asks for the last integer (steps, examples per batch, noise in units of its last digit)
whose epsilon stays within the target. Cheap upper bounds of epsilon find the place, RDP first; the
accountant itself then confirms that the answer fits and that its neighbour does not.

*Guarantee:* `accounting.epsilon` of every answer is at most the target, with the same accountant.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from dp_accounting import get_sigma_gaussian

from sfumato.errors import UserError
from sfumato.privacy import accounting
from sfumato.privacy.accounting import ORDERS, SEARCH_POINTS, AccountantName, Step

MAX_STEPS = 10_000_000
SIGNIFICANT_DIGITS = 4


def noise_multiplier_for(
    *, epsilon: float, delta: float, q: float, steps: int, accountant: AccountantName = "pld"
) -> float:
    """The smallest noise multiplier that keeps `steps` steps within (`epsilon`, `delta`).

    It is rounded up to four significant digits or more: one unit less in the last would not fit.
    """
    check_epsilon(epsilon)
    accounting.check_delta_range(delta)
    accounting.check_accountant(accountant)
    accounting.check_q(q)
    check_steps(steps)
    guess = _central_limit(epsilon, delta, q, steps)
    exponent = math.floor(math.log10(guess)) - SIGNIFICANT_DIGITS
    units = max(1, math.ceil(guess / 10.0**exponent))
    for name in _chain(accountant):
        while True:

            def step(units: int, exponent: int = exponent) -> Step:
                return Step(q, _decimal(units, exponent), steps)

            search = _Search(step, epsilon, delta, name, good_end=None, bad_end=0)
            units = search.roughly(units)
            if units >= 10 ** (SIGNIFICANT_DIGITS - 1):
                break
            units, exponent = 10 * units, exponent - 1
    return _decimal(search.exactly(units), exponent)


def steps_for(
    *,
    epsilon: float,
    delta: float,
    q: float,
    noise_multiplier: float,
    accountant: AccountantName = "pld",
) -> int:
    """The largest number of steps within (`epsilon`, `delta`): one more would cross it."""
    check_epsilon(epsilon)
    accounting.check_delta_range(delta)
    accounting.check_accountant(accountant)
    accounting.check_q(q)

    def step(count: int) -> Step:
        return Step(q, noise_multiplier, count)

    first = accounting.epsilon([step(1)], delta=delta, accountant=accountant)
    if first > epsilon:
        raise UserError(
            f"Not even one step fits into epsilon = {epsilon:g}: with a sampling probability of "
            f"{q:.4g} and a noise multiplier of {noise_multiplier:g} it costs {first:.4g}. Raise the "
            "noise or epsilon, or lower the batch."
        )
    count = _largest(step, epsilon, delta, accountant, MAX_STEPS)
    if count == MAX_STEPS:
        raise UserError(
            f"More than {MAX_STEPS} steps fit into epsilon = {epsilon:g}: a noise multiplier of "
            f"{noise_multiplier:g} is far more than this budget asks for. Lower the noise."
        )
    return count


def batch_for(
    *,
    epsilon: float,
    delta: float,
    examples: int,
    steps: int,
    noise_multiplier: float,
    accountant: AccountantName = "pld",
) -> int:
    """The largest expected batch, at most `examples`, within (`epsilon`, `delta`)."""
    check_epsilon(epsilon)
    accounting.check_delta_range(delta)
    accounting.check_accountant(accountant)
    check_examples(examples)
    check_steps(steps)

    def step(batch: int) -> Step:
        return Step(batch / examples, noise_multiplier, steps)

    smallest = accounting.epsilon([step(1)], delta=delta, accountant=accountant)
    if smallest > epsilon:
        raise UserError(
            f"Not even an expected batch of 1 fits into epsilon = {epsilon:g}: {steps} steps with a "
            f"noise multiplier of {noise_multiplier:g} cost {smallest:.4g}. Raise the noise or "
            "epsilon, or lower the steps."
        )
    return _largest(step, epsilon, delta, accountant, examples)


def check_epsilon(epsilon: float) -> None:
    """Refuse a budget that is not a positive, finite number."""
    if not 0 < epsilon < math.inf:
        raise UserError(f"epsilon must be a finite number above 0, not {epsilon}; 1 to 8 is usual.")


def check_steps(steps: int) -> None:
    """Refuse a number of steps that is not a whole number from 1 to `MAX_STEPS`."""
    if steps != int(steps) or not 1 <= steps <= MAX_STEPS:
        raise UserError(
            f"The number of steps must be a whole number from 1 to {MAX_STEPS}, not {steps}."
        )


def check_examples(examples: int) -> None:
    """Refuse a data set without examples."""
    if examples != int(examples) or examples < 1:
        raise UserError(f"The number of examples must be a whole number above 0, not {examples}.")


def check_delta(delta: float, examples: int) -> None:
    """Refuse a delta outside (0, 1) or not below 1 / `examples`.

    *Guarantee:* publishing one random example outright is (0, 1/N)-private, so from there on delta
    means nothing.
    """
    accounting.check_delta_range(delta)
    check_examples(examples)
    if delta * examples >= 1:
        proposal = 10.0 ** math.floor(math.log10(1 / examples) - 1e-9)
        raise UserError(
            f"delta = {delta:g} is not below 1/N = {1 / examples:.2g} for N = {examples} examples: "
            f"it would allow publishing a whole example. Use {proposal:g} or less."
        )


def _chain(accountant: AccountantName) -> tuple[AccountantName, ...]:
    """RDP is cheap and close, so its answer is where a search by PLD starts."""
    return ("rdp",) if accountant == "rdp" else ("rdp", "pld")


def _largest(
    step: Callable[[int], Step],
    epsilon: float,
    delta: float,
    accountant: AccountantName,
    highest: int,
) -> int:
    n = 1
    for name in _chain(accountant):
        search = _Search(step, epsilon, delta, name, good_end=1, bad_end=highest + 1)
        n = search.roughly(n)
    return search.exactly(n)


def _central_limit(epsilon: float, delta: float, q: float, steps: int) -> float:
    """A first guess of the noise: many subsampled steps are nearly one Gaussian mechanism."""
    single = get_sigma_gaussian(min(max(epsilon, 1e-3), 200.0), delta)
    if q == 1:
        return float(single * math.sqrt(steps))
    return 1 / math.sqrt(math.log1p(1 / (single * q) ** 2 / steps))


def _decimal(units: int, exponent: int) -> float:
    return float(f"{units}e{exponent}")


@dataclass(frozen=True)
class _Search:
    """The last integer, going from `good_end` to `bad_end`, whose step stays within `target`.

    The ends themselves are never evaluated: `good_end` fits by assumption (None: far enough away
    something fits) and `bad_end` does not.
    """

    step: Callable[[int], Step]
    target: float
    delta: float
    accountant: AccountantName
    good_end: int | None
    bad_end: int

    def roughly(self, start: int) -> int:
        """The answer by a cheap upper bound of epsilon."""
        return self._boundary(self._quick(start), self.target, start)

    def exactly(self, start: int) -> int:
        """The answer by the accountant itself, given a rough one.

        The difference between the rough and the true epsilon changes slowly, so it is measured at
        the last place tried to predict the next.
        """
        quick = self._quick(start)
        good, bad, n = self.good_end, self.bad_end, start
        for attempt in range(1000):
            spent = accounting.epsilon([self.step(n)], delta=self.delta, accountant=self.accountant)
            if spent <= self.target:
                good = n
            else:
                bad = n
            if good is not None and abs(good - bad) == 1:
                return good
            rough = quick(n)
            slack = rough - spent if math.isfinite(rough) else 0.0
            n = self._boundary(quick, self.target + slack, n)
            if good is None:
                n = max(n, bad + 1)
                continue
            low, high = sorted((good, bad))
            n = min(max(n, low + 1), high - 1) if attempt < 6 else (low + high) // 2
        raise AssertionError("unreachable: every attempt narrows the bracket")

    def _quick(self, start: int) -> Callable[[int], float]:
        if self.accountant == "pld":
            return lambda n: accounting.pld_epsilon((self.step(n),), self.delta, SEARCH_POINTS)
        here = (self.step(start),)
        best = min(
            range(len(ORDERS)),
            key=lambda i: accounting.rdp_epsilon(here, self.delta, (ORDERS[i],)),
        )
        orders = ORDERS[max(0, best - 12) : best + 13]
        return lambda n: accounting.rdp_epsilon((self.step(n),), self.delta, orders)

    def _boundary(self, cost: Callable[[int], float], target: float, start: int) -> int:
        """The last integer whose cost is at most `target`: gallop, then Illinois' false position."""
        good, bad = self._bracket(cost, target, start)
        good_excess, bad_excess = -target, target
        last = 0
        while abs(good - bad) > 1:
            fraction = good_excess / (good_excess - bad_excess)
            inside = abs(bad - good) - 1
            away = min(max(round(fraction * (inside + 1)), 1), inside)
            n = good + away if bad > good else good - away
            excess = min(cost(n) - target, 10 * target)
            if excess <= 0:
                good, good_excess = n, min(excess, -1e-12)
                bad_excess *= 0.5 if last == -1 else 1
                last = -1
            else:
                bad, bad_excess = n, excess
                good_excess *= 0.5 if last == 1 else 1
                last = 1
        return good

    def _bracket(self, cost: Callable[[int], float], target: float, start: int) -> tuple[int, int]:
        """A place that fits and one that does not, in strides that double from 1/16 of `start`."""
        towards_good = 1 if self.good_end is None or self.good_end > self.bad_end else -1
        n, stride = start, max(1, start // 16)
        if n == self.good_end or cost(n) <= target:
            while True:
                good, n, stride = n, n - towards_good * stride, 2 * stride
                if towards_good * (n - self.bad_end) <= 0:
                    return good, self.bad_end
                if cost(n) > target:
                    return good, n
        while True:
            bad, n, stride = n, n + towards_good * stride, 2 * stride
            if self.good_end is not None and towards_good * (n - self.good_end) >= 0:
                return self.good_end, bad
            if cost(n) <= target:
                return n, bad
