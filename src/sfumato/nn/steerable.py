"""Orthonormal bases of steerable kernels.

A kernel K from fields with representation r_in to fields with r_out is equivariant when K(g x) =
r_out(g) K(x) r_in(g)^-1 for every element g (Weiler and Cesa, "General E(2)-Equivariant Steerable
CNNs", 2019). For regular fields the solutions have a closed form; for the irreps of SO(2) they are
the image of a projector. Both start from circular harmonics on Gaussian rings, evaluated at the
rotated points themselves, so nothing is interpolated.

A checkpoint stores coefficients, so a basis must be the same on every machine. Elements are
therefore chosen in a fixed order and orthonormalised symmetrically: an SVD or an eigenbasis of
the solution space would be rotated arbitrarily by the linear algebra library.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from sfumato.nn.groups import Array, Irreps, Regular, Representation, Trivial, rotation

_DEPENDENT = 1e-3


def grid(kernel_size: int) -> Array:
    """The taps of a kernel in memory order, as points (x right, y up): `(taps, 2)`."""
    axis = np.arange(kernel_size) - (kernel_size - 1) / 2
    y, x = np.meshgrid(-axis, axis, indexing="ij")
    return np.stack([x.ravel(), y.ravel()], axis=-1)


def rings(kernel_size: int) -> list[tuple[float, float]]:
    """Radius and width of the Gaussian rings, from the centre outwards; the last is narrower."""
    last = kernel_size // 2
    widths = [0.005, *[0.6] * (last - 1), 0.4][: last + 1]
    return [(float(radius), width) for radius, width in enumerate(widths)]


def harmonic(points: Array, *, radius: float, width: float, frequency: int) -> Array:
    """A ring times cos, and from frequency 1 also sin: `(1 or 2, *points.shape[:-1])`."""
    r = np.linalg.norm(points, axis=-1)
    ring: Array = np.exp(-((r - radius) ** 2) / (2 * width**2))
    if frequency == 0:
        return ring[None]
    ring = np.where(r > 1e-9, ring, 0.0)
    angle = frequency * np.arctan2(points[..., 1], points[..., 0])
    return np.stack([ring * np.cos(angle), ring * np.sin(angle)])


def harmonics(points: Array, *, kernel_size: int, cutoff: float) -> Array:
    """All harmonics of frequency at most `cutoff` times the ring's radius: `(J, ...)`."""
    parts = [
        harmonic(points, radius=radius, width=width, frequency=k)
        for radius, width in rings(kernel_size)
        for k in range(int(cutoff * radius) + 1)
    ]
    return np.concatenate(parts)


def orthonormal(rows: Array) -> Array:
    """The rows, without those that depend on earlier ones, orthonormalised symmetrically."""
    kept: list[int] = []
    directions = np.zeros((0, rows.shape[1]))
    floor = _DEPENDENT * np.linalg.norm(rows, axis=1).max(initial=0.0)
    for i, row in enumerate(rows):
        rest = row - directions.T @ (directions @ row)
        length = np.linalg.norm(rest)
        if length > floor:
            kept.append(i)
            directions = np.concatenate([directions, rest[None] / length])
    basis = rows[kept]
    values, vectors = np.linalg.eigh(basis @ basis.T)
    whitened: Array = (vectors / np.sqrt(values)) @ vectors.T @ basis
    return whitened


@lru_cache(maxsize=32)
def steerable_basis(
    source: Representation, target: Representation, *, kernel_size: int = 3, cutoff: float = 3.0
) -> Array:
    """The orthonormal basis of the equivariant kernels from a `source` to a `target` field.

    Args:
        source: Representation of the input fields; `Trivial` for the channels of an image.
        target: Representation of the output fields.
        kernel_size: Height and width of the kernel, odd.
        cutoff: Largest angular frequency on a ring, as a multiple of its radius.

    Returns:
        `(dimension of the basis, target channels, source channels, height, width)`, read-only.

    Raises:
        ValueError: An even kernel, or two representations of different groups.
    """
    if kernel_size % 2 == 0:
        raise ValueError(f"steerable kernels have an odd size, not {kernel_size}")
    if isinstance(target, Regular) and source in (Trivial(), target):
        basis = _regular(target, lifting=source != target, kernel_size=kernel_size, cutoff=cutoff)
    elif isinstance(target, Irreps) and isinstance(source, Trivial | Irreps):
        field = source if isinstance(source, Irreps) else Irreps(0)
        basis = _irreps(field, target, kernel_size=kernel_size, cutoff=cutoff)
    else:
        raise ValueError(f"there are no steerable kernels here from {source} to {target}")
    basis = basis.reshape(-1, target.dimension, source.dimension, kernel_size, kernel_size)
    basis.setflags(write=False)
    return basis


