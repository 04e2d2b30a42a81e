"""The privacy-loss distribution of one Poisson-subsampled Gaussian step, on a grid.

The distribution is rounded, pessimistically, to multiples of one width. Rounding adds up to
width²/4 to the variance of each step's loss, so the width must be small against the standard
deviation of that loss; time and memory grow with the range of the loss over the width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

USUAL_WIDTH = 1e-4
FINEST_WIDTH = USUAL_WIDTH / 1024
"""Below this, rounding errors of floating point outweigh those of the grid."""

_TAIL = 9.8
"""Standard deviations at which dp_accounting truncates the Gaussian (mass e⁻⁵⁰)."""


def one_step(q: float, noise_multiplier: float, width: float) -> PrivacyLossDistribution:
    """The distribution of one step when an example is removed, and when one is added.

    The same as `dp_accounting`'s `from_gaussian_mechanism`, which takes the grid points one by one
    in Python; here they are taken at once.

    *Guarantee:* the "connect the dots" discretisation dominates the true distribution, so whatever
    is composed from it is an upper bound. The relation is add-or-remove-one-example.
    """
    remove = _pmf(q, noise_multiplier, width, AdjacencyType.REMOVE)
    if q == 1:
        return PrivacyLossDistribution(remove)
    return PrivacyLossDistribution(remove, _pmf(q, noise_multiplier, width, AdjacencyType.ADD))


def _pmf(q: float, noise_multiplier: float, width: float, adjacency: AdjacencyType) -> Any:
    loss = GaussianPrivacyLoss(noise_multiplier, sampling_prob=q, adjacency_type=adjacency)
    bounds = loss.connect_dots_bounds()
    lower = math.floor(bounds.epsilon_lower / width)
    upper = math.ceil(bounds.epsilon_upper / width)
    epsilons = np.arange(lower, upper + 1) * width
    # The loss falls with the output x, so delta(ε) = P(x ≤ c) - e^ε Q(x ≤ c) with loss(c) = ε.
    sign = 1 if adjacency == AdjacencyType.REMOVE else -1
    cut = sign * _inverse_loss_remove(q, noise_multiplier, sign * epsilons)
    inside = np.isfinite(cut)
    deltas = np.zeros_like(epsilons)
    deltas[inside] = loss.mu_upper_cdf(cut[inside]) - np.exp(
        epsilons[inside] + loss.mu_lower_log_cdf(cut[inside])
    )
    # No output reaches the loss ε: everything exceeds it (remove), or nothing does (add).
    if adjacency == AdjacencyType.REMOVE:
        deltas[~inside] = -np.expm1(epsilons[~inside])
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
        width, lower, upper, np.clip(deltas, 0, 1)
    )


def _inverse_loss_remove(q: float, noise_multiplier: float, epsilons: Any) -> Any:
    """x with log(1 - q + q exp(-(x + 1/2) / σ²)) = ε, infinite where there is none."""
    with np.errstate(divide="ignore", invalid="ignore"):
        # log((e^ε - 1 + q) / q), written so that neither large nor small ε loses digits.
        small = np.log1p(np.expm1(np.minimum(epsilons, 1.0)) / q)
        large = epsilons + np.log1p((q - 1) * np.exp(-np.maximum(epsilons, 1.0))) - math.log(q)
        unsampled = epsilons if q == 1 else np.where(epsilons > 1, large, small)
        x = -0.5 - unsampled * noise_multiplier**2
    return np.where(np.isnan(x), np.inf, x)


def width(parts: Sequence[tuple[float, float]], *, epsilon: float, points: int) -> float:
    """The grid width for steps with the given (q, noise multiplier): `USUAL_WIDTH` times 2ᵏ.

    Finer where one step's loss is narrower than 16 widths (small q, much noise), which keeps the
    pessimism of rounding below 0.1 % of epsilon; coarser where one step's loss would need more than
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
