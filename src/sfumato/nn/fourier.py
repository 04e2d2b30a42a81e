"""Layers for fields of SO(2) irreps (Hölzl et al., 2023; Weiler and Cesa, 2019).

Such a field holds the Fourier coefficients of a function on the circle of directions. A rotation of
the image rotates each pair of coefficients, so a norm may only rescale whole fields and shift their
constant part, and a pointwise nonlinearity acts on samples of the function.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.nn.groups import Irreps


def _kept(module: nn.Module, name: str, value: Tensor) -> None:
    module.register_buffer(name, value.to(torch.get_default_dtype()), persistent=False)


class IIDInstanceNorm(nn.Module):
    """The i.i.d. instance norm: centre the constant part, divide each field by one scale.

    With d channels a field, z the field minus the spatial mean of its constant part and v = mean
    ||z||^2 / d over spatial positions, the result is z / sqrt(v + eps). By Schur's lemma the
    covariance over all rotations is v times the identity: equivariant under every rotation.

    Args:
        representation: The irreps of a field.
        fields: The number of fields.
        affine: Whether each field has a gain, and a shift of its constant part.
        eps: Added to the variance.
    """

    constant: Tensor

    def __init__(
        self, representation: Irreps, fields: int, *, affine: bool = False, eps: float = 1e-5
    ) -> None:
        super().__init__()
        self.fields, self.dimension, self.eps = fields, representation.dimension, eps
        _kept(self, "constant", torch.from_numpy(representation.invariant()).view(-1, 1, 1))
        self.gain = nn.Parameter(torch.ones(fields)) if affine else None
        self.shift = nn.Parameter(torch.zeros(fields)) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each field of each example separately."""
        y = torch.unflatten(x, 1, (self.fields, self.dimension))
        z = y - y[:, :, :1].mean((3, 4), keepdim=True) * self.constant
        scale = torch.rsqrt(z.square().mean((2, 3, 4), keepdim=True) + self.eps)
        if self.gain is not None and self.shift is not None:
            shape = (-1, 1, 1, 1)
            z = z * (scale * self.gain.view(shape)) + self.shift.view(shape) * self.constant
        else:
            z = z * scale
        return z.flatten(1, 2)

    def extra_repr(self) -> str:
        """Fields, channels per field, constants."""
        affine = self.gain is not None
        return f"{self.fields}, dimension={self.dimension}, eps={self.eps}, affine={affine}"


class FourierNonlinearity(nn.Module):
    """A pointwise activation on equally spaced samples of each field's function on the circle.

    Exactly equivariant for rotations by multiples of 360/samples degrees; for others the error is
    the aliasing of the activation's high frequencies, and falls with the number of samples.
    """

    synthesis: Tensor
    analysis: Tensor

    def __init__(self, representation: Irreps, activation: nn.Module, *, samples: int = 16) -> None:
        super().__init__()
        self.dimension = representation.dimension
        if samples < self.dimension:
            raise ValueError(f"{self.dimension} coefficients need as many samples, not {samples}")
        self.activation = activation
        angle = 2 * math.pi * torch.arange(samples, dtype=torch.float64) / samples
        columns = [torch.ones_like(angle)]
        for k in range(1, representation.frequency + 1):
            columns += [math.sqrt(2) * torch.cos(k * angle), math.sqrt(2) * torch.sin(k * angle)]
        synthesis = torch.stack(columns, 1) / math.sqrt(self.dimension)
        _kept(self, "synthesis", synthesis)
        _kept(self, "analysis", torch.linalg.pinv(synthesis))

    def forward(self, x: Tensor) -> Tensor:
        """Sample the function, apply the activation, and transform back to coefficients."""
        y = torch.unflatten(x, 1, (-1, self.dimension))
        samples = self.activation(torch.einsum("nd,bcdhw->bcnhw", self.synthesis, y))
        return torch.einsum("dn,bcnhw->bcdhw", self.analysis, samples).flatten(1, 2)

    def extra_repr(self) -> str:
        """Coefficients and samples."""
        return f"dimension={self.dimension}, samples={len(self.synthesis)}"


class BlurPool(nn.Module):
    """Gaussian blur (5x5, sigma 0.66) of every channel, then subsampling of every second pixel.

    Max-pooling is not equivariant for coefficients; a rotationally symmetric filter is. On an even
    number of pixels the samples are half a pixel off centre; with an odd number they are symmetric.
    """

    kernel: Tensor

    def __init__(self, *, kernel_size: int = 5, sigma: float = 0.66, stride: int = 2) -> None:
        super().__init__()
        axis = torch.arange(kernel_size, dtype=torch.float64) - (kernel_size - 1) / 2
        line = torch.exp(-(axis**2) / (2 * sigma**2))
        line = line / line.sum()
        _kept(self, "kernel", torch.outer(line, line)[None, None])
        self.stride, self.padding = stride, kernel_size // 2

    def forward(self, x: Tensor) -> Tensor:
        """Blur and halve."""
        kernel = self.kernel.expand(x.shape[1], -1, -1, -1)
        return F.conv2d(x, kernel, stride=self.stride, padding=self.padding, groups=x.shape[1])

    def extra_repr(self) -> str:
        """Kernel size and stride."""
        return f"kernel_size={self.kernel.shape[-1]}, stride={self.stride}"


class DiscMask(nn.Module):
    """Mask that fades an image to zero outside its inscribed disc, which rotations preserve."""

    mask: Tensor

    def __init__(self, size: tuple[int, int], *, softness: float = 2.0) -> None:
        super().__init__()
        y, x = (torch.arange(n, dtype=torch.float64) - (n - 1) / 2 for n in size)
        outside = (y**2)[:, None] + x**2 - ((min(size) - 1) / 2) ** 2
        _kept(self, "mask", torch.exp(-outside.clamp_min(0) / softness**2))

    def forward(self, x: Tensor) -> Tensor:
        """Multiply by the mask."""
        return x * self.mask

    def extra_repr(self) -> str:
        """Height and width."""
        return f"size={tuple(self.mask.shape)}"
