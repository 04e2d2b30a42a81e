"""Gaussian noise on sums, and the grid that noisy sums are rounded to."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sfumato.errors import UserError
from sfumato.kernels.chacha20 import WORDS
from sfumato.privacy.numerics.randomness import Keystream

GRID_BITS = 12
"""Noisy sums are multiples of 2^-12 standard deviations of the noise, or of up to half as much."""

_AT_ONCE = {"cpu": 1 << 17}
"""Coordinates whose noise is drawn at once, by kind of device: on a CPU as many as caches hold."""
_AT_ONCE_ELSEWHERE = 1 << 20
_PARTS_ELSEWHERE = 8
"""Most parts in which noise is drawn on a GPU, where each takes some launches."""


@dataclass(frozen=True)
class GaussianNoise:
    """Noise of standard deviation `multiplier * sensitivity` on every coordinate of a sum.

    Guarantee: With sensitivity S the released sum is the Gaussian mechanism with noise multiplier
    `multiplier`, rounded; the accountants' events are made from this same number. Noise is drawn
    and added in float64, and the noisy sum is rounded to a grid of `2^-12` standard deviations. So
    every sum can lead to every released number within 9 standard deviations, and the low bits of
    the released sum say nothing about the sum before the noise. docs/mechanism.md has the proof.
    """

    multiplier: float

    def __post_init__(self) -> None:
        if not 0 <= self.multiplier < float("inf"):
            raise UserError(f"The noise multiplier must be at least 0, not {self.multiplier}.")

    def add(self, total: Tensor, *, sensitivity: float, stream: Keystream) -> Tensor:
        """A sum in float64, with noise added to each coordinate.

        Args:
            total: The sum. Without noise it is returned as it is.
            sensitivity: Bound on the norm of the contribution of one example.
            stream: Source of the noise.
        """
        if self.multiplier == 0:
            return total
        deviation = self.multiplier * sensitivity
        step = grid(deviation)
        noise = stream.normals(total.numel(), total.device).mul_(deviation)
        wide = total.to(device=noise.device, dtype=noise.dtype)
        return shaped_like(noise, wide).add_(wide).mul_(1 / step).round_().mul_(step)

    def means(
        self, total: Tensor, batch: float, *, sensitivity: float, stream: Keystream,
        dtype: torch.dtype,
    ) -> Tensor:  # fmt: skip
        """A sum with noise over the expected batch: that of `add`, computed in parts.

        Beside a large model in float64 the noise of a whole release is much memory.

        Args:
            total: The sum, a vector.
            batch: The expected batch.
            sensitivity: As for `add`.
            stream: As for `add`.
            dtype: Precision of the result; until it is rounded to that, it is in float64.
        """
        largest = max(_AT_ONCE_ELSEWHERE, -(-len(total) // _PARTS_ELSEWHERE))
        size = _AT_ONCE.get(total.device.type, largest)
        size = -(-size // WORDS) * WORDS  # A part begins with a block of the cipher.
        found: Tensor | None = None
        for start in range(0, len(total), size):
            part = total[start : start + size]
            noisy = self.add(part, sensitivity=sensitivity, stream=stream)
            if found is None:
                found = noisy.new_empty(len(total), dtype=dtype)
            torch.div(noisy, batch, out=found[start : start + size])
        return total.to(dtype) if found is None else found


def grid(deviation: float) -> float:
    """The spacing of the grid for a standard deviation: a power of two, for exact scaling."""
    step = math.ldexp(1.0, math.frexp(deviation)[1] - 1 - GRID_BITS)
    if not 0 < 1 / step < math.inf:
        raise UserError(
            f"Noise with a standard deviation of {deviation:g} cannot be drawn in float64: choose "
            "a larger clipping norm or noise multiplier."
        )
    return step


def shaped_like(numbers: Tensor, like: Tensor) -> Tensor:
    """The numbers in the shape of a tensor, and where possible in its memory format.

    Tensors of one memory format are added in a few kernels; others in one for each.
    """
    if like.is_contiguous() or not like.is_contiguous(memory_format=torch.channels_last):
        return numbers.view(like.shape)
    return numbers.as_strided(like.shape, like.stride(), numbers.storage_offset())
