"""A search for the last integer whose privacy events stay within a target epsilon."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sfumato.privacy.accounting.accountants import Step

Events = Callable[[int], Sequence[Step]]
"""The privacy events of an integer: a number of steps, a batch, or units of noise."""


@dataclass(frozen=True)
class Search:
    """A search for the last integer, from `fits` towards `exceeds`, that stays within `target`.

    Between the two log epsilon is nearly linear in log n, which makes each guess.

    Attributes:
        cost: Epsilon of events, or an upper bound of it.
        target: The largest epsilon that fits.
        fits: An integer that fits. It is not tried.
        exceeds: An integer that does not. It is not tried.
        power: About d log n / d log epsilon.
        tolerance: The part of the target that may be left unspent.
    """

    cost: Callable[[Sequence[Step]], float]
    target: float
    fits: int
    exceeds: int
    power: float
    tolerance: float = 0.0

    def run(self, events: Events, start: int) -> tuple[int, float]:
        """The answer of a search that begins at `start`, and the power that was found there."""
        good, bad, n, tries = (self.fits, 0.0), (self.exceeds, math.inf), start, 0
        while abs(good[0] - bad[0]) > 1:
            low, high = sorted((good[0], bad[0]))
            n = min(max(n, low + 1), high - 1)
            spent, tries = self.cost(events(n)), tries + 1
            if spent <= self.target:
                good = n, spent
                if spent > (1 - self.tolerance) * self.target:
                    break
            else:
                bad = n, spent
            n = self._guess(n, good, bad, tries)
        return good[0], _power(good, bad) or self.power

    def _guess(self, n: int, good: tuple[int, float], bad: tuple[int, float], tries: int) -> int:
        """The integer where a power law meets the target, or a little beyond it from one side."""
        aim = (1 - 0.3 * self.tolerance) * self.target
        if power := _power(good, bad):
            if tries % 8 == 0:
                return math.isqrt(good[0] * bad[0])
            return round(good[0] * math.pow(aim / good[1], power))
        if good[0] != self.fits and bad[0] != self.exceeds:
            # Both were tried, and one cost nothing or no finite number: no power law.
            return math.isqrt(good[0] * bad[0])
        up = (good[0] < bad[0]) == (good[1] > 0 or n == good[0])
        n, spent = good if good[1] > 0 or n == good[0] else bad
        # Near the cost of the earlier steps alone a power law would converge slowly.
        usable = 1e-9 * aim < spent < math.inf and tries < 8
        factor = math.pow(aim / spent, self.power) if usable else math.inf if up else 0.0
        beyond = 1 if self.tolerance else 0
        if up:
            return math.ceil(n * min(2.0, factor)) + beyond
        return math.floor(n * max(0.5, factor)) - beyond


def _power(good: tuple[int, float], bad: tuple[int, float]) -> float | None:
    """d log n / d log epsilon between two integers with epsilons above 0 and below infinity."""
    if not (good[1] > 0 and bad[1] < math.inf):
        return None
    return math.log(bad[0] / good[0]) / math.log(bad[1] / good[1])
