"""The search for the weakest claim that a test still rejects."""

from __future__ import annotations

from collections.abc import Callable


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
