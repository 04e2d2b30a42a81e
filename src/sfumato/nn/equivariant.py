"""Layers of equivariant networks (Hölzl, Rueckert and Kaissis, 2023, arXiv 2301.13104).

A steerable convolution is an ordinary `nn.Conv2d` whose weight and bias are parametrised: the
trained tensors are the coefficients of a fixed orthonormal basis, and `weight` is their expansion.
Channels are ordered by field first, then by the channel within the field.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from sfumato.nn.groups import Regular, Representation
from sfumato.nn.steerable import published_gain, steerable_basis

Scale = Literal["published", "fan-in"]

EPSILON = 1e-5


class SteerableWeight(nn.Module):
    """Parametrisation of a convolution's filters by coefficients in a steerable basis.

    The trained tensor has shape (output fields, input fields, dimension of the basis). The basis is
    orthonormal, so isotropic noise on the coefficients is isotropic noise on the kernels.

    Args:
        source: Representation of the input fields.
        target: Representation of the output fields.
        kernel_size: Height and width of the kernel, odd.
        cutoff: Largest angular frequency on a ring, as a multiple of its radius.
        gain: Factor on the kernels.
        standardise: Whether the coefficients w of the whole layer are first standardised to mean 0
            and standard deviation 1, as (w - mean) / (std + 1e-5).
    """

    basis: Tensor

    def __init__(
        self,
        source: Representation,
        target: Representation,
        *,
        kernel_size: int = 3,
        cutoff: float = 3.0,
        gain: float = 1.0,
        standardise: bool = False,
    ) -> None:
        super().__init__()
        basis = steerable_basis(source, target, kernel_size=kernel_size, cutoff=cutoff)
        self.shape = basis.shape[1:]
        self.gain, self.standardise = gain, standardise
        # Input channels come last, as in filters in channels_last, and so move together in memory.
        rows = basis.transpose(0, 1, 3, 4, 2).reshape(len(basis), -1)
        flat = torch.tensor(rows, dtype=torch.get_default_dtype())
        self.register_buffer("basis", flat, persistent=False)

    def forward(self, coefficients: Tensor) -> Tensor:
        """The filters, shaped as `nn.Conv2d` wants them."""
        if self.standardise:
            _, centred, scale = _standardisation(coefficients)
            coefficients = centred / scale
        return self.expand(coefficients)

    def expand(self, coefficients: Tensor) -> Tensor:
        """The linear part: coefficients `(..., out, in, basis)` to filters, in one product."""
        *front, outputs, inputs, _ = coefficients.shape
        target, source, height, width = self.shape
        kernels = (self.gain * coefficients) @ self.basis.to(coefficients.dtype)
        kernels = kernels.view(*front, outputs, inputs, target, height, width, source)
        kernels = kernels.movedim((-4, -1), (-5, -3))
        return kernels.reshape(*front, outputs * target, inputs * source, height, width)

    def project(self, weight: Tensor) -> Tensor:
        """The adjoint of `expand`: `(..., *filters)` to `(..., out, in, basis)`.

        It maps gradients with respect to the filters to gradients with respect to the (possibly
        standardised) coefficients, by the same linear map for every example.
        """
        target, source, *_ = self.shape
        parts = torch.unflatten(torch.unflatten(weight, -3, (-1, source)), -5, (-1, target))
        parts = parts.movedim((-5, -3), (-4, -1)).flatten(-4)
        return self.gain * (parts @ self.basis.T)

    def pullback(self, coefficients: Tensor, gradient: Tensor) -> tuple[Tensor]:
        """Gradients `(..., *filters)` of the filters as gradients `(..., *coefficients.shape)`.

        The transposed derivative of `forward` in closed form. It is linear in `gradient`, so it
        applies to one gradient, to a sum, and to a stack of per-example gradients alike.
        """
        return (self.pullback_expanded(coefficients, self.project(gradient)),)

    def pullback_expanded(self, coefficients: Tensor, projected: Tensor) -> Tensor:
        """The part of `pullback` after `project`: the derivative of the standardisation."""
        if not self.standardise:
            return projected
        deviation, centred, scale = _standardisation(coefficients)
        every = (-3, -2, -1)
        along = (projected * centred).mean(every, keepdim=True) / (deviation * scale**2)
        return (projected - projected.mean(every, keepdim=True)) / scale - along * centred

    def right_inverse(self, weight: Tensor) -> Tensor:
        """Coefficients of the nearest steerable filters; up to scale if standardised."""
        return self.project(weight) / self.gain**2

    def extra_repr(self) -> str:
        """Basis size and field dimensions."""
        return (
            f"basis={len(self.basis)}, channels per field={self.shape[1]}->{self.shape[0]}, "
            f"standardise={self.standardise}"
        )


def _standardisation(coefficients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Standard deviation, centred coefficients, and the divisor of these."""
    centred = coefficients - coefficients.mean()
    variance = centred.square().mean()
    deviation = variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()
    return deviation, centred, deviation + EPSILON


