"""The scattering transform (Bruna and Mallat, 2013): fixed features from wavelets.

An image is filtered by wavelets of several scales and angles, and the modulus of each result is
smoothed: the features are stable under small translations and deformations, and the same for every
data set. Moduli are filtered once more by the coarser wavelets. The wavelets are those of Oyallon
and Mallat (2015): Morlet's, with a bandwidth of 0.8 and a frequency of 3 pi / 4 at the finest
scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_BANDWIDTH = 0.8
_FREQUENCY = 3 * math.pi / 4

_TOGETHER = 16
"""Images that a CPU transforms at once: more exceed its cache, and take twice as long."""

Plane = Callable[[Tensor, Tensor], Tensor]


class Scattering(nn.Module):
    """Scattering coefficients up to the second order, of every channel separately.

    Images `(N, C, H, W)` become `(N, C * coefficients, ceil(H / 2^scales), ceil(W / 2^scales))`,
    the coefficients of a channel next to each other: the smoothed channel, its wavelets by scale
    and angle, and pairs of wavelets. Borders are mirrored. No parameters; the wavelets depend on
    the size alone and are not saved with a model.

    Args:
        size: Height and width of the images, each at least `2 * 2^scales`.
        scales: Number of scales of wavelets, each twice as wide as the one before.
        angles: Number of angles of wavelets, over half a turn.
    """

    def __init__(self, size: tuple[int, int], *, scales: int = 2, angles: int = 8) -> None:
        super().__init__()
        self.size, self.scales, self.angles = size, scales, angles
        self._step = 2**scales
        if min(size) < 2 * self._step:
            raise ValueError(
                f"wavelets of {scales} scales need images of at least {2 * self._step} pixels, not "
                f"{size[0]}x{size[1]}"
            )
        shape = [(positions + 2) * self._step for positions in self.grid]
        wavelets = torch.stack(
            [
                torch.stack(
                    [_wavelet(shape, j, math.pi * n / angles, angles) for n in range(angles)]
                )
                for j in range(scales)
            ]
        )
        smooth = _spectrum(shape, _envelope(_BANDWIDTH * 2 ** (scales - 1), 1.0, 0.0))
        smooth = smooth / smooth[0, 0]
        for fine in range(scales):
            # Filters for signals subsampled to every 2^fine-th position. Subsampling further
            # divides
            # spectra by the ratio of the numbers of positions.
            fewer = 4.0 ** torch.arange(scales - fine).view(-1, 1, 1, 1)
            self._keep(f"wavelets{fine}", _folded(wavelets[fine:], 2**fine) / fewer)
            self._keep(f"smooth{fine}", _folded(smooth, 2**fine) / 4.0 ** (scales - fine))

    @property
    def coefficients(self) -> int:
        """Coefficients per channel: one, `angles` per scale, their square per pair of scales."""
        j, n = self.scales, self.angles
        return 1 + j * n + j * (j - 1) // 2 * n * n

    @property
    def grid(self) -> tuple[int, int]:
        """Height and width of the grid of spatial positions of each coefficient."""
        height, width = self.size
        return -(-height // self._step), -(-width // self._step)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the transform of one channel.

        A Fourier transform of n positions by halves has n log2(n) / 2 products of complex numbers,
        which count for four; a spectrum times a real filter has 2 n.
        """
        whole = math.prod((positions + 2) * self._step for positions in self.grid)
        sizes: list[int] = [whole >> 2 * scale for scale in range(self.scales + 1)]

        def fourier(scale: int) -> int:
            return round(2 * sizes[scale] * math.log2(sizes[scale]))

        def smoothed(fine: int) -> int:
            return 2 * sizes[fine] + fourier(self.scales)

        def moduli(fine: int, scale: int) -> int:
            return self.angles * (2 * sizes[fine] + 2 * fourier(scale))

        total = fourier(0) + smoothed(0)
        for j in range(self.scales):
            total += moduli(0, j) + self.angles * smoothed(j)
            for k in range(j + 1, self.scales):
                total += self.angles * (moduli(j, k) + self.angles * smoothed(k))
        return total

    def forward(self, x: Tensor) -> Tensor:
        """The coefficients of each image, in single precision at least."""
        if tuple(x.shape[2:]) != tuple(self.size):
            raise ValueError(
                f"these wavelets are for images of {self.size[0]}x{self.size[1]} pixels, not of "
                f"{'x'.join(str(side) for side in x.shape[2:])}"
            )
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        if not x.shape[0]:  # Some Fourier transforms refuse an empty batch.
            return x.new_zeros(0, x.shape[1] * self.coefficients, *self.grid)
        with torch.autocast(x.device.type, enabled=False):
            together = x.shape[0] if x.is_cuda else _TOGETHER
            return torch.cat([self._coefficients(part) for part in torch.split(x, together)])

    def _coefficients(self, x: Tensor) -> Tensor:
        spectrum = self._spectrum(self._mirrored(x)).unsqueeze(-3)
        found, second = [self._smoothed(spectrum, 0)], []
        for j in range(self.scales):
            once = self._moduli(spectrum, 0, j)
            found.append(self._smoothed(once, j))
            for k in range(j + 1, self.scales):
                twice = self._moduli(once.unsqueeze(-3), j, k)
                second.append(self._smoothed(twice, k).flatten(2, 3))
        return torch.cat([*found, *second], dim=2).flatten(1, 2)

    def _moduli(self, spectrum: Tensor, fine: int, scale: int) -> Tensor:
        """The spectrum of the modulus of a signal filtered by the wavelets of a scale."""
        kept = _folded(spectrum * self._filter("wavelets", fine)[scale - fine], 2 ** (scale - fine))
        return self._spectrum(self._modulus(kept))

    def _smoothed(self, spectrum: Tensor, fine: int) -> Tensor:
        """A signal smoothed and subsampled to the coarsest grid, without the mirrored borders."""
        smooth = _folded(spectrum * self._filter("smooth", fine), 2 ** (self.scales - fine))
        height, width = self.grid
        return self._signal(smooth)[..., 1 : 1 + height, 1 : 1 + width]

    def _spectrum(self, signal: Tensor) -> Tensor:
        """The spectrum of a real signal."""
        found: Tensor = torch.fft.fft2(signal)
        return found

    def _signal(self, spectrum: Tensor) -> Tensor:
        """The real signal of a spectrum."""
        found: Tensor = torch.fft.ifft2(spectrum).real
        return found

    def _modulus(self, spectrum: Tensor) -> Tensor:
        """The modulus of the complex signal of a spectrum."""
        found: Tensor = torch.fft.ifft2(spectrum).abs()
        return found

    def _mirrored(self, x: Tensor) -> Tensor:
        bottom, right = (self._step + -side % self._step for side in self.size)
        return F.pad(x, (self._step, right, self._step, bottom), mode="reflect")

    def _keep(self, name: str, spectrum: Tensor) -> None:
        self.register_buffer(name, spectrum.to(torch.float32), persistent=False)

    def _filter(self, name: str, fine: int) -> Tensor:
        found: Tensor = self.get_buffer(f"{name}{fine}")
        return found

    def extra_repr(self) -> str:
        """The arguments, for printing."""
        return f"{self.size}, scales={self.scales}, angles={self.angles}"


