"""How finely to discretise privacy losses, so that the result is accurate and still quick.

A privacy-loss distribution is rounded, pessimistically, to multiples of one width. Rounding adds
about width²/6 to the variance of each step's loss, so the width must be small against the standard
deviation of that loss; time and memory grow with the range of the loss over the width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

USUAL_WIDTH = 1e-4
FINEST_WIDTH = USUAL_WIDTH / 1024
"""Below this, rounding errors of floating point outweigh those of the grid."""

_TAIL = 9.8
"""Standard deviations at which dp_accounting truncates the Gaussian (mass e⁻⁵⁰)."""


def width(parts: Sequence[tuple[float, float]], *, epsilon: float, points: int) -> float:
    """The grid width for steps with the given (q, noise multiplier): `USUAL_WIDTH` times 2ᵏ.

    Finer where one step's loss is narrower than 16 widths (small q, much noise), which keeps the
    pessimism of rounding near 0.03 % of epsilon; coarser where one step's loss would need more than
    `points` points, or `epsilon`, a rough value for all steps together, five times as many.
    """
    finest = max(FINEST_WIDTH, min(_deviation(q, noise) for q, noise in parts) / 16)
    widest = max(_range(q, noise) for q, noise in parts)
    result = USUAL_WIDTH
    while result > finest:
        result /= 2
    while widest > result * points or epsilon > 5 * result * points:
        result *= 2
    return result


def _loss(q: float, noise_multiplier: float, z: Any) -> Any:
    """log(1 - q + q exp((2x - 1) / 2σ²)) at x = σz: the privacy loss of one step."""
    exponent = z / noise_multiplier - 0.5 / noise_multiplier**2
    if q == 1:
        return exponent
    return np.logaddexp(math.log1p(-q), math.log(q) + exponent)


def _deviation(q: float, noise_multiplier: float) -> float:
    z = np.linspace(-8, 8, 801)
    density = np.exp(-(z**2) / 2)
    loss = _loss(q, noise_multiplier, z)
    mean = np.average(loss, weights=density)
    return math.sqrt(np.average((loss - mean) ** 2, weights=density))


def _range(q: float, noise_multiplier: float) -> float:
    highest = _loss(q, noise_multiplier, _TAIL + 1 / noise_multiplier)
    return float(highest - _loss(q, noise_multiplier, -_TAIL))
