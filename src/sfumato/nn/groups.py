"""Planar symmetry groups and the kinds of feature field that transform under them.

Finite groups are C_N (rotations by multiples of 360/N degrees) and D_N (also the mirror images);
the continuous one is SO(2), all rotations. A feature map is a stack of fields. The representation
of a field describes how it changes when the image is rotated: `Trivial` (an image channel: not at
all), `Regular` (one channel per group element, permuted) or `Irreps` (Fourier coefficients,
rotated).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import UserError

Array = NDArray[np.float64]
Index = NDArray[np.int64]

MAX_ORDER = 32
MAX_FREQUENCY = 16


@dataclass(frozen=True)
class FiniteGroup:
    """C_N, or D_N with `mirror`. Element r + N*s is the left-right mirror s times, then r turns."""

    rotations: int
    mirror: bool = False

    def __str__(self) -> str:
        return f"{'D' if self.mirror else 'C'}{self.rotations}"

    @property
    def order(self) -> int:
        """The number of elements."""
        return self.rotations * (2 if self.mirror else 1)

    def compose(self, a: Index | int, b: Index | int) -> Index:
        """The element `a b` (first b, then a), elementwise."""
        n = self.rotations
        turn_a, mirror_a = np.asarray(a) % n, np.asarray(a) // n
        turn_b, mirror_b = np.asarray(b) % n, np.asarray(b) // n
        turn = (turn_a + np.where(mirror_a == 1, -turn_b, turn_b)) % n
        return np.asarray(turn + n * ((mirror_a + mirror_b) % 2), dtype=np.int64)

    def inverse(self, a: Index | int) -> Index:
        """The inverse of `a`, elementwise: a mirrored element is its own."""
        n = self.rotations
        a = np.asarray(a)
        return np.asarray(np.where(a // n == 1, a, -a % n), dtype=np.int64)

    def matrices(self) -> Array:
        """The elements as maps of the plane (x right, y up): `(order, 2, 2)`."""
        angle = 2 * np.pi * np.arange(self.rotations) / self.rotations
        turns = np.stack([np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)], axis=-1)
        turns = turns.reshape(-1, 2, 2)
        if not self.mirror:
            return turns
        return np.concatenate([turns, turns @ np.diag([-1.0, 1.0])])

    def signs(self) -> Array:
        """The homomorphisms to {1, -1}, one per row: the irreps of dimension one."""
        elements = np.arange(self.order)
        rows: list[Array] = [np.ones(self.order)]
        if self.rotations % 2 == 0:
            rows.append(np.where(elements % self.rotations % 2, -1.0, 1.0))
        if self.mirror:
            orientation = np.where(elements // self.rotations, -1.0, 1.0)
            rows += [row * orientation for row in rows]
        return np.stack(rows)

    def half(self) -> FiniteGroup:
        """C_N/2 or D_N/2, which keeps the mirror axis.

        Raises:
            ValueError: The number of rotations is odd.
        """
        if self.rotations % 2:
            raise ValueError(f"{self} has an odd number of rotations: it has no such half")
        return FiniteGroup(self.rotations // 2, self.mirror)

    def cosets(self, subgroup: FiniteGroup) -> Index:
        """`(order / subgroup.order, subgroup.order)`: entry [i, b] is b t_i, for b in the subgroup.

        A regular field of the group, read in this order, is a stack of regular fields of the
        subgroup.

        Raises:
            ValueError: `subgroup` does not lie in this group.
        """
        n, m = self.rotations, subgroup.rotations
        if n % m or (subgroup.mirror and not self.mirror):
            raise ValueError(f"{subgroup} is not a subgroup of {self}")
        b = np.arange(subgroup.order)
        inside = (b % m) * (n // m) + n * (b // m)
        rows: list[Index] = []
        seen: set[int] = set()
        for t in range(self.order):
            if t not in seen:
                rows.append(self.compose(inside, t))
                seen.update(rows[-1].tolist())
        return np.stack(rows)


@dataclass(frozen=True)
class Trivial:
    """One channel that every element leaves unchanged, as the channels of an image."""

    def __str__(self) -> str:
        return "trivial"

    @property
    def dimension(self) -> int:
        """Channels of a field."""
        return 1

    def invariant(self) -> Array:
        """The unit vector that every element leaves unchanged."""
        return np.ones(1)


@dataclass(frozen=True)
class Regular:
    """One channel per element of a finite group: element g moves channel a to channel g a."""

    group: FiniteGroup

    def __str__(self) -> str:
        return f"regular {self.group}"

    @property
    def dimension(self) -> int:
        """Channels of a field."""
        return self.group.order

    def invariant(self) -> Array:
        """The unit vector that every element leaves unchanged."""
        return np.full(self.dimension, self.dimension**-0.5)

    def matrix(self, g: int) -> Array:
        """The permutation matrix of element `g`."""
        matrix = np.zeros((self.dimension, self.dimension))
        source = np.arange(self.dimension)
        matrix[self.group.compose(g, source), source] = 1
        return matrix


@dataclass(frozen=True)
class Irreps:
    """The irreps of SO(2) up to a frequency: 1, then (cos k, sin k) coefficients, k = 1..F."""

    frequency: int

    def __str__(self) -> str:
        return f"SO(2) irreps 0..{self.frequency}"

    @property
    def dimension(self) -> int:
        """Channels of a field."""
        return 2 * self.frequency + 1

    def invariant(self) -> Array:
        """The unit vector that every element leaves unchanged."""
        return np.eye(1, self.dimension).ravel()

    def block(self, k: int) -> slice:
        """The channels of frequency `k`."""
        return slice(0, 1) if k == 0 else slice(2 * k - 1, 2 * k + 1)

    def matrix(self, angle: float) -> Array:
        """The matrix of the rotation by `angle` (radians)."""
        matrix = np.eye(self.dimension)
        for k in range(1, self.frequency + 1):
            matrix[self.block(k), self.block(k)] = rotation(k * angle)
        return matrix


Representation = Trivial | Regular | Irreps


def rotation(angle: float) -> Array:
    """The 2x2 matrix of a rotation by `angle` (radians)."""
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


@lru_cache(maxsize=64)
def parse_group(name: str) -> Regular | Irreps:
    """The kind of field for a group's name: `c8` or `d4` (regular), `so2-3` (irreps 0..3).

    Raises:
        UserError: Not such a name, an odd number of rotations, or too large a group.
    """
    accepted = (
        "Accepted: c2, c4, c8, c16, d2, d4, d8, d16 (c or d and an even number of rotations, at "
        f"most {MAX_ORDER} elements), or so2-1, so2-2, so2-3 (any frequency up to {MAX_FREQUENCY})."
    )
    match = re.fullmatch(r"([cd])(\d{1,4})|so2-(\d{1,4})", name.strip().lower())
    if match is None:
        raise UserError(f"'{name}' is not a symmetry group of the equivariant models. {accepted}")
    if match[3] is not None:
        frequency = int(match[3])
        if not 1 <= frequency <= MAX_FREQUENCY:
            raise UserError(f"The frequency {frequency} of the group '{name}' is out. {accepted}")
        return Irreps(frequency)
    group = FiniteGroup(int(match[2]), mirror=match[1] == "d")
    if group.rotations < 2 or group.rotations % 2 or group.order > MAX_ORDER:
        raise UserError(f"The symmetry group '{name}' is not one that can be halved. {accepted}")
    return Regular(group)
