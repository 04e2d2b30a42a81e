"""Noise that changes over the steps of a run, and what it costs (Dynamic DP-SGD, Du et al., 2021).

Du et al. lower the clipping norm and the noise multiplier from step to step, so that late steps,
whose gradients are small, drown less. Here the noise multiplier is constant within each of a few
pieces of the run: the privacy-loss distributions of the pieces compose to a tight bound, at a cost
that grows with the number of different noise levels. The clipping norm is free to change at every
step, as noise is scaled to it.

*Guarantee:* the schedule is fixed before the first step and looks at no data, which is what the
composition of different steps asks for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sfumato.errors import UserError
from sfumato.privacy.accounting import accountants
from sfumato.privacy.accounting.accountants import SEARCH_POINTS, AccountantName, Step, merge
from sfumato.privacy.accounting.calibration import noise_multiplier_for

PIECES = 12
"""Different noise levels of a run: composing each costs a tenth of a second or two."""

_DIGITS = 4


@dataclass(frozen=True)
class NoiseSchedule:
    """Noise multipliers over the steps of a run.

    Attributes:
        ends: The last step (from 1) of each piece, increasing.
        multipliers: The noise multiplier of each piece.
    """

    ends: tuple[int, ...]
    multipliers: tuple[float, ...]

    @property
    def steps(self) -> int:
        """Steps in all."""
        return self.ends[-1]

    def at(self, step: int) -> float:
        """The noise multiplier of step `step` (from 1)."""
        return self.multipliers[int(np.searchsorted(self.ends, step))]

    def history(self, q: float, steps: int | None = None) -> tuple[Step, ...]:
        """The events of the first `steps` steps."""
        upto = self.steps if steps is None else steps
        found, begin = [], 0
        for end, multiplier in zip(self.ends, self.multipliers, strict=True):
            if (count := min(end, upto) - begin) > 0:
                found.append(Step(q, multiplier, count))
            begin = end
        return merge(found)

    def scaled(self, factor: float) -> NoiseSchedule:
        """The same course at another height, rounded up to six significant digits."""
        return NoiseSchedule(self.ends, tuple(_rounded_up(factor * m) for m in self.multipliers))


def decaying(steps: int, ratio: float, *, pieces: int = PIECES) -> NoiseSchedule:
    """`ratio^(−t/T)` in pieces of equal length, each with its value in the middle.

    Args:
        steps: T.
        ratio: The noise at the start over that at the end; below 1 the noise grows.
        pieces: How many different levels, at most.
    """
    if not 0.01 <= ratio <= 100:
        raise UserError(f"The noise may change by a factor of 0.01 to 100 in a run, not {ratio:g}.")
    count = 1 if ratio == 1 else min(pieces, steps)
    ends = tuple(round(steps * (k + 1) / count) for k in range(count))
    begins = (0, *ends[:-1])
    middles = ((a + b) / 2 / steps for a, b in zip(begins, ends, strict=True))
    return NoiseSchedule(ends, tuple(ratio**-middle for middle in middles))


def calibrated(
    course: NoiseSchedule,
    *,
    epsilon: float,
    delta: float,
    q: float,
    before: Sequence[Step] = (),
    accountant: AccountantName = "pld",
) -> NoiseSchedule:
    """The course at a height that spends the budget to a thousandth, or to four digits of noise.

    *Guarantee:* `accountants.epsilon` of `before` and the schedule's history is at most `epsilon`.
    """
    if before and accountants.epsilon(before, delta=delta, accountant=accountant) >= epsilon:
        raise UserError(f"What came before leaves nothing of the budget of epsilon = {epsilon:g}.")
    equal = noise_multiplier_for(
        epsilon=epsilon, delta=delta, q=q, steps=course.steps, accountant=accountant
    )
    # By the central limit theorem of Gaussian privacy, equal sums of 1/sigma² cost about the same.
    cost = sum(s.count / s.noise_multiplier**2 for s in course.history(q))
    guess = equal * math.sqrt(cost / course.steps)
    exponent = math.floor(math.log10(guess)) + 1 - _DIGITS

    def spent(units: int) -> float:
        history = [*before, *course.scaled(units * 10.0**exponent).history(q)]
        return accountants.epsilon(history, delta=delta, accountant=accountant)

    units = max(1, round(guess / 10.0**exponent))
    fits: tuple[int, float] | None = None
    exceeds: tuple[int, float] | None = None
    while True:
        value = spent(units)
        if value <= epsilon:
            fits = units, value
        else:
            exceeds = units, value
        if fits is not None and (
            fits[1] > 0.999 * epsilon or fits[0] - (exceeds[0] if exceeds else 0) == 1
        ):
            return course.scaled(fits[0] * 10.0**exponent)
        units = _between(fits, exceeds, 0.9997 * epsilon)


def _between(
    fits: tuple[int, float] | None, exceeds: tuple[int, float] | None, target: float
) -> int:
    """Where epsilon meets the target if it is a power of the noise, between what is known."""
    if fits is not None and exceeds is not None and math.isfinite(exceeds[1]):
        rise = math.log(exceeds[1] / fits[1]) / math.log(exceeds[0] / fits[0])
        units = round(fits[0] * math.exp(math.log(target / fits[1]) / rise))
        return min(max(units, exceeds[0] + 1), fits[0] - 1)
    if fits is None:
        assert exceeds is not None
        return math.ceil(exceeds[0] * min(2.0, math.pow(exceeds[1] / target, 0.7))) + 1
    low = exceeds[0] if exceeds else 0
    return max(low + 1, math.floor(fits[0] * max(0.5, math.pow(fits[1] / target, 0.7))) - 1)


def affordable(
    schedule: NoiseSchedule,
    *,
    epsilon: float,
    delta: float,
    q: float,
    before: Sequence[Step] = (),
    accountant: AccountantName = "pld",
) -> int:
    """How many of the schedule's steps fit into the budget.

    Raises:
        UserError: If not even one does.
    """

    def fits(steps: int) -> bool:
        history = [*before, *schedule.history(q, steps)]
        return accountants.epsilon(history, delta=delta, accountant=accountant) <= epsilon

    if fits(schedule.steps):
        return schedule.steps
    good, bad = 0, schedule.steps
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    if not good:
        raise UserError(
            f"Not even one step with a noise multiplier of {schedule.at(1):g} fits into "
            f"epsilon = {epsilon:g}. Raise the noise or epsilon."
        )
    return good


def curve(
    schedule: NoiseSchedule,
    counts: Sequence[int],
    *,
    delta: float,
    q: float,
    before: Sequence[Step] = (),
    accountant: AccountantName = "pld",
) -> list[float]:
    """Upper bounds of epsilon after each of several numbers of steps; that of the last is exact.

    Computed at the ends of the pieces: what lies between takes the value of the next end.
    """
    if not counts:
        return []
    last = max(counts)
    ends = sorted({*(end for end in schedule.ends if end < last), last})
    values: list[float] = []
    ceiling = accountants.epsilon(
        [*before, *schedule.history(q, last)], delta=delta, accountant=accountant
    )
    for end in ends[:-1]:
        history = merge([*before, *schedule.history(q, end)])
        if accountant == "rdp":
            spent = accountants.epsilon(history, delta=delta, accountant="rdp")
        else:
            spent = accountants.pld_epsilon(history, delta, SEARCH_POINTS)
        values.append(max([min(spent, ceiling), *values[-1:]]))
    values.append(ceiling)
    return [values[int(np.searchsorted(ends, count))] if count else 0.0 for count in counts]


def _rounded_up(value: float) -> float:
    exponent = math.floor(math.log10(value)) - 5
    return float(f"{math.ceil(value / 10.0**exponent - 1e-9)}e{exponent}")
