"""Operators with per-example gradients, as autograd functions.

Each runs an operator on plain values and defines the gradients of *leaves* of shape
`(examples, *shape)`, one for each trained tensor, which are never read: `torch.autograd.grad(loss,
leaf)` returns per-example gradients, without hooks and without state on parameters.

A batch has `rows = examples * views` rows in example-major order. Gradients are summed over the
views of an example here; the mean is taken in the loss.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.privacy.engines.leaves import NotPerOperator
from sfumato.privacy.engines.volume_gradients import Sizes, filter_gradients


def unobserved(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A backward pass that the modes which watch the model's operators do not see.

    No parameter meets the batch in its operators, which are many and small. What was saved is
    unpacked before, because a checkpoint runs its part of the model again then.

    Raises:
        NotPerOperator: The backward pass is differentiated itself, as that of a penalty on the
            gradient of the inputs: its results have no graph back to the leaves.
    """

    @functools.wraps(backward)
    def run(ctx: Any, *gradients: Tensor | None) -> Any:
        if torch.is_grad_enabled():
            raise NotPerOperator("a parameter meets the batch in an operator differentiated twice")
        saved = ctx.saved_tensors
        with torch._C.DisableTorchFunction():
            return backward(ctx, saved, *gradients)

    return run


def over_positions(d: Tensor, views: int) -> Tensor:
    """Sum of `(rows, channels, ...)` over views and positions: `(examples, channels)`."""
    d = d.flatten(2).sum(2) if d.dim() > 2 else d
    return d.view(-1, views, d.shape[1]).sum(1) if views > 1 else d


class _Convolution(torch.autograd.Function):
    """A convolution, or its transpose, whose leaves receive per-example gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        weight_leaf: Tensor | None,
        bias_leaf: Tensor | None,
        stride: Sizes,
        padding: Sizes,
        dilation: Sizes,
        groups: int,
        transposed: bool,
        output_padding: Sizes,
        views: int,
    ) -> Tensor:
        # With a frozen weight only the shape of x is needed, so x may be changed in place.
        ctx.save_for_backward(None if weight_leaf is None else x, weight)
        ctx.shape = x.shape
        ctx.settings = stride, padding, dilation, groups, transposed, output_padding, views
        y: Tensor = torch.ops.aten.convolution(
            x, weight, bias, stride, padding, dilation, transposed, output_padding, groups
        )
        return y

    @staticmethod
    @unobserved
    def backward(ctx: Any, saved: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = saved
        stride, padding, dilation, groups, transposed, output_padding, views = ctx.settings
        needs_x, _, _, needs_weight, needs_bias = ctx.needs_input_grad[:5]
        dx = dw = db = None
        if needs_x:
            like = d.new_empty(1).expand(ctx.shape) if x is None else x
            dx = torch.ops.aten.convolution_backward(
                d, like, weight, None, stride, padding, dilation, transposed, output_padding,
                groups, [True, False, False],
            )[0]  # fmt: skip
        if needs_weight:
            # A transposed convolution is the backward pass of a convolution: its filters see the
            # output gradients as input and the inputs as output gradients.
            source, target, pad = (d, x, padding) if transposed else (x, d, padding)
            if any(output_padding):
                ends = zip(padding, output_padding, strict=True)
                source = F.pad(d, [n for p, o in reversed([*ends]) for n in (p, p - o)])
                pad = (0,) * len(padding)
            dw = filter_gradients(
                source,
                target,
                kernel=tuple(weight.shape[2:]),
                stride=stride,
                padding=pad,
                dilation=dilation,
                groups=groups,
                views=views,
            )
        if needs_bias:
            db = over_positions(d, views)
        return (dx, None, None, dw, db, *(None,) * 7)


convolution: Callable[..., Tensor] = _Convolution.apply


def cast_values(
    x: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Input and plain values of an operator, cast as `torch.autocast` would cast them."""
    kind = x.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        x, weight = _cast(x, dtype), _cast(weight, dtype)
        bias = None if bias is None else _cast(bias, dtype)
    return x, weight, bias


def _cast(t: Tensor, dtype: torch.dtype) -> Tensor:
    return t.to(dtype) if t.is_floating_point() and t.dtype != torch.float64 else t


class _GroupNorm(torch.autograd.Function):
    """Group norm by the library's kernels, with gain and shift inside.

    The gradients of gain and shift are sums over positions of d * (x - mean) / deviation and of d.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        weight_leaf: Tensor,
        bias_leaf: Tensor,
        groups: int,
        eps: float,
        views: int,
    ) -> Tensor:
        rows, channels = x.shape[:2]
        x = x.contiguous(memory_format=_memory_format(x))
        shape = rows, channels, x[0, 0].numel(), groups
        y, mean, inverse = torch.ops.aten.native_group_norm(x, weight, bias, *shape, eps)
        ctx.save_for_backward(x, weight, mean, inverse)
        ctx.settings = shape, views
        normed: Tensor = y
        return normed

    @staticmethod
    @unobserved
    def backward(ctx: Any, saved: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse = saved
        shape, views = ctx.settings
        _, channels, _, groups = shape
        d = d.contiguous(memory_format=_memory_format(x))
        dx = None
        if ctx.needs_input_grad[0]:
            dx = torch.ops.aten.native_group_norm_backward(
                d, x, mean, inverse, weight, *shape, [True, False, False]
            )[0]
        sums, products = (t.flatten(2).sum(2) for t in (d, d * x))
        mean, inverse = (t.repeat_interleave(channels // groups, 1) for t in (mean, inverse))
        gains = (products - mean * sums) * inverse
        dw, db = (t.view(-1, views, channels).sum(1) for t in (gains, sums))
        return dx, None, None, dw, db, None, None, None


def _memory_format(x: Tensor) -> torch.memory_format:
    """The memory format that PyTorch's kernels want for tensors that go with this one."""
    last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    # A single row may have any stride, which the kernels do not accept.
    last = last and x.stride(0) == x[0].numel()
    return torch.channels_last if last and not x.is_contiguous() else torch.contiguous_format


group_norm: Callable[..., Tensor] = _GroupNorm.apply


class _Embedding(torch.autograd.Function):
    """Rows of an embedding table, whose leaf receives per-example gradients."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, weight_leaf: Tensor, padding: int | None, views: int
    ) -> Tensor:
        ctx.save_for_backward(x)
        ctx.settings = weight.shape, padding, views
        return F.embedding(x, weight)

    @staticmethod
    @unobserved
    def backward(ctx: Any, saved: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = saved
        (rows, width), padding, views = ctx.settings
        examples = x.shape[0] // views
        indices = x.reshape(examples, -1, 1).long()
        d = d.reshape(examples, -1, width)
        dw = d.new_zeros(examples, rows, width).scatter_add_(1, indices.expand_as(d), d)
        if padding is not None:
            dw[:, padding] = 0
        return None, None, dw, None, None


embedding: Callable[..., Tensor] = _Embedding.apply
