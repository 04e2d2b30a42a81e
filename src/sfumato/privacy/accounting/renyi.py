"""Rényi divergences of one Poisson-subsampled Gaussian step (Mironov et al., 2019, section 3.3).

The same sums as in dp_accounting, which calls special functions for one term at a time; here all
terms of a sum are computed at once. They are added in the same order, so that every divergence is
the same to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import special

_MOST_TERMS = 1000
"""Terms after which a sum counts as not converging: its order is then excluded, which is safe."""

_FEW_TERMS = 50
"""Terms that are computed at once."""


def divergences(q: float, noise_multiplier: float, orders: Sequence[float]) -> Any:
    """The Rényi divergence at each order, infinite where it cannot be computed."""
    if q == 1:
        return np.asarray(orders, dtype=float) / (2 * noise_multiplier**2)
    found = []
    for order in orders:
        moment = _whole if float(order).is_integer() else _fractional
        found.append(moment(q, noise_multiplier, order) / (order - 1))
    return np.array(found)


def _whole(q: float, noise_multiplier: float, order: float) -> float:
    """The logarithm of the moment of an integer order: a binomial sum."""
    n = np.arange(int(order) + 1)
    terms = _log_binomial(int(order), n) + n * math.log(q) + (int(order) - n) * math.log1p(-q)
    total = -math.inf
    for term in (terms + (n * n - n) / (2 * noise_multiplier**2)).tolist():
        total = _log_add(total, term)
    return total


def _fractional(q: float, noise_multiplier: float, order: float) -> float:
    """The logarithm of the moment of another order: two series, one on each side of a point."""
    left = right = last_left = last_right = -math.inf
    for first in range(0, _MOST_TERMS, _FEW_TERMS):
        n = np.arange(first, first + _FEW_TERMS)
        for a, b in zip(*_terms(q, noise_multiplier, order, n), strict=True):
            left, right = _log_add(left, a), _log_add(right, b)
            if a < last_left and b < last_right:
                total = _log_add(left, right)
                if max(a, b) < total - 30:
                    return total
            last_left, last_right = a, b
    return math.inf


def _terms(q: float, sigma: float, order: float, n: Any) -> tuple[list[float], list[float]]:
    """The logarithms of the terms of both series."""
    log_q, log_rest = math.log(q), math.log1p(-q)
    middle = sigma**2 * math.log(1 / q - 1) + 0.5
    binomial, m = _log_binomial(order, n), order - n
    left = binomial + n * log_q + m * log_rest + (n * n - n) / (2 * sigma**2)
    right = binomial + m * log_q + n * log_rest + (m * m - m) / (2 * sigma**2)
    root = math.sqrt(2) * sigma
    left = left + (math.log(0.5) + _log_erfc((n - middle) / root))
    right = right + (math.log(0.5) + _log_erfc((middle - m) / root))
    return left.tolist(), right.tolist()


def _log_binomial(n: float, k: Any) -> Any:
    return special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1)


def _log_erfc(x: Any) -> Any:
    return math.log(2) + special.log_ndtr(-x * 2**0.5)


def _log_add(x: float, y: float) -> float:
    small, large = (x, y) if x < y else (y, x)
    return large if small == -math.inf else math.log1p(math.exp(small - large)) + large
