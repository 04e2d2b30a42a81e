"""The privacy losses of dp_accounting on a grid, with its three slow loops vectorised.

dp_accounting goes through grid points in Python to discretise a loss and to find epsilon, and takes
most of the time of a composition for the bounds of its result. A search for the noise of a run does
all three a dozen times. The operations that round are done here in dp_accounting's order, so that
every epsilon is the same to the last bit.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
from dp_accounting.pld import pld_pmf
from scipy import fft

_CHUNK = 16_384
"""Grid points that are searched at once for epsilon; it is usually found in the first few."""

_SPARSE = 1000
"""Up to so many grid points dp_accounting has a representation of its own."""

_ORDERS = 20
"""Orders of the Chernoff bounds, in each direction, over the number of grid points."""

_ROUNDING = 1e-12
"""The largest increase from one divergence to the next that counts as a rounding error."""

_TAIL_MASS = 1e-15
"""The mass that a composition may truncate, which then counts as an infinite loss."""


class GridPmf(pld_pmf.DensePLDPmf):  # type: ignore[misc]
    """Probabilities of privacy losses that are multiples of one width.

    *Guarantee:* equal to `DensePLDPmf` of dp_accounting in every method.
    """

    def compose(self, other: Any, tail_mass_truncation: float = 0) -> GridPmf:
        """The losses of two mechanisms together."""
        return _quick(super().compose(other, tail_mass_truncation))

    def self_compose(self, num_times: int, tail_mass_truncation: float = _TAIL_MASS) -> GridPmf:
        """The losses of one mechanism several times, which may truncate some mass to infinity."""
        lowest, highest = self._bounds(num_times, tail_mass_truncation)
        size = highest - lowest + 1
        length = fft.next_fast_len(max(size, self.size))
        # Convolution wraps around modulo the length.
        probabilities = np.real(fft.ifft(fft.fft(self._probs, length) ** num_times))
        finite = num_times * math.log1p(-self._infinity_mass)
        return GridPmf(
            self._discretization,
            self._lower_loss * num_times + lowest,
            np.roll(probabilities, -lowest)[:size],
            tail_mass_truncation - math.expm1(finite),
            self._pessimistic_estimate,
        )

    def get_epsilon_for_delta(self, delta: float) -> float:
        """The smallest epsilon whose hockey-stick divergence is at most `delta`."""
        if self._infinity_mass > delta:
            return math.inf
        above, below, width = self._infinity_mass, 0.0, self._discretization
        loss = (self._lower_loss + self.size - 1) * width
        for start in range(0, self.size, _CHUNK):
            # From the largest loss on: the mass above each loss under either distribution.
            masses = self._probs[::-1][start : start + _CHUNK]
            losses = _sums(loss, np.full(len(masses), -width))
            # `math.exp`, because that of numpy rounds differently.
            factors = list(map(math.exp, np.minimum(-losses[:-1], 709.0).tolist()))
            aboves, belows = _sums(above, masses), _sums(below, factors * masses)
            for n in _candidates(losses, aboves, belows, delta):
                if _epsilon(aboves[n], belows[n], delta) >= losses[n]:
                    return _positive(aboves[n], belows[n], delta)
                if aboves[n + 1] >= delta and belows[n + 1] == 0:
                    return max(0.0, float(losses[n]))
            loss, above, below = losses[-1], aboves[-1], belows[-1]
        return _positive(above, below, delta)

    def _bounds(self, count: int, tail_mass: float) -> tuple[int, int]:
        """The range of the sum of `count` losses but for the tail mass, in grid points."""
        lowest, highest = 0, (self.size - 1) * count
        if tail_mass == 0:
            return lowest, highest
        for order, log_moment in self._log_moments:
            bound = (count * log_moment + math.log(2 / tail_mass)) / order
            if not math.isfinite(bound):
                continue
            if order > 0:
                highest = min(highest, math.ceil(bound))
            else:
                lowest = max(lowest, math.floor(bound))
        return lowest, highest

    @cached_property
    def _log_moments(self) -> list[tuple[float, float]]:
        """Orders and the logarithms of the moment-generating function there."""
        found = []
        for sign in (-1, 1):
            growth = np.exp(sign * np.arange(self.size) / self.size)
            terms = np.array(self._probs)
            for order in range(1, _ORDERS + 1):
                terms *= growth
                found.append((sign * order / self.size, float(np.log(terms.sum()))))
        return found


def connect_the_dots(width: float, lower: int, upper: int, deltas: Any) -> Any:
    """The pessimistic distribution on multiples of `width` with the given divergences.

    Args:
        width: Spacing of the grid.
        lower: The smallest loss, in widths.
        upper: The largest.
        deltas: The hockey-stick divergence at each loss, from 0 to 1 and not increasing.

    *Guarantee:* equal to `create_pmf_pessimistic_connect_dots_fixed_gap` of dp_accounting.
    """
    if lower == upper:
        return _SparsePmf({lower: 1 - deltas[0]}, width, deltas[0], True)
    if np.any(np.diff(deltas) > _ROUNDING):
        raise ValueError(f"The divergences increase with the loss: {deltas}")
    deltas = np.minimum.accumulate(deltas)
    steps, growth = np.diff(deltas), math.expm1(width)
    masses = np.empty_like(deltas)
    masses[0] = 1 - deltas[0] + steps[0] / growth
    masses[1:-1] = (steps[1:] - steps[:-1] * math.exp(width)) / growth
    masses[-1] = steps[-1] / math.expm1(-width)
    masses = np.maximum(0.0, masses)
    if len(masses) > _SPARSE:
        return GridPmf(width, lower, masses, deltas[-1], True)
    losses = range(lower, upper + 1)
    return _SparsePmf(dict(zip(losses, masses, strict=True)), width, deltas[-1], True)


class _SparsePmf(pld_pmf.SparsePLDPmf):  # type: ignore[misc]
    """dp_accounting's representation of few losses, which becomes a `GridPmf` where it grows."""

    def to_dense_pmf(self) -> GridPmf:
        return _quick(super().to_dense_pmf())


def _quick(pmf: Any) -> GridPmf:
    return GridPmf(
        pmf._discretization,
        pmf._lower_loss,
        pmf._probs,
        pmf._infinity_mass,
        pmf._pessimistic_estimate,
    )


def _candidates(losses: Any, aboves: Any, belows: Any, delta: float) -> Any:
    """The indices at which the search for epsilon may end, up to rounding errors."""
    excess, below = aboves[:-1] - delta, belows[:-1]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        reached = (below > 0) & (np.log(excess / below) >= losses[:-1] - 1e-9)
    return np.flatnonzero(reached | ((aboves[1:] >= delta) & (belows[1:] == 0)))


def _sums(first: float, terms: Any) -> Any:
    """`first`, and its sums with the terms, one after the other."""
    return np.add.accumulate(np.concatenate(([first], terms)))


def _epsilon(above: float, below: float, delta: float) -> float:
    """The epsilon at which the divergence of these masses is `delta`, -infinity without one."""
    excess = float(above) - delta
    return math.log(excess / float(below)) if excess > 0 and below > 0 else -math.inf


def _positive(above: float, below: float, delta: float) -> float:
    return _epsilon(above, below, delta) if above > below + delta else 0.0