def _wavelet(shape: list[int], scale: int, angle: float, angles: int) -> Tensor:
    """The spectrum of Morlet's wavelet: a wave under a Gaussian, with mean zero."""
    sigma, frequency, slant = _BANDWIDTH * 2.0**scale, _FREQUENCY / 2.0**scale, 4 / angles
    envelope = _envelope(sigma, slant, angle)

    def wave(y: Tensor, x: Tensor) -> Tensor:
        along = x * math.cos(angle) + y * math.sin(angle)
        return envelope(y, x) * torch.exp(1j * frequency * along)

    waves, below = _spectrum(shape, wave), _spectrum(shape, envelope)
    return (waves - waves[0, 0] / below[0, 0] * below) / (2 * math.pi * sigma**2 / slant)


def _envelope(sigma: float, slant: float, angle: float) -> Plane:
    """A Gaussian, `1 / slant` times as wide across the angle as along it."""

    def at(y: Tensor, x: Tensor) -> Tensor:
        along = x * math.cos(angle) + y * math.sin(angle)
        across = y * math.cos(angle) - x * math.sin(angle)
        return torch.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2))

    return at


def _spectrum(shape: list[int], plane: Plane) -> Tensor:
    """The spectrum of a function of the plane, wrapped around the grid; real by its symmetry."""
    total = torch.zeros(shape, dtype=torch.complex128)
    rows, columns = (torch.arange(side, dtype=torch.float64) for side in shape)
    for down in range(-2, 3):
        for right in range(-2, 3):
            y, x = torch.meshgrid(rows + down * shape[0], columns + right * shape[1], indexing="ij")
            total += plane(y, x)
    spectrum: Tensor = torch.fft.fft2(total).real
    return spectrum


def _folded(spectrum: Tensor, by: int) -> Tensor:
    """The sum over frequencies that coincide when only every `by`-th position is sampled."""
    if by == 1:
        return spectrum
    height, width = spectrum.shape[-2] // by, spectrum.shape[-1] // by
    # One by one: PyTorch's sum over the axes of a view takes four times as long.
    rows = sum(spectrum[..., n * height : (n + 1) * height, :] for n in range(1, by))
    rows = spectrum[..., :height, :] + rows
    return rows[..., :width] + sum(rows[..., n * width : (n + 1) * width] for n in range(1, by))
