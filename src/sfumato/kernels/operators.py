"""The operators `torch.ops.sfumato.*`: Triton on CUDA devices, the definitions elsewhere.

They have fake implementations, so `torch.compile` keeps one graph around them, and what it traces
for a CUDA device is compiled meanwhile. They are made for the backward pass and have no derivative
of their own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sfumato.kernels import definitions
from sfumato.kernels.definitions import Geometry, padded
from sfumato.kernels.warming import compile_ahead

_EXACT = (torch.Tag.needs_exact_strides,)


@torch.library.custom_op("sfumato::conv_gradients", mutates_args=(), tags=_EXACT)
def conv_gradients(
    x: Tensor, d: Tensor, direction: Tensor | None, geometry: list[int], views: int, keep: bool
) -> tuple[Tensor, Tensor]:
    """Per-example filter gradients and their statistics.

    Args:
        x: Inputs `(rows, in, H, W)`.
        d: Gradients of the outputs `(rows, out, H', W')`.
        direction: `(out, kh, kw, in)` for the statistics, or None; see `filter_statistics`.
        geometry: As `Geometry.numbers`.
        views: Rows per example.
        keep: Whether the gradients themselves are wanted; if not, an empty tensor stands for them.

    Returns:
        Gradients `(examples, out, kh, kw, in)` in the precision of `x`, and statistics
        `(examples, 1 or 3, out)` of exactly what is returned, in float32 at least.
    """
    grads = definitions.conv_gradients(x, d, Geometry.of(geometry, views))
    if keep:
        grads = _laid_out(grads.to(x.dtype))
    statistics = definitions.filter_statistics(grads, direction)
    return grads if keep else grads.new_empty(0, dtype=x.dtype), statistics


@conv_gradients.register_fake
def _(
    x: Tensor, d: Tensor, direction: Tensor | None, geometry: list[int], views: int, keep: bool
) -> tuple[Tensor, Tensor]:
    compile_ahead(_gradients_on_cuda, x.device, x, d, direction, geometry, views, keep)
    examples, out = x.shape[0] // views, d.shape[1]
    wide = torch.promote_types(x.dtype, torch.float32)
    grads = x.new_empty(0)
    if keep:
        grads = x.new_empty(examples, out, geometry[0], geometry[1], padded(x.shape[1]))
        grads = grads[..., : x.shape[1]]
    return grads, x.new_empty((examples, _count(direction), out), dtype=wide)


@torch.library.custom_op("sfumato::weighted_sum", mutates_args=(), tags=_EXACT)
def weighted_sum(x: Tensor, d: Tensor, weights: Tensor, geometry: list[int], views: int) -> Tensor:
    """Sum over examples of weight times filter gradient, `(out, kh, kw, in)`."""
    return definitions.weighted_sum(x, d, weights, Geometry.of(geometry, views))


@weighted_sum.register_fake
def _(x: Tensor, d: Tensor, weights: Tensor, geometry: list[int], views: int) -> Tensor:
    compile_ahead(_sum_on_cuda, x.device, x, d, weights, geometry, views)
    wide = torch.promote_types(x.dtype, torch.float32)
    return x.new_empty((d.shape[1], geometry[0], geometry[1], x.shape[1]), dtype=wide)


@torch.library.custom_op("sfumato::ghost_norms", mutates_args=(), tags=_EXACT)
def ghost_norms(
    x: Tensor, d: Tensor, scales: Tensor | None, geometry: list[int], views: int
) -> Tensor:
    """Squared norm of each example's filter gradient, `(examples,)`, never rounded down."""
    at, rounding = Geometry.of(geometry, views), definitions.ROUNDING_CPU
    return definitions.ghost_norms(x, d, scales, at, rounding=rounding)


@ghost_norms.register_fake
def _(x: Tensor, d: Tensor, scales: Tensor | None, geometry: list[int], views: int) -> Tensor:
    compile_ahead(_ghost_on_cuda, x.device, x, d, scales, geometry, views)
    wide = torch.promote_types(x.dtype, torch.float32)
    return x.new_empty((x.shape[0] // views,), dtype=wide)


def _laid_out(grads: Tensor) -> Tensor:
    """The same numbers with as many channels between them as the kernels leave."""
    channels = grads.shape[-1]
    return torch.nn.functional.pad(grads, (0, padded(channels) - channels))[..., :channels]


def _count(direction: Tensor | None) -> int:
    return 1 if direction is None else 3


@conv_gradients.register_kernel("cuda")
def _gradients_on_cuda(
    x: Tensor, d: Tensor, direction: Tensor | None, geometry: list[int], views: int, keep: bool
) -> tuple[Tensor, Tensor]:
    from sfumato.kernels import conv

    return conv.conv_gradients(x, d, direction, Geometry.of(geometry, views), keep=keep)


@weighted_sum.register_kernel("cuda")
def _sum_on_cuda(x: Tensor, d: Tensor, weights: Tensor, geometry: list[int], views: int) -> Tensor:
    from sfumato.kernels import conv

    return conv.weighted_sum(x, d, weights, Geometry.of(geometry, views))


@ghost_norms.register_kernel("cuda")
def _ghost_on_cuda(
    x: Tensor, d: Tensor, scales: Tensor | None, geometry: list[int], views: int
) -> Tensor:
    from sfumato.kernels import ghost

    return ghost.ghost_norms(x, d, scales, Geometry.of(geometry, views))
