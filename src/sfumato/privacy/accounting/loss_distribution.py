"""The privacy-loss distribution of one Poisson-subsampled Gaussian step, on a grid.

The distribution is rounded, pessimistically, to multiples of one width. Rounding adds up to
width²/4 to the variance of each step's loss, so the width must be small against the standard
deviation of that loss; time and memory grow with the range of the loss over the width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from dp_accounting.pld.privacy_loss_mechanism import (
    AdjacencyType,
    GaussianPrivacyLoss,
    MixtureGaussianPrivacyLoss,
)
from scipy import stats

from sfumato.privacy.accounting.grid_pmf import connect_the_dots

ADD, REMOVE = AdjacencyType.ADD, AdjacencyType.REMOVE

USUAL_WIDTH = 1e-4
FINEST_WIDTH = USUAL_WIDTH / 1024
"""Below this, floating-point rounding errors exceed those of the grid."""

_TAIL = 9.8
"""Standard deviations at which dp_accounting truncates the Gaussian (mass e⁻⁵⁰)."""


def one_step(
    q: float, noise_multiplier: float, width: float, *, group: int = 1
) -> PrivacyLossDistribution:
    """The distribution of one step when a group of examples is removed, and when one is added.

    The same as `dp_accounting`'s `from_gaussian_mechanism`, and for several examples
    `from_mixture_gaussian_mechanism`, which loop over the grid points in Python; here they are
    vectorised.

    Args:
        q: Sampling probability of each example.
        noise_multiplier: Standard deviation of the noise over the sensitivity of one example.
        width: Spacing of the grid.
        group: Number of examples that are removed or added together. The number of them that a step
            draws is binomial, and those drawn move the sum by at most as many units.

    *Guarantee:* the "connect the dots" discretisation dominates the true distribution, so whatever
    is composed from it is an upper bound. The relation is add-or-remove one group of examples.
    """
    if q == 1:
        return PrivacyLossDistribution(_pmf(q, noise_multiplier / group, width, REMOVE, 1))
    remove, add = (_pmf(q, noise_multiplier, width, way, group) for way in (REMOVE, ADD))
    return PrivacyLossDistribution(remove, add)


def _pmf(
    q: float, noise_multiplier: float, width: float, adjacency: AdjacencyType, group: int
) -> Any:
    loss = _privacy_loss(q, noise_multiplier, adjacency, group)
    bounds = loss.connect_dots_bounds()
    lower = math.floor(bounds.epsilon_lower / width)
    upper = math.ceil(bounds.epsilon_upper / width)
    epsilons = np.arange(lower, upper + 1) * width
    # The loss falls with the output x, so delta(ε) = P(x ≤ c) - e^ε Q(x ≤ c) with loss(c) = ε.
    sign = 1 if adjacency == REMOVE else -1
    inverse = _inverse_loss_remove if group == 1 else partial(_inverse_mixture, group)
    cut = sign * inverse(q, noise_multiplier, sign * epsilons)
    inside = np.isfinite(cut)
    deltas = np.zeros_like(epsilons)
    deltas[inside] = loss.mu_upper_cdf(cut[inside]) - np.exp(
        epsilons[inside] + loss.mu_lower_log_cdf(cut[inside])
    )
    # No output reaches the loss ε: everything exceeds it (remove), or nothing does (add).
    if adjacency == REMOVE:
        deltas[~inside] = -np.expm1(epsilons[~inside])
    return connect_the_dots(width, lower, upper, np.clip(deltas, 0, 1))


def _privacy_loss(q: float, noise_multiplier: float, adjacency: AdjacencyType, group: int) -> Any:
    if group == 1:
        return GaussianPrivacyLoss(noise_multiplier, sampling_prob=q, adjacency_type=adjacency)
    drawn = np.arange(group + 1)
    return MixtureGaussianPrivacyLoss(
        noise_multiplier, drawn, stats.binom.pmf(drawn, group, q), adjacency_type=adjacency
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


def _inverse_mixture(group: int, q: float, noise_multiplier: float, epsilons: Any) -> Any:
    """x at which the loss of removing a group is ε, infinite where there is none.

    Found by interpolation and Newton's method. At another x the divergence differs in second order
    only, so that an error of 10⁻⁹ σ has no effect on it.
    """
    far = 2 * _TAIL + group / noise_multiplier
    z = np.linspace(-far, far, 20_001)
    found = np.interp(epsilons, _loss(q, noise_multiplier, z, group), z)
    for _ in range(4):
        loss, slope = _loss_and_slope(q, noise_multiplier, found, group)
        with np.errstate(divide="ignore", invalid="ignore"):
            moved = found - (loss - epsilons) / slope
        found = np.where(np.isfinite(moved), np.clip(moved, -far, far), found)
    lowest = group * math.log1p(-q)
    return np.where(epsilons <= lowest, np.inf, -noise_multiplier * found)


def width(
    parts: Sequence[tuple[float, float]], *, epsilon: float, points: int, group: int = 1
) -> float:
    """The grid width for steps with the given (q, noise multiplier): `USUAL_WIDTH` times 2ᵏ.

    Finer where one step's loss is narrower than 16 widths (small q, much noise), which keeps the
    pessimism of rounding below 0.1 % of epsilon; coarser where one step's loss would need more than
    `points` points, or `epsilon`, a rough value for all steps together, five times as many.
    """
    finest = max(FINEST_WIDTH, min(_deviation(q, noise, group) for q, noise in parts) / 16)
    widest = max(_range(q, noise, group) for q, noise in parts)
    result = USUAL_WIDTH
    while result > finest:
        result /= 2
    while widest > result * points or epsilon > 5 * result * points:
        result *= 2
    return result


def mean_loss(q: float, noise_multiplier: float, group: int) -> float:
    """The expected privacy loss of one step when a group is removed, by numerical integration."""
    far = 8 + group / noise_multiplier
    z = np.linspace(-8, far, 2001)
    loss = _loss(q, noise_multiplier, z, group)
    density = np.exp(loss - z**2 / 2) / math.sqrt(2 * math.pi)
    return float((density * loss).sum() * (z[1] - z[0]))


def _loss(q: float, noise_multiplier: float, z: Any, group: int = 1) -> Any:
    """log Σ P(j) exp((2jx - j²) / 2σ²) at x = σz: the privacy loss of one step.

    P(j) is the chance that a step draws j of the group's examples: log(1 - q + q exp((2x - 1) /
    2σ²)) for one.
    """
    if q == 1:
        return group * z / noise_multiplier - 0.5 * (group / noise_multiplier) ** 2
    if group == 1:
        exponent = z / noise_multiplier - 0.5 / noise_multiplier**2
        return np.logaddexp(math.log1p(-q), math.log(q) + exponent)
    return _loss_and_slope(q, noise_multiplier, z, group)[0]


def _loss_and_slope(q: float, noise_multiplier: float, z: Any, group: int) -> tuple[Any, Any]:
    """The privacy loss of a group at x = σz, and its derivative by z."""
    drawn = np.arange(group + 1)[:, None]
    chance = stats.binom.logpmf(drawn, group, q)
    terms = chance + drawn * np.atleast_1d(z) / noise_multiplier
    terms = terms - 0.5 * (drawn / noise_multiplier) ** 2
    highest = terms.max(0)
    weights = np.exp(terms - highest)
    total = weights.sum(0)
    return highest + np.log(total), (weights * drawn).sum(0) / total / noise_multiplier


def _deviation(q: float, noise_multiplier: float, group: int) -> float:
    z = np.linspace(-8, 8, 801)
    density = np.exp(-(z**2) / 2)
    loss = _loss(q, noise_multiplier, z, group)
    mean = np.average(loss, weights=density)
    return math.sqrt(np.average((loss - mean) ** 2, weights=density))


def _range(q: float, noise_multiplier: float, group: int) -> float:
    ends = np.array([-_TAIL, _TAIL + group / noise_multiplier])
    lowest, highest = _loss(q, noise_multiplier, ends, group)
    return float(highest - lowest)
