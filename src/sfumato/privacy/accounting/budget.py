"""The noise, the steps or the batch that a privacy budget allows.

Each function searches for the last integer (steps, examples per batch, noise in units of its last
digit) whose epsilon, together with that of earlier steps on the same images, stays within the
target. As in dp_accounting's `calibrate_dp_mechanism`, a search has a function from the integer to
privacy events, a bracket and a tolerance. Cheap upper bounds of epsilon narrow the bracket, RDP
first; the accountant itself then confirms that the answer fits and that its neighbour does not.

*Guarantee:* `accountants.epsilon` of the earlier steps followed by every answer is at most the
target, with the same accountant. Composition is adaptive: the steps may depend on everything that
the earlier ones released.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from dp_accounting import get_sigma_gaussian

from sfumato.errors import UserError, check_number
from sfumato.privacy.accounting import accountants
from sfumato.privacy.accounting.accountants import AccountantName, Step
from sfumato.privacy.accounting.integer_search import Events, Search
from sfumato.privacy.accounting.noise_schedule import NoiseSchedule
from sfumato.privacy.accounting.selection import Selection
from sfumato.privacy.accounting.spending import Spending

MAX_STEPS = 10_000_000
SIGNIFICANT_DIGITS = 4

TOLERANCE = 1e-3
"""The part of epsilon that a rough search, or one for a noise schedule, may leave unspent."""

CURVE_POINTS, CURVE_POINTS_AFTER = 64, 16
"""Most step counts that `curve` computes: without and with earlier steps."""

_LARGEST = 1024
"""The largest ratio of the noise after earlier steps to that without them that allows training."""

_POWER = -0.85
"""About d log noise / d log epsilon."""


def noise_multiplier_for(
    *,
    epsilon: float,
    delta: float,
    q: float,
    steps: int,
    before: Sequence[Step] = (),
    schedule: NoiseSchedule | None = None,
    accountant: AccountantName = "pld",
    selection: Selection | None = None,
) -> float:
    """The smallest noise multiplier that keeps `steps` steps within (`epsilon`, `delta`).

    It is rounded up to four or five significant digits: one unit less in the last would not fit.

    Args:
        epsilon: The budget.
        delta: As in (epsilon, delta).
        q: The sampling probability.
        steps: The number of steps.
        before: Earlier steps on the same images, which count in the budget.
        schedule: Noise multipliers over the steps, relative to each other. The answer is then the
            factor to scale them by, and spends the budget to a thousandth or four digits.
        accountant: `pld` or `rdp`.
        selection: The choice of the best of several such runs, which the budget is for (`rdp`).

    Raises:
        UserError: If the earlier steps leave nothing, or too little, of the budget.
    """
    accountants.check_q(q)
    check_steps(steps)
    alone = _noise_alone(
        _Budget(epsilon, Spending(delta, accountant, selection=selection)), q, steps
    )
    if schedule is None and not before:
        return alone
    budget = _Budget(epsilon, Spending(delta, accountant, tuple(before), selection))
    budget.check_room()
    guess = alone
    if schedule is not None:
        # By the central limit theorem of Gaussian privacy, equal sums of 1/sigma² cost the same.
        cost = sum(s.count / s.noise_multiplier**2 for s in schedule.history(q, steps))
        guess *= math.sqrt(cost / steps)
    exponent = math.floor(math.log10(guess)) + 1 - SIGNIFICANT_DIGITS
    start = round(guess / 10.0**exponent)

    def events(units: int) -> Sequence[Step]:
        noise = _decimal(units, exponent)
        return schedule.scaled(noise).history(q, steps) if schedule else [Step(q, noise, steps)]

    most = _LARGEST * start
    if schedule is None:
        units = budget.last(events, start, fits=most, exceeds=start - 1, power=_POWER)
    else:
        # Each evaluation composes all levels of noise: there are no quick ones to begin with.
        units = Search(budget.spent, epsilon, most, 0, -0.7, TOLERANCE).run(events, start)[0]
    if units == most:
        raise UserError(
            f"The start has spent epsilon {budget.spent(()):.4g} of {epsilon:g} on these images, "
            f"and what is left is too little for {steps} steps. Raise epsilon."
        )
    return _decimal(units, exponent)


def steps_for(
    *,
    epsilon: float,
    delta: float,
    q: float,
    noise_multiplier: float | NoiseSchedule,
    before: Sequence[Step] = (),
    most: int | None = None,
    accountant: AccountantName = "pld",
    selection: Selection | None = None,
) -> int:
    """The largest number of steps within (`epsilon`, `delta`): one more would cross it.

    Args:
        epsilon: The budget.
        delta: As in (epsilon, delta).
        q: The sampling probability.
        noise_multiplier: The noise multiplier of every step, or a schedule of them.
        before: Earlier steps on the same images, which count in the budget.
        most: The largest number of steps wanted; that of the schedule, if there is one.
        accountant: `pld` or `rdp`.
        selection: The choice of the best of several such runs, which the budget is for (`rdp`).

    Raises:
        UserError: If not even one step fits, or more than `MAX_STEPS` do and `most` is None.
    """
    budget = _Budget(epsilon, Spending(delta, accountant, tuple(before), selection))
    accountants.check_q(q)
    budget.check_room()

    def events(count: int) -> Sequence[Step]:
        if isinstance(noise_multiplier, NoiseSchedule):
            return noise_multiplier.history(q, count)
        return [Step(q, noise_multiplier, count)]

    (first,) = events(1)
    if (cost := budget.excess([first])) is not None:
        left = "what the start has left of " if before else ""
        raise UserError(
            f"Not even one step fits into {left}epsilon = {epsilon:g}: with a sampling probability "
            f"of {q:.4g} and a noise multiplier of {first.noise_multiplier:g} it costs {cost:.4g}"
            f"{' with it' if before else ''}. Raise the noise or epsilon, or lower the batch."
        )
    if isinstance(noise_multiplier, NoiseSchedule):
        most = min(most or MAX_STEPS, noise_multiplier.steps)
    count = budget.largest(events, most or MAX_STEPS)
    if most is None and count == MAX_STEPS:
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
    before: Sequence[Step] = (),
    accountant: AccountantName = "pld",
    selection: Selection | None = None,
) -> int:
    """The largest expected batch, at most `examples`, within (`epsilon`, `delta`)."""
    budget = _Budget(epsilon, Spending(delta, accountant, tuple(before), selection))
    check_examples(examples)
    check_steps(steps)
    budget.check_room()

    def events(batch: int) -> Sequence[Step]:
        return [Step(batch / examples, noise_multiplier, steps)]

    if (cost := budget.excess(events(1))) is not None:
        raise UserError(
            f"Not even an expected batch of 1 fits into epsilon = {epsilon:g}: {steps} steps with "
            f"a noise multiplier of {noise_multiplier:g} cost {cost:.4g}. Raise the noise or "
            "epsilon, or lower the steps."
        )
    return budget.largest(events, examples)


def curve(
    noise_multiplier: float | NoiseSchedule,
    counts: Sequence[int],
    *,
    q: float,
    delta: float,
    before: Sequence[Step] = (),
    accountant: AccountantName = "pld",
    selection: Selection | None = None,
) -> list[float]:
    """Epsilon of `before` and each of several numbers of steps, quickly.

    For progress displays and plots: all values are upper bounds and never decrease with the count,
    and the last is `accountants.epsilon` itself. PLD values before the last use a coarser grid, and
    not all are computed: those in between take the value of the next one.
    """
    if any(count < 0 for count in counts):
        raise UserError("Numbers of steps in a curve must be at least 0.")

    def steps(count: int) -> Sequence[Step]:
        if isinstance(noise_multiplier, NoiseSchedule):
            return noise_multiplier.history(q, count)
        return [Step(q, noise_multiplier, count)] if count else []

    spending = Spending(delta, accountant, tuple(before), selection)
    ordered = sorted({int(count) for count in counts if count > 0})
    values = [spending.spent(())]
    if not ordered:
        return values * len(counts)
    last = ordered[-1]
    if isinstance(noise_multiplier, NoiseSchedule):
        anchors = sorted({*(end for end in noise_multiplier.ends if end < last), last})
    else:
        points = min(CURVE_POINTS_AFTER if before else CURVE_POINTS, len(ordered))
        places = np.linspace(0, len(ordered) - 1, points).round().astype(int)
        anchors = [ordered[place] for place in places]
    ceiling = spending.spent(steps(last))
    for count in anchors[:-1]:
        values.append(max(values[-1], min(ceiling, spending.quickly(steps(count)))))
    values.append(ceiling)
    return [values[int(np.searchsorted([0, *anchors], int(count)))] for count in counts]


@dataclass(frozen=True)
class _Budget:
    """A target epsilon, part of which earlier steps have spent."""

    epsilon: float
    spending: Spending

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        if (floor := self.spending.floor()) >= self.epsilon:
            raise UserError(
                f"Choosing the best of several runs costs epsilon {floor:.4g} at delta = "
                f"{self.spending.delta:g}, however much noise each has, and the budget is "
                f"{self.epsilon:g}. Raise epsilon."
            )

    def spent(self, steps: Sequence[Step]) -> float:
        """Epsilon of the earlier steps and these."""
        return self.spending.spent(steps)

    def check_room(self) -> None:
        """Refuse a budget of which the earlier steps leave nothing."""
        if self.spending.before and (spent := self.spent(())) >= self.epsilon:
            raise UserError(
                f"The start has already spent epsilon {spent:.4g} on these images (at delta = "
                f"{self.spending.delta:g}), which leaves nothing of the budget of "
                f"{self.epsilon:g}. Raise epsilon, or start from a run that spent less."
            )

    def excess(self, steps: Sequence[Step]) -> float | None:
        """Epsilon spent if that exceeds the budget, else None; no more precise than needed."""
        if any(bound(steps) <= self.epsilon for bound in self.spending.bounds()):
            return None
        spent = self.spent(steps)
        return spent if spent > self.epsilon else None

    def last(self, events: Events, start: int, *, fits: int, exceeds: int, power: float) -> int:
        """The last integer from `fits` towards `exceeds` within the budget."""
        for bound in self.spending.bounds():
            rough = Search(bound, self.epsilon, fits, exceeds, power, TOLERANCE)
            start, power = rough.run(events, start)
        return Search(self.spent, self.epsilon, fits, exceeds, power).run(events, start)[0]

    def largest(self, events: Events, highest: int) -> int:
        """The largest integer from 1 to `highest` within the budget, given that 1 is."""
        quick = self.spending.bounds()[0](events(highest))
        if quick <= self.epsilon and self.spent(events(highest)) <= self.epsilon:
            return highest
        middle = math.isqrt(highest)
        return self.last(events, middle, fits=1, exceeds=highest + 1, power=1 / 0.7)


def _noise_alone(budget: _Budget, q: float, steps: int) -> float:
    """The smallest noise multiplier of equal steps with nothing before them."""
    guess = _central_limit(budget.epsilon, budget.spending.delta, q, steps)
    exponent = math.floor(math.log10(guess)) + 1 - SIGNIFICANT_DIGITS
    units = math.ceil(guess / 10.0**exponent)
    far, power = 10**12, _POWER

    def events(units: int) -> Sequence[Step]:
        return [Step(q, _decimal(units, exponent), steps)]

    for bound in budget.spending.bounds():
        while True:
            search = Search(bound, budget.epsilon, far, 0, power, TOLERANCE)
            units, power = search.run(events, units)
            shift = SIGNIFICANT_DIGITS - len(str(units))
            if shift in (-1, 0):
                break
            units, exponent = math.ceil(units * 10.0**shift), exponent - shift
    units, _ = Search(budget.spent, budget.epsilon, far, 0, power).run(events, units)
    return _decimal(units, exponent)


def _central_limit(epsilon: float, delta: float, q: float, steps: int) -> float:
    """A first guess of the noise: many subsampled steps are nearly one Gaussian mechanism."""
    single = get_sigma_gaussian(min(max(epsilon, 1e-3), 200.0), delta)
    if q == 1:
        return float(single * math.sqrt(steps))
    return 1 / math.sqrt(math.log1p(1 / (single * q) ** 2 / steps))


def _decimal(units: int, exponent: int) -> float:
    return float(f"{units}e{exponent}")


def check_epsilon(epsilon: float) -> None:
    """Refuse a budget that is not a positive, finite number."""
    check_number(epsilon, "epsilon")
    if not 0 < epsilon < math.inf:
        raise UserError(f"epsilon must be a finite number above 0, not {epsilon}; 1 to 8 is usual.")


def check_steps(steps: int) -> None:
    """Refuse a number of steps that is not a whole number from 1 to `MAX_STEPS`."""
    check_number(steps, "The number of steps")
    if steps != int(steps) or not 1 <= steps <= MAX_STEPS:
        raise UserError(
            f"The number of steps must be a whole number from 1 to {MAX_STEPS}, not {steps}."
        )


def check_examples(examples: int) -> None:
    """Refuse a data set without examples."""
    check_number(examples, "The number of examples")
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
