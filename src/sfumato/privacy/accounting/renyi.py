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

_FEW_TERMS = 100
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
    return float(_log_sums(-math.inf, terms + (n * n - n) / (2 * noise_multiplier**2))[-1])


def _fractional(q: float, noise_multiplier: float, order: float) -> float:
    """The logarithm of the moment of another order: two series, one on each side of a point.

    They end where both decrease and their terms are below e⁻³⁰ of the sum.
    """
    sums = last = np.full(2, -math.inf)
    for first in range(0, _MOST_TERMS, _FEW_TERMS):
        n = np.arange(first, first + _FEW_TERMS)
        terms = _terms(q, noise_multiplier, order, n)
        partial = np.stack([_log_sums(*pair) for pair in zip(sums, terms, strict=True)])
        total = np.logaddexp(*partial)
        falling = (terms < np.column_stack([last, terms[:, :-1]])).all(0)
        found = falling & (terms.max(0) < total - 30)
        if found.any():
            return float(total[found.argmax()])
        sums, last = partial[:, -1], terms[:, -1]
    return math.inf


def _log_sums(first: float, terms: Any) -> Any:
    """The logarithms of the sums of a first number and each more of the others, one by one."""
    return np.logaddexp.accumulate(np.concatenate(([first], terms)))[1:]


def _terms(q: float, sigma: float, order: float, n: Any) -> Any:
    """The logarithms of the terms of both series."""
    log_q, log_rest = math.log(q), math.log1p(-q)
    middle = sigma**2 * math.log(1 / q - 1) + 0.5
    binomial, m = _log_binomial(order, n), order - n
    left = binomial + n * log_q + m * log_rest + (n * n - n) / (2 * sigma**2)
    right = binomial + m * log_q + n * log_rest + (m * m - m) / (2 * sigma**2)
    root = math.sqrt(2) * sigma
    left = left + (math.log(0.5) + _log_erfc((n - middle) / root))
    right = right + (math.log(0.5) + _log_erfc((middle - m) / root))
    return np.stack([left, right])


def _log_binomial(n: float, k: Any) -> Any:
    return special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1)


def _log_erfc(x: Any) -> Any:
    return math.log(2) + special.log_ndtr(-x * 2**0.5)