class FieldBias(nn.Module):
    """Parametrisation of a bias by one number per field, along the invariant unit vector."""

    direction: Tensor

    def __init__(self, representation: Representation) -> None:
        super().__init__()
        direction = torch.tensor(representation.invariant(), dtype=torch.get_default_dtype())
        self.register_buffer("direction", direction, persistent=False)

    def forward(self, shifts: Tensor) -> Tensor:
        """One shift per field to one per channel."""
        return (shifts.unsqueeze(-1) * self.direction).flatten(-2)

    def pullback(self, shifts: Tensor, gradient: Tensor) -> tuple[Tensor]:
        """Gradients `(..., channels)` of the bias as gradients `(..., *shifts.shape)`."""
        return (torch.unflatten(gradient, -1, (-1, len(self.direction))) @ self.direction,)

    def right_inverse(self, bias: Tensor) -> Tensor:
        """The nearest invariant bias."""
        return torch.unflatten(bias, -1, (-1, len(self.direction))) @ self.direction


def steerable_conv(
    source: Representation,
    target: Representation,
    in_fields: int,
    out_fields: int,
    *,
    kernel_size: int = 3,
    cutoff: float = 3.0,
    bias: bool = True,
    standardise: bool = True,
    scale: Scale = "published",
) -> nn.Conv2d:
    """An equivariant convolution of stride 1 that keeps the size of the image.

    Args:
        source: Representation of the input fields; `Trivial` for the channels of an image.
        target: Representation of the output fields.
        in_fields: The number of input fields.
        out_fields: The number of output fields.
        kernel_size: Height and width of the kernel, odd.
        cutoff: Largest angular frequency on a ring, as a multiple of its radius.
        bias: Whether each output field has a shift, initially zero.
        standardise: Whether the coefficients of the layer are standardised.
        scale: Scale of standardised filters. `published`: as the paper's networks, whose
            pre-activations grow with the fan-in; `fan-in`: outputs have the variance of the inputs.

    Returns:
        The convolution; `parametrizations.weight.original` are its coefficients and
        `parametrizations.bias.original` its shifts.
    """
    channels = in_fields * source.dimension, out_fields * target.dimension
    conv = nn.Conv2d(*channels, kernel_size, padding=kernel_size // 2, bias=bias)
    elements = len(steerable_basis(source, target, kernel_size=kernel_size, cutoff=cutoff))
    fan = in_fields * elements / target.dimension
    published = published_gain(source, target, kernel_size=kernel_size, cutoff=cutoff)
    gain, deviation = 1.0, fan**-0.5
    if standardise:
        gain = published if scale == "published" else fan**-0.5
        deviation = fan**-0.5 / published
    weight = SteerableWeight(
        source,
        target,
        kernel_size=kernel_size,
        cutoff=cutoff,
        gain=gain,
        standardise=standardise,
    )
    parametrize.register_parametrization(conv, "weight", weight, unsafe=True)
    with torch.no_grad():
        nn.init.normal_(conv.parametrizations["weight"].original, std=deviation)  # type: ignore[index, union-attr]
        if bias:
            parametrize.register_parametrization(conv, "bias", FieldBias(target), unsafe=True)
            nn.init.zeros_(conv.parametrizations["bias"].original)  # type: ignore[index, union-attr]
    return conv


class Restriction(nn.Module):
    """Restriction of a group's regular fields to a subgroup: a permutation of channels."""

    index: Tensor

    def __init__(self, source: Regular, target: Regular, fields: int) -> None:
        super().__init__()
        within = torch.from_numpy(source.group.cosets(target.group)).flatten()
        starts = torch.arange(fields).unsqueeze(1) * source.dimension
        self.register_buffer("index", (starts + within).flatten(), persistent=False)
        self.name = f"{source} -> {target}"

    def forward(self, x: Tensor) -> Tensor:
        """Permute the channels."""
        return x.index_select(1, self.index)

    def extra_repr(self) -> str:
        """The two groups."""
        return self.name


class GroupMaxPool(nn.Module):
    """The maximum over the channels of each regular field: invariant under the group.

    It is computed pairwise. The derivative of `amax` divides by the number of entries that equal
    the maximum; a compiler that recomputes them in another precision finds none.
    """

    def __init__(self, representation: Regular) -> None:
        super().__init__()
        self.dimension = representation.dimension

    def forward(self, x: Tensor) -> Tensor:
        """From `fields * order` channels to `fields` channels."""
        if self.dimension == 1:
            return x
        parts = torch.unflatten(x, 1, (-1, self.dimension)).unbind(2)
        while len(parts) > 1:
            odd = parts[len(parts) // 2 * 2 :]
            parts = (*map(torch.maximum, parts[: len(parts) - len(odd) : 2], parts[1::2]), *odd)
        return parts[0]

    def extra_repr(self) -> str:
        """The order of the group."""
        return f"dimension={self.dimension}"


class MirrorMean(nn.Module):
    """Mean of a stack of fields and of the same stack for the left-right mirror image.

    That one has its channels permuted within each field and its columns in reverse, so the mirror
    image itself is not needed.

    Args:
        field: Regular field of a group with mirror images.
        fields: Number of fields.
    """

    source: Tensor

    def __init__(self, field: Regular, fields: int) -> None:
        super().__init__()
        if not field.group.mirror:
            raise ValueError(f"{field.group} has no mirror images")
        own = field.group.compose(field.group.rotations, np.arange(field.dimension))
        first = field.dimension * torch.arange(fields).unsqueeze(1)
        self.register_buffer("source", (first + torch.tensor(own)).flatten(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """The mean of a stack `(images, channels, height, width)` and its mirror image."""
        return (x + x[:, self.source].flip(3)) / 2


class EquivariantGroupNorm(nn.Module):
    """Group norm with statistics over whole fields: all their group elements and spatial positions.

    A permutation within the fields does not change mean and variance, so it is equivariant for
    regular fields; with `affine` each field has a gain and a shift.
    """

    def __init__(
        self, representation: Regular, fields: int, *, groups: int, affine: bool = False
    ) -> None:
        super().__init__()
        self.fields, self.dimension = fields, representation.dimension
        self.norm = nn.GroupNorm(groups, fields, affine=affine)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each example separately."""
        if not self.norm.affine:
            # The channels of a field are adjacent, so groups of fields are groups of channels.
            plain: Tensor = self.norm(x)
            return plain
        y: Tensor = self.norm(torch.unflatten(x, 1, (self.fields, self.dimension)))
        return y.flatten(1, 2)


def norm_groups(fields: int, nominal: int = 8) -> int:
    """The largest divisor of `fields` up to `nominal` with over 3 fields a group; else 1."""
    fitting = (d for d in range(nominal, 1, -1) if fields % d == 0 and fields // d > 3)
    return next(fitting, 1)
