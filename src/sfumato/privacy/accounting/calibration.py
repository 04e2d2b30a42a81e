"""Calibration: the noise, the steps or the batch that a privacy budget allows.

Each question asks for the last integer (steps, examples per batch, noise in units of its last
digit) whose epsilon stays within the target. Cheap upper bounds of epsilon find the place, RDP
first; the accountant itself then confirms that the answer fits and that its neighbour does not.

*Guarantee:* `accountants.epsilon` of every answer is at most the target, with the same accountant.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from dp_accounting import get_sigma_gaussian

from sfumato.errors import UserError
from sfumato.privacy.accounting import accountants
from sfumato.privacy.accounting.accountants import ORDERS, SEARCH_POINTS, AccountantName, Step

MAX_STEPS = 10_000_000
SIGNIFICANT_DIGITS = 4


def noise_multiplier_for(
    *, epsilon: float, delta: float, q: float, steps: int, accountant: AccountantName = "pld"
) -> float:
    """The smallest noise multiplier that keeps `steps` steps within (`epsilon`, `delta`).

    It is rounded up to four or five significant digits: one unit less in the last would not fit.
    """
    check_epsilon(epsilon)
    accountants.check_delta_range(delta)
    accountants.check_accountant(accountant)
    accountants.check_q(q)
    check_steps(steps)
    guess = _central_limit(epsilon, delta, q, steps)
    exponent = math.floor(math.log10(guess)) + 1 - SIGNIFICANT_DIGITS
    units = math.ceil(guess / 10.0**exponent)
    for name in _chain(accountant):
        while True:

            def step(units: int, exponent: int = exponent) -> Step:
                return Step(q, _decimal(units, exponent), steps)

            search = _Search(step, epsilon, delta, name, good_end=None, bad_end=0)
            units, slope = search.roughly(units, slope=-1.2)
            shift = SIGNIFICANT_DIGITS - len(str(units))
            if shift in (-1, 0):
                break
            units, exponent = math.ceil(units * 10.0**shift), exponent - shift
    return _decimal(search.exactly(units, slope), exponent)


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
    accountants.check_delta_range(delta)
    accountants.check_accountant(accountant)
    accountants.check_q(q)

    def step(count: int) -> Step:
        return Step(q, noise_multiplier, count)

    first = _excess(step(1), epsilon, delta, accountant)
    if first is not None:
        raise UserError(
            f"Not even one step fits into epsilon = {epsilon:g}: with a sampling probability of "
            f"{q:.4g} and a noise multiplier of {noise_multiplier:g} it costs {first:.4g}. Raise "
            "the noise or epsilon, or lower the batch."
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
    accountants.check_delta_range(delta)
    accountants.check_accountant(accountant)
    check_examples(examples)
    check_steps(steps)

    def step(batch: int) -> Step:
        return Step(batch / examples, noise_multiplier, steps)

    smallest = _excess(step(1), epsilon, delta, accountant)
    if smallest is not None:
        raise UserError(
            f"Not even an expected batch of 1 fits into epsilon = {epsilon:g}: {steps} steps with "
            f"a noise multiplier of {noise_multiplier:g} cost {smallest:.4g}. Raise the noise or "
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
    accountants.check_delta_range(delta)
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


def _excess(step: Step, epsilon: float, delta: float, accountant: AccountantName) -> float | None:
    """What `step` costs if that is more than `epsilon`, without precision where none is needed."""
    if step.noise_multiplier > 0:
        for name in _chain(accountant):
            if _quick(step, delta, name) <= epsilon:
                return None
    spent = accountants.epsilon([step], delta=delta, accountant=accountant)
    return spent if spent > epsilon else None


def _quick(step: Step, delta: float, accountant: AccountantName) -> float:
    """An upper bound of epsilon, quick and a little loose."""
    if accountant == "rdp":
        return accountants.rdp_epsilon((step,), delta, ORDERS[::4])
    return accountants.pld_epsilon((step,), delta, SEARCH_POINTS)


def _largest(
    step: Callable[[int], Step],
    epsilon: float,
    delta: float,
    accountant: AccountantName,
    highest: int,
) -> int:
    """The largest n from 1 to `highest` within the budget, given that 1 is."""
    if _quick(step(highest), delta, "rdp") <= epsilon:
        top = accountants.epsilon([step(highest)], delta=delta, accountant=accountant)
        if top <= epsilon:
            return highest
    n = 1
    for name in _chain(accountant):
        search = _Search(step, epsilon, delta, name, good_end=1, bad_end=highest + 1)
        n, slope = search.roughly(n, slope=0.7)
    return search.exactly(n, slope)


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

    The ends are never evaluated: `good_end` fits by assumption (None: something far away does), and
    `bad_end` does not. On the way log epsilon is nearly linear in log n, which makes each guess.
    """

    step: Callable[[int], Step]
    target: float
    delta: float
    accountant: AccountantName
    good_end: int | None
    bad_end: int

    def roughly(self, start: int, slope: float) -> tuple[int, float]:
        """An integer where the quick bound of epsilon is the target to 0.1 %, and its log-slope."""
        good, bad, n = self.good_end, self.bad_end, start
        tried: dict[int, float] = {}
        while n not in tried:
            tried[n] = _quick(self.step(n), self.delta, self.accountant)
            if n == self.good_end and tried[n] > self.target:
                break
            if tried[n] <= self.target:
                good = n
            else:
                bad = n
            slope = _slope(tried, n, slope)
            if abs(tried[n] / self.target - 1) < 1e-3:
                break
            n = self._guess(n, tried[n], slope, good, bad, len(tried))
        return n, slope

    def exactly(self, start: int, slope: float) -> int:
        """The answer by the accountant itself, given a rough one and the slope there."""
        good, bad, n = self.good_end, self.bad_end, start
        tried: dict[int, float] = {}
        while good is None or abs(good - bad) > 1:
            n = self._between(n, good, bad)
            tried[n] = accountants.epsilon(
                [self.step(n)], delta=self.delta, accountant=self.accountant
            )
            if tried[n] <= self.target:
                good = n
            else:
                bad = n
            slope = _slope(tried, n, slope)
            n = self._guess(n, tried[n], slope, good, bad, len(tried))
        return good

    def _guess(
        self, n: int, spent: float, slope: float, good: int | None, bad: int, tries: int
    ) -> int:
        """The integer where a power law through (n, spent) meets the target, or the middle."""
        usable = 0 < spent < math.inf and tries % 8
        power = math.log(self.target / spent) / slope if usable else math.inf
        if abs(power) < 3:
            # The last integer that fits: round towards the side where epsilon is smaller.
            reach = n * math.exp(power)
            return self._between(math.floor(reach) if slope > 0 else math.ceil(reach), good, bad)
        if good is None:
            return 4 * n
        middle = math.isqrt(max(good, 1) * max(bad, 1))
        return self._between(middle, good, bad)

    def _between(self, n: int, good: int | None, bad: int) -> int:
        """The nearest integer strictly between the two, or n itself if there is none."""
        if good is None:
            return max(n, bad + 1)
        low, high = sorted((good, bad))
        return min(max(n, low + 1), high - 1) if high - low > 1 else n


def _slope(tried: dict[int, float], n: int, default: float) -> float:
    """d log epsilon / d log n between n and the nearest other place tried, if it makes sense."""
    others = [m for m in tried if m != n and 0 < tried[m] < math.inf]
    if not others or not 0 < tried[n] < math.inf:
        return default
    m = min(others, key=lambda m: abs(m - n))
    slope = math.log(tried[n] / tried[m]) / math.log(n / m)
    return slope if slope * default > 0 and 0.1 < abs(slope) < 20 else default
