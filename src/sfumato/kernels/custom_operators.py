"""The operators `torch.ops.sfumato.*`: Triton on CUDA devices, the definitions elsewhere.

Operators of convolutions have fake implementations, so that `torch.compile` keeps one graph around
them, and kernels traced for a CUDA device are compiled in the background. They are used in the
backward pass, those over rows after it; none has a derivative.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

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
        keep: Whether to return the gradients themselves; if not, an empty tensor is returned.

    Returns:
        Gradients `(examples, out, kh, kw, padded(in))` in the precision of `x`, zero where there
        is no channel, and statistics `(examples, 1 or 3, out)` of exactly what is returned, in
        float32 at least.
    """
    grads = definitions.conv_gradients(x, d, Geometry.of(geometry, views))
    if keep:
        grads = grads.to(x.dtype)
    statistics = definitions.filter_statistics(grads, direction)
    if not keep:
        return grads.new_empty(0, dtype=x.dtype), statistics
    channels = x.shape[1]
    return torch.nn.functional.pad(grads, (0, padded(channels) - channels)), statistics


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
    return grads, x.new_empty((examples, _count(direction), out), dtype=wide)


@torch.library.custom_op("sfumato::grouped_gradients", mutates_args=(), tags=_EXACT)
def grouped_gradients(x: Tensor, d: Tensor, geometry: list[int], groups: int, views: int) -> Tensor:
    """Per-example filter gradients of a convolution with groups.

    Args:
        x: Inputs `(rows, in, H, W)`.
        d: Gradients of the outputs `(rows, out, H', W')`.
        geometry: As `Geometry.numbers`.
        groups: Channel groups.
        views: Rows per example.

    Returns:
        `(examples, out, kh, kw, in / groups)` in the precision of `x`.
    """
    return definitions.grouped_gradients(x, d, Geometry.of(geometry, views), groups)


@grouped_gradients.register_fake
def _(x: Tensor, d: Tensor, geometry: list[int], groups: int, views: int) -> Tensor:
    compile_ahead(_grouped_on_cuda, x.device, x, d, geometry, groups, views)
    examples, each = x.shape[0] // views, x.shape[1] // groups
    return x.new_empty((examples, d.shape[1], geometry[0], geometry[1], each))


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
    found = definitions.ghost_norms(x, d, scales, Geometry.of(geometry, views))
    wide = torch.promote_types(x.dtype, torch.float32)
    return (found * (1 + definitions.UNIT)).to(wide)  # The conversion may round down.


@ghost_norms.register_fake
def _(x: Tensor, d: Tensor, scales: Tensor | None, geometry: list[int], views: int) -> Tensor:
    compile_ahead(_ghost_on_cuda, x.device, x, d, scales, geometry, views)
    wide = torch.promote_types(x.dtype, torch.float32)
    return x.new_empty((x.shape[0] // views,), dtype=wide)


@torch.library.custom_op("sfumato::row_sum", mutates_args=())
def row_sum(rows: Tensor, weights: Tensor) -> Tensor:
    """Sum over examples of weight times the example's row, in float32 at least."""
    return definitions.row_sum(rows, weights)


@torch.library.custom_op("sfumato::segment_norms", mutates_args=())
def segment_norms(rows: Tensor, starts: Tensor) -> Tensor:
    """Squared norms `(examples, segments)` of the parts of each row that begin at `starts`."""
    return definitions.segment_norms(rows, starts)


@torch.library.custom_op("sfumato::filter_norms", mutates_args=())
def filter_norms(statistics: Tensor, factors: Tensor, entries: int, rounding: float) -> Tensor:
    """Squared norms `(examples, 2)` of gradients of standardised filters and of their gains."""
    return definitions.filter_norms(statistics, factors, entries, rounding)


@torch.library.custom_op("sfumato::filter_pullback", mutates_args=())
def filter_pullback(total: Tensor, centred: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
    """A gradient of standardised filters as gradients of the raw weight and of the gain."""
    return definitions.filter_pullback(total, centred, factors)


@torch.library.custom_op(
    "sfumato::write_standardised", mutates_args=("value", "centred", "direction", "factors")
)
def write_standardised(
    raw: Tensor,
    gain: Tensor | None,
    value: Tensor,
    centred: Tensor,
    direction: Tensor,
    factors: Tensor,
    plain: bool,
    eps: float,
) -> None:
    """Write standardised filters, and the factors of their derivative, into existing tensors."""
    definitions.write_standardised(raw, gain, value, centred, direction, factors, plain, eps)


def _count(direction: Tensor | None) -> int:
    return 1 if direction is None else 3


@conv_gradients.register_kernel("cuda")
def _gradients_on_cuda(
    x: Tensor, d: Tensor, direction: Tensor | None, geometry: list[int], views: int, keep: bool
) -> tuple[Tensor, Tensor]:
    from sfumato.kernels import conv

    return conv.conv_gradients(x, d, direction, Geometry.of(geometry, views), keep=keep)


@grouped_gradients.register_kernel("cuda")
def _grouped_on_cuda(x: Tensor, d: Tensor, geometry: list[int], groups: int, views: int) -> Tensor:
    from sfumato.kernels import grouped

    return grouped.grouped_gradients(x, d, Geometry.of(geometry, views), groups)


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


def _over_rows(operator: Any) -> None:
    """Register the kernel of the same name over rows; its definition where there is no Triton."""
    name = operator._name

    def run(*arguments: Any) -> Any:
        if find_spec("triton") is None:
            return getattr(definitions, name)(*arguments)

        from sfumato.kernels import row_kernels

        return getattr(row_kernels, name)(*arguments)

    operator.register_kernel("cuda")(run)
    _ON_CUDA[name] = run


_ON_CUDA: dict[str, Callable[..., Any]] = {"weighted_sum": _sum_on_cuda}
"""The operators that run after the backward pass, where no trace tells their shapes."""

for _operator in (row_sum, segment_norms, filter_norms, filter_pullback, write_standardised):
    _over_rows(_operator)


def ahead(name: str, device: torch.device, *arguments: object) -> None:
    """Compile the kernels of an operator that runs after the backward pass, beside other work.

    Args:
        name: The operator.
        device: The device; nothing is done for one without kernels.
        arguments: Arguments like those to come; of tensors only the shape and the type are used.
    """
    compile_ahead(_ON_CUDA[name], device, *arguments)
