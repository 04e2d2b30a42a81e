"""Eigenvalues of a large symmetric matrix from its products with vectors.

Lanczos with full reorthogonalisation gives the extreme eigenvalues with error bounds; the same
recurrence from random vectors gives the density of all of them (stochastic Lanczos quadrature).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from sfumato.analysis.classification import Array
from sfumato.analysis.curvature import Advance, Hessian, rademacher
from sfumato.errors import UserError
from sfumato.privacy.numerics.precision import widest

EXACT = 600
"""Up to this many parameters the spectrum is computed from the whole matrix."""

RESOLUTION = 1e-3
"""The density tells eigenvalues from zero that are larger than this part of the largest."""


class Symmetric(Protocol):
    """A symmetric matrix that is known by its products with vectors."""

    size: int
    device: torch.device
    dtype: torch.dtype

    def __matmul__(self, vector: Tensor) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Ritz:
    """The eigenvalues of the small tridiagonal matrix that Lanczos makes.

    Attributes:
        values: Increasing.
        weights: Squared first components of its eigenvectors; they sum to 1. Together with `values`
            they integrate any function of the spectrum as the start vector sees it.
        errors: For each value, how far at most the nearest true eigenvalue is.
    """

    values: Array
    weights: Array
    errors: Array


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The result of `spectrum_of`.

    Attributes:
        size: Parameters, so eigenvalues in all.
        top: The largest eigenvalues in size, |.| decreasing.
        errors: Bounds on the error of each; zero where exact.
        values: Nodes of the density: Ritz values of all probes, or every eigenvalue.
        weights: Their shares of the spectrum, summing to 1.
        exact: Whether these are all the eigenvalues and not an estimate.
        tolerance: What rounding makes of zero: such values are neither negative nor positive.
        resolution: Values within this of zero cannot be told from it by the density. Networks have
            many eigenvalues there, and a single node may stand for all of them.
        probes: Random vectors used for the density.
        iterations: Lanczos steps of each.
        negative_found: Negative values among those of the first probe's (or of all, if exact).
        found: How many values that is out of.
    """

    size: int
    top: Array
    errors: Array
    values: Array
    weights: Array
    exact: bool
    tolerance: float
    resolution: float
    probes: int
    iterations: int
    negative_found: int
    found: int

    @property
    def negative_mass(self) -> float:
        """The fraction of eigenvalues below zero by more than `resolution`, by the density."""
        return float(self.weights[self.values < -self.resolution].sum())

    @property
    def zero_mass(self) -> float:
        """The fraction of eigenvalues that are zero as far as the density can tell."""
        return float(self.weights[np.abs(self.values) <= self.resolution].sum())

    @property
    def negative_count(self) -> float:
        """The number of negative eigenvalues that the density stands for."""
        return self.size * self.negative_mass

    @property
    def condition(self) -> float:
        """|largest| / |smallest positive| eigenvalue; infinite if none is positive.

        From Lanczos the smallest positive value is only as small as its steps reach, so the number
        is a lower bound that grows with them: compare models at equal iterations.
        """
        positive = self.values[self.values > self.tolerance]
        return float(abs(self.top[0]) / positive.min()) if len(positive) else math.inf

    def density(self, grid: Array, *, width: float | None = None) -> Array:
        """The density of eigenvalues at the points of a grid, each blurred by a Gaussian."""
        sigma = width or max(1e-12, 0.01 * float(grid.max() - grid.min()))
        steps = (np.asarray(grid)[:, None] - self.values[None]) / sigma
        bells = np.exp(-0.5 * steps**2) / (sigma * math.sqrt(2 * math.pi))
        blurred: Array = bells @ self.weights
        return blurred

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        condition = self.condition
        return {
            "parameters": self.size,
            "exact": self.exact,
            "eigenvalues": self.top.tolist(),
            "eigenvalue_errors": self.errors.tolist(),
            "negative": {
                "found": self.negative_found,
                "of": self.found,
                "mass": self.negative_mass,
                "count": self.negative_count,
                "zero_mass": self.zero_mass,
            },
            "tolerance": self.tolerance,
            "resolution": self.resolution,
            "condition": condition if math.isfinite(condition) else None,
            "probes": self.probes,
            "iterations": self.iterations,
            "density": {"values": self.values.tolist(), "weights": self.weights.tolist()},
        }


