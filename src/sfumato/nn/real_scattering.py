"""The scattering transform without complex numbers, for file formats that have none.

Fourier transforms are products with matrices of cosines and sines, so that the whole transform is
matrix products, sums and square roots. The grids are small (40×40 for images of 32×32), and the
coefficients agree with those of `Scattering` to the rounding of single precision.
"""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Tensor

from sfumato.nn.scattering import Scattering


class RealScattering(Scattering):
    """`Scattering` in real arithmetic.

    A spectrum has one axis more than there, the first: its real and its imaginary part.
    """

    def __init__(self, size: tuple[int, int], *, scales: int = 2, angles: int = 8) -> None:
        super().__init__(size, scales=scales, angles=angles)
        shape = [(positions + 2) * self._step for positions in self.grid]
        for side in sorted({side // 2**scale for side in shape for scale in range(scales + 1)}):
            positions = torch.arange(side, dtype=torch.float64)
            # Reduced before the multiplication, so that large angles lose no digits.
            turns = (positions.view(-1, 1) * positions).remainder(side) * (2 * math.pi / side)
            self._keep(f"cosines{side}", turns.cos())
            self._keep(f"sines{side}", turns.sin())

    @classmethod
    def of(cls, other: Scattering) -> Self:
        """The same transform in real arithmetic."""
        return cls(other.size, scales=other.scales, angles=other.angles)

    def forward(self, x: Tensor) -> Tensor:
        """The coefficients of each image; any number of images is transformed at once."""
        return self._coefficients(x.float())

    def _spectrum(self, signal: Tensor) -> Tensor:
        return torch.stack(self._transformed(signal, torch.zeros_like(signal), sign=1.0))

    def _signal(self, spectrum: Tensor) -> Tensor:
        return self._inverse(spectrum)[0]

    def _modulus(self, spectrum: Tensor) -> Tensor:
        real, imaginary = self._inverse(spectrum)
        return (real.square() + imaginary.square()).sqrt()

    def _inverse(self, spectrum: Tensor) -> tuple[Tensor, Tensor]:
        real, imaginary = self._transformed(spectrum[0], spectrum[1], sign=-1.0)
        positions = spectrum.shape[-2] * spectrum.shape[-1]
        return real / positions, imaginary / positions

    def _transformed(
        self, real: Tensor, imaginary: Tensor, *, sign: float
    ) -> tuple[Tensor, Tensor]:
        """Real and imaginary part of sums of exp(-i sign angle), along both axes."""
        height, width = real.shape[-2], real.shape[-1]
        c, s = self.get_buffer(f"cosines{width}"), sign * self.get_buffer(f"sines{width}")
        real, imaginary = real @ c + imaginary @ s, imaginary @ c - real @ s
        c, s = self.get_buffer(f"cosines{height}"), sign * self.get_buffer(f"sines{height}")
        return c @ real + s @ imaginary, c @ imaginary - s @ real
