"""The search for the weakest claim that a test still rejects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sfumato.privacy.audit.pairs import Family, Pair


class Test(Protocol):
    """A statistical test of a claim, such as `f_dp.rejects` and `order_statistics.rejects`."""

    def __call__(
        self, pair: Pair, *, canaries: int, guesses: int, correct: int, significance: float
    ) -> bool:
        """Tell whether the number of correct guesses about canaries rejects the claim `pair`.

        Args:
            pair: The claim: that the run is at least as private as this pair of distributions.
            canaries: Number of canaries, whether or not they were guessed.
            guesses: Number of guesses, fixed before the scores are known.
            correct: Correct ones among them.
            significance: Probability of rejecting a true claim, at most.
        """
        ...


def epsilon_bound(
    rejects: Test,
    family: Family,
    *,
    canaries: int,
    guesses: int,
    correct: int,
    delta: float,
    significance: float = 0.05,
    most: float = 64.0,
    precision: float = 1e-5,
) -> float:
    """The epsilon at `delta` of the least private claim of a family that a test rejects.

    *Guarantee:* If a run is no less private than a pair of the family, the bound is above the
    epsilon of this pair with a probability of at most `significance`.

    Args:
        rejects: The test.
        family: The claims, less private with a larger scale.
        canaries: Number of canaries, whether or not they were guessed.
        guesses: Number of guesses, fixed before the scores are known.
        correct: Correct ones among them.
        delta: As in (epsilon, delta).
        significance: Probability of rejecting a true claim, at most.
        most: Largest scale.
        precision: Relative precision of the scale that is found, which is never too large.
    """

    def rejected(scale: float) -> bool:
        return rejects(
            family(scale), canaries=canaries, guesses=guesses, correct=correct,
            significance=significance,
        )  # fmt: skip

    scale = largest_rejected(rejected, most=most, precision=precision)
    return family(scale).epsilon(delta) if scale else 0.0


def largest_rejected(
    rejected: Callable[[float], bool], *, most: float, first: float = 1.0, precision: float = 1e-7
) -> float:
    """The largest number that a test rejects; 0 if it does not reject the smallest.

    Args:
        rejected: The test, which rejects all numbers below some number and none above it.
        most: An upper end of the search.
        first: The number that is tested first.
        precision: Relative precision of the result, which is never too large.
    """
    low, high = 0.0, min(first, most)
    while rejected(high):
        low = high
        if high >= most:
            return most
        high = min(2 * high, most)
    floor = precision * min(first, most)
    while high - low > precision * max(high, floor) and high > floor:
        middle = (low + high) / 2
        if rejected(middle):
            low = middle
        else:
            high = middle
    return low
