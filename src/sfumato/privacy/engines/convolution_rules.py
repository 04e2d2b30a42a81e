"""Rules of convolutions."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.kernels.definitions import Geometry
from sfumato.privacy.engines import autograd_functions
from sfumato.privacy.engines.book_keeping import DeferredFilters
from sfumato.privacy.engines.compiled_rules import FilterLeaves, filters
from sfumato.privacy.engines.contact_rule import Met, Rule, named
from sfumato.privacy.engines.leaves import NotPerOperator
from sfumato.privacy.engines.stored_gradients import zeros

CONVOLUTION = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")


def convolution(met: Met, function: Rule, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """`F.conv1d`, `F.conv2d` and `F.conv3d`, with every stride, padding, dilation and grouping."""
    return _convolved(met, **named(CONVOLUTION, args, kwargs))


def _convolved(
    met: Met,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    size = tuple(weight.shape[2:])
    stride, dilation = _each(stride, len(size)), _each(dilation, len(size))
    x = _leading(met, input)
    x, padding = _padded(x, padding, size, dilation)
    weight_leaf = None if met.deferred else met.leaves.of(weight)
    shift = None if bias is None else met.leaves.value(bias)
    x, values, shift = autograd_functions.cast_values(x, met.leaves.value(weight), shift)
    if met.deferred:
        at = Geometry(size, stride, padding, dilation, met.copies)  # type: ignore[arg-type]
        with torch.no_grad():
            shape = F.conv2d(x[:1], values, None, stride, padding, dilation, groups).shape
        leaf, kept = zeros(x, x.shape[0], *shape[1:]), x.detach()
        met.leaves.defer(weight, leaf, lambda d: DeferredFilters(kept, d, weight.detach(), at))
        y = filters(FilterLeaves(values, shift, met.leaves.of(bias), at, output=leaf), x)
        return met.contact.output.back(y, met.leaves.rows)
    settings = stride, padding, dilation, groups, False, (0,) * len(size)
    return _run(met, (x, values, shift), (weight_leaf, met.leaves.of(bias)), settings)


def _leading(met: Met, input: Any) -> Tensor:
    """The input with the rows of the batch in front."""
    place = met.contact.place
    if place.dim != 0:
        raise NotPerOperator("the rows of the batch are channels or positions of a convolution")
    return place.leading(input, met.leaves.rows)


def _run(met: Met, given: Any, leaves: tuple[Tensor | None, Tensor | None], own: Any) -> Tensor:
    """Run a convolution over rows that lead, a 1-D convolution as a 2-D one of height 1.

    Args:
        met: The contact.
        given: Input, and the values of filters and bias.
        leaves: The leaves of filters and bias.
        own: Stride, padding, dilation, groups, whether it is transposed, and output padding.
    """
    (x, values, shift), (weight_leaf, bias_leaf) = given, leaves
    stride, padding, dilation, groups, transposed, output_padding = own
    flat = values.dim() == 3
    if flat:
        x, values = x.unsqueeze(2), values.unsqueeze(2)
        stride, padding, dilation = (1, *stride), (0, *padding), (1, *dilation)
        output_padding = (0, *output_padding)
        weight_leaf = None if weight_leaf is None else weight_leaf.unsqueeze(3)
    y = autograd_functions.convolution(
        x, values, shift, weight_leaf, bias_leaf,
        stride, padding, dilation, groups, transposed, output_padding, met.copies,
    )  # fmt: skip
    return met.contact.output.back(y.squeeze(2) if flat else y, met.leaves.rows)


_TRANSPOSED = (
    "input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation",
)  # fmt: skip


def transposed_convolution(met: Met, function: Rule, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """`F.conv_transpose1d`, `F.conv_transpose2d` and `F.conv_transpose3d`, with every option."""
    own = {"bias": None, "stride": 1, "padding": 0, "output_padding": 0, "groups": 1, "dilation": 1}
    own |= named(_TRANSPOSED, args, kwargs)
    bias: Any = own["bias"]
    x = _leading(met, own["input"])
    weight: Any = own["weight"]
    shift = None if bias is None else met.leaves.value(bias)
    given = autograd_functions.cast_values(x, met.leaves.value(weight), shift)
    stride, padding, dilation, output_padding = (
        _each(own[name], weight.dim() - 2)
        for name in ("stride", "padding", "dilation", "output_padding")
    )
    settings = stride, padding, dilation, own["groups"], True, output_padding
    return _run(met, given, (met.leaves.of(weight), met.leaves.of(bias)), settings)


def _each(value: Any, dims: int) -> tuple[int, ...]:
    """One number for each spatial dimension."""
    if isinstance(value, int):
        return (value,) * dims
    values = tuple(int(v) for v in value)
    return values * dims if len(values) == 1 else values


def _padded(
    x: Tensor, padding: Any, size: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[Tensor, tuple[int, ...]]:
    """Apply the padding that differs at the two ends; return the input and the padding left."""
    if not isinstance(padding, str):
        return x, _each(padding, len(size))
    total = [0 if padding == "valid" else d * (k - 1) for k, d in zip(size, dilation, strict=True)]
    if all(n % 2 == 0 for n in total):
        return x, tuple(n // 2 for n in total)
    ends = [end for n in reversed(total) for end in (n // 2, n - n // 2)]
    return F.pad(x, ends), (0,) * len(size)


def zero_padding(
    stride: Any, padding: Any, dilation: Any, size: tuple[int, ...]
) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]] | None:
    """Stride, padding and dilation of two dimensions; None if the two ends are padded unequally."""
    steps, gaps = _each(stride, 2), _each(dilation, 2)
    if padding == "same":
        total = [d * (k - 1) for k, d in zip(size, gaps, strict=True)]
        if any(n % 2 for n in total):
            return None
        padding = tuple(n // 2 for n in total)
    ends = (0, 0) if padding == "valid" else _each(padding, 2)
    return (steps[0], steps[1]), (ends[0], ends[1]), (gaps[0], gaps[1])


CONVOLUTIONS: dict[Any, Rule] = {
    **dict.fromkeys((F.conv1d, F.conv2d, F.conv3d), convolution),
    **dict.fromkeys((torch.conv1d, torch.conv2d, torch.conv3d), convolution),
    **dict.fromkeys(
        (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d), transposed_convolution
    ),
    **dict.fromkeys(
        (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d),
        transposed_convolution,
    ),
}
"""The rules of convolutions by their functions."""