def lanczos(
    matrix: Symmetric,
    start: Tensor,
    *,
    iterations: int,
    top: int = 0,
    tolerance: float = 0.0,
    advance: Advance | None = None,
) -> Ritz:
    """Lanczos from a start vector, each new vector orthogonalised twice against all earlier ones.

    Args:
        matrix: Symmetric.
        start: Any vector that is not zero.
        iterations: The most steps; fewer where the vectors span an invariant subspace.
        top: Stop early once the errors of so many largest values in size are below `tolerance`
            times the largest; 0 for never.
        tolerance: See `top`.
        advance: Called with 1 after each product.
    """
    if iterations < 1:
        raise UserError(f"Lanczos needs at least 1 iteration, not {iterations}.")
    wide = widest(matrix.device)
    most = min(iterations, matrix.size)
    basis = torch.empty(most, matrix.size, device=matrix.device, dtype=matrix.dtype)
    basis[0] = start.to(matrix.device, matrix.dtype) / torch.linalg.vector_norm(start)
    alphas: list[float] = []
    betas: list[float] = []
    scale = 0.0
    for k in range(most):
        product = matrix @ basis[k]
        alphas.append(float(torch.dot(product.to(wide), basis[k].to(wide))))
        if advance:
            advance(1)
        for _ in range(2):
            product = product - basis[: k + 1].T @ (basis[: k + 1] @ product)
        beta = float(torch.linalg.vector_norm(product, dtype=wide))
        scale = max(scale, abs(alphas[-1]), *betas[-1:], beta)
        betas.append(beta)
        if beta <= 100 * torch.finfo(matrix.dtype).eps * scale:
            betas[-1] = 0.0
            break
        if top and k % 5 == 4 and _settled(_ritz(alphas, betas), top, tolerance):
            break
        if k + 1 < most:
            basis[k + 1] = product / beta
    return _ritz(alphas, betas)


def _ritz(alphas: list[float], betas: list[float]) -> Ritz:
    tridiagonal = np.diag(alphas) + np.diag(betas[:-1], 1) + np.diag(betas[:-1], -1)
    values, vectors = np.linalg.eigh(tridiagonal)
    return Ritz(values, vectors[0] ** 2, betas[-1] * np.abs(vectors[-1]))


def _settled(ritz: Ritz, top: int, tolerance: float) -> bool:
    order = np.argsort(-np.abs(ritz.values))[:top]
    largest = abs(ritz.values[order[0]])
    return len(order) == top and bool((ritz.errors[order] <= tolerance * largest).all())


def top_eigenvalues(
    matrix: Symmetric,
    *,
    count: int = 10,
    iterations: int = 100,
    tolerance: float = 1e-3,
    seed: int = 0,
    advance: Advance | None = None,
) -> tuple[Array, Array]:
    """The eigenvalues of largest size, |.| decreasing, and bounds on their errors.

    An eigenvalue that occurs several times is found once: a single start vector has one direction
    in its eigenspace.
    """
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(matrix.size, generator=generator, dtype=torch.float64).to(matrix.dtype)
    ritz = lanczos(
        matrix, start, iterations=iterations, top=count, tolerance=tolerance, advance=advance
    )
    return _top(ritz, count)


def spectrum_of(
    hessian: Hessian,
    *,
    top: int = 10,
    iterations: int = 40,
    probes: int = 3,
    exact: int = EXACT,
    seed: int = 0,
    advance: Advance | None = None,
) -> Spectrum:
    """The largest eigenvalues, the density of all, and how many are negative.

    Args:
        hessian: The matrix, as a linear map.
        top: How many of the largest to give.
        iterations: Lanczos steps from each random vector.
        probes: Random vectors.
        exact: Up to this many parameters the whole matrix is computed instead.
        seed: Of the vectors.
        advance: Called with 1 after each product.
    """
    if hessian.size <= exact:
        return exact_spectrum(hessian, top=top, advance=advance)
    if probes < 1:
        raise UserError(f"A spectrum needs at least 1 probe, not {probes}.")
    generator = torch.Generator().manual_seed(seed)
    runs = []
    for _ in range(probes):
        start = rademacher(hessian.size, generator, hessian)
        runs.append(lanczos(hessian, start, iterations=iterations, advance=advance))
    largest = max(float(np.abs(r.values).max()) for r in runs)
    tolerance = _floor(hessian, largest)
    best, errors = _top(runs[0], top)
    return Spectrum(
        size=hessian.size,
        top=best,
        errors=errors,
        values=np.concatenate([r.values for r in runs]),
        weights=np.concatenate([r.weights for r in runs]) / probes,
        exact=False,
        tolerance=tolerance,
        resolution=max(tolerance, RESOLUTION * largest),
        probes=probes,
        iterations=iterations,
        negative_found=int((runs[0].values < -tolerance).sum()),
        found=len(runs[0].values),
    )


def exact_spectrum(hessian: Hessian, *, top: int = 10, advance: Advance | None = None) -> Spectrum:
    """Every eigenvalue of a small model's Hessian, from the whole matrix."""
    matrix = hessian.dense(advance=advance).to("cpu", torch.float64)
    values: Array = torch.linalg.eigvalsh(matrix).numpy()
    tolerance = _floor(hessian, float(np.abs(values).max()))
    best = values[np.argsort(-np.abs(values))][:top]
    return Spectrum(
        size=hessian.size,
        top=best,
        errors=np.zeros_like(best),
        values=values,
        weights=np.full(len(values), 1 / len(values)),
        exact=True,
        tolerance=tolerance,
        resolution=tolerance,
        probes=0,
        iterations=hessian.size,
        negative_found=int((values < -tolerance).sum()),
        found=len(values),
    )


def _floor(hessian: Hessian, largest: float) -> float:
    """The size up to which rounding explains an eigenvalue."""
    return float(torch.finfo(hessian.dtype).eps) * math.sqrt(hessian.size) * max(largest, 1e-30)


def _top(ritz: Ritz, count: int) -> tuple[Array, Array]:
    order = np.argsort(-np.abs(ritz.values))[:count]
    return ritz.values[order], ritz.errors[order]