def _regular(target: Regular, *, lifting: bool, kernel_size: int, cutoff: float) -> Array:
    """K[a, b](x) = sum_j w[a^-1 b, j] f_j(a^-1 x), or K[a](x) = sum_j w[j] f_j(a^-1 x)."""
    group = target.group
    elements = np.arange(group.order)
    back = group.matrices()[group.inverse(elements)]
    points = np.einsum("aij,xj->axi", back, grid(kernel_size))
    functions = harmonics(points, kernel_size=kernel_size, cutoff=cutoff)
    count, order, taps = functions.shape
    functions = orthonormal(functions.reshape(count, -1)).reshape(-1, order, taps)
    if lifting:
        return functions
    basis = np.zeros((order, len(functions), order, order, taps))
    for g in range(order):
        basis[g][:, elements, group.compose(elements, g)] = functions
    return basis


def _irreps(source: Irreps, target: Irreps, *, kernel_size: int, cutoff: float) -> Array:
    """The solutions for each pair of irreps (m to n), in blocks of the whole kernel."""
    points = grid(kernel_size)
    parts = []
    for n in range(target.frequency + 1):
        for m in range(source.frequency + 1):
            candidates = [
                _projected(harmonic(points, radius=radius, width=width, frequency=k), k, m, n)
                for radius, width in rings(kernel_size)
                for k in sorted({abs(m - n), m + n})
                if k <= int(cutoff * radius)
            ]
            if not candidates:
                continue
            rows = np.concatenate(candidates)
            solved = orthonormal(rows.reshape(len(rows), -1)).reshape(-1, *rows.shape[1:])
            part = np.zeros((len(solved), target.dimension, source.dimension, len(points)))
            part[:, target.block(n), source.block(m)] = solved
            parts.append(part)
    return np.concatenate(parts)


def _projected(functions: Array, k: int, m: int, n: int) -> Array:
    """Kernels from irrep m to irrep n made of the harmonics of frequency k, one per coefficient.

    The projector is the mean of A_k(g) x r_n(g) x r_m(g) over SO(2); all is band-limited, so the
    mean over 2(k + m + n) + 1 rotations is exact.
    """
    steps = 2 * (k + m + n) + 1
    projector: Array | float = 0.0
    for step in range(steps):
        angle = 2 * np.pi * step / steps
        a, out, inn = (rotation(f * angle) if f else np.eye(1) for f in (k, n, m))
        projector = projector + np.kron(a, np.kron(out, inn)) / steps
    shape = (-1, len(functions), 2 if n else 1, 2 if m else 1)
    kernels: Array = np.einsum("cjoi,jx->coix", np.asarray(projector).T.reshape(shape), functions)
    return kernels


@lru_cache(maxsize=64)
def published_gain(
    source: Representation, target: Representation, *, kernel_size: int = 3, cutoff: float = 3.0
) -> float:
    """The factor that gives an orthonormal basis the scale of the published networks.

    Their basis has an element of squared norm d for each solution into an irrep of dimension d; the
    factor is the root of the mean of d over the solutions, between 1 and sqrt(2).
    """
    basis = steerable_basis(source, target, kernel_size=kernel_size, cutoff=cutoff)
    rows = np.moveaxis(basis, 1, 0).reshape(target.dimension, -1)
    energy = rows @ rows.T
    if isinstance(target, Regular):
        signs = target.group.signs()
        dimensions = 2 * np.eye(target.dimension) - signs.T @ signs / target.dimension
    else:
        dimensions = np.diag([1.0] + [2.0] * (target.dimension - 1))
    return float(np.sqrt(np.sum(dimensions * energy) / len(basis)))
