"""Per-example gradients of single layers: the rules.

Each rule runs a layer's ordinary forward pass on plain values and, for every trainable tensor of
the layer, ties a *leaf* of shape `(examples, *shape)` into the graph. Where a parameter is small
(norm gains and shifts) the leaf is used in its place; where it is large (filters, matrices) the
leaf is never read, and an autograd function defines its gradient. In both cases
`torch.autograd.grad(loss, leaf)` returns per-example gradients, without hooks and without state on
parameters.

A rule sees `rows = examples * views` inputs in example-major order. Gradients are summed over the
views of an example here; the mean is taken in the loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.privacy.engines.convolution_gradients import Pair, conv_weight_gradients


@dataclass
class Own:
    """The inputs of a layer's rule: the layer's values and the leaves that receive gradients.

    Attributes:
        views: Rows per example.
        weight: The weight's value, without a graph.
        bias: The bias's value, or None.
        weight_leaf: The weight's per-example leaf, or None where it is not trained.
        bias_leaf: The bias's per-example leaf, likewise.
        cast: Whether to cast as `torch.autocast` would; False where the values are already in the
            precision of the pass.
    """

    views: int
    weight: Tensor | None
    bias: Tensor | None
    weight_leaf: Tensor | None
    bias_leaf: Tensor | None
    cast: bool = True


Rule = Callable[..., Tensor]


def _over_positions(d: Tensor, views: int) -> Tensor:
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
        stride: Pair,
        padding: Pair,
        dilation: Pair,
        groups: int,
        transposed: bool,
        output_padding: Pair,
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
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
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
                (ph, pw), (oh, ow) = padding, output_padding
                source = F.pad(d, (pw, pw - ow, ph, ph - oh))
                pad = (0, 0)
            dw = conv_weight_gradients(
                source,
                target,
                kernel=(weight.shape[2], weight.shape[3]),
                stride=stride,
                padding=pad,
                dilation=dilation,
                groups=groups,
                views=views,
            )
        if needs_bias:
            db = _over_positions(d, views)
        return (dx, None, None, dw, db, *(None,) * 7)


class _Linear(torch.autograd.Function):
    """A linear layer on `(rows * positions, in)` whose leaves receive per-example gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        weight_leaf: Tensor | None,
        bias_leaf: Tensor | None,
        examples: int,
    ) -> Tensor:
        ctx.save_for_backward(None if weight_leaf is None else x, weight)
        ctx.examples = examples
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, _, _, needs_weight, needs_bias = ctx.needs_input_grad[:5]
        dx = dw = db = None
        ds = d.reshape(ctx.examples, -1, d.shape[-1])
        if needs_x:
            dx = d @ weight
        if needs_weight:
            dw = torch.bmm(ds.transpose(1, 2), x.reshape(ctx.examples, -1, x.shape[-1]))
        if needs_bias:
            db = ds.sum(1)
        return dx, None, None, dw, db, None


_convolution: Callable[..., Tensor] = _Convolution.apply
_linear: Callable[..., Tensor] = _Linear.apply


def _values(x: Tensor, own: Own) -> tuple[Tensor, Tensor, Tensor | None]:
    """Input and plain values of a layer, cast as `torch.autocast` would cast them around it."""
    assert own.weight is not None
    return cast_values(x, own.weight, own.bias) if own.cast else (x, own.weight, own.bias)


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


def _pair(value: Any) -> Pair:
    return (value, value) if isinstance(value, int) else (int(value[-2]), int(value[-1]))


def _padded(layer: nn.Conv1d | nn.Conv2d, x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """Apply the padding that the convolution itself cannot; return the input and what is left."""
    before_after: list[int] = layer._reversed_padding_repeated_twice
    if layer.padding_mode != "zeros":
        return F.pad(x, before_after, mode=layer.padding_mode), (0,) * (x.dim() - 2)
    if isinstance(layer.padding, str):
        if before_after[::2] == before_after[1::2]:
            return x, tuple(reversed(before_after[::2]))
        return F.pad(x, before_after), (0,) * (x.dim() - 2)
    return x, tuple(layer.padding)


def conv2d(layer: nn.Conv2d, own: Own, x: Tensor) -> Tensor:
    """Rule for `nn.Conv2d`, with every stride, padding mode, dilation and grouping."""
    x, padding = _padded(layer, x)
    y: Tensor = _convolution(
        *_values(x, own), own.weight_leaf, own.bias_leaf,
        _pair(layer.stride), _pair(padding), _pair(layer.dilation), layer.groups,
        False, (0, 0), own.views,
    )  # fmt: skip
    return y


def conv1d(layer: nn.Conv1d, own: Own, x: Tensor) -> Tensor:
    """Rule for `nn.Conv1d`: the two-dimensional rule on images of height one."""
    x, padding = _padded(layer, x)
    leaf = own.weight_leaf
    x, values, shift = _values(x, own)
    y: Tensor = _convolution(
        x.unsqueeze(2), values.unsqueeze(2), shift,
        None if leaf is None else leaf.unsqueeze(3), own.bias_leaf,
        (1, layer.stride[0]), (0, padding[0]), (1, layer.dilation[0]), layer.groups,
        False, (0, 0), own.views,
    )  # fmt: skip
    return y.squeeze(2)


def conv_transpose2d(
    layer: nn.ConvTranspose2d, own: Own, x: Tensor, output_size: list[int] | None = None
) -> Tensor:
    """Rule for `nn.ConvTranspose2d`."""
    find: Callable[..., list[int]] = layer._output_padding
    output_padding = find(
        x, output_size, layer.stride, layer.padding, layer.kernel_size, 2, layer.dilation
    )
    y: Tensor = _convolution(
        *_values(x, own), own.weight_leaf, own.bias_leaf,
        _pair(layer.stride), _pair(layer.padding), _pair(layer.dilation), layer.groups,
        True, _pair(output_padding), own.views,
    )  # fmt: skip
    return y


def linear(layer: nn.Linear, own: Own, x: Tensor) -> Tensor:
    """Rule for `nn.Linear` on inputs of any number of dimensions."""
    # In two dimensions the result is not a view, so it may be changed in place afterwards.
    flat, values, shift = _values(x.reshape(-1, x.shape[-1]), own)
    y = _linear(flat, values, shift, own.weight_leaf, own.bias_leaf, x.shape[0] // own.views)
    return y.view(*x.shape[:-1], y.shape[-1])


def _scale_and_shift(y: Tensor, own: Own, *, channels_first: bool) -> Tensor:
    """Apply a norm's gain and shift through their leaves, one row of them per example."""
    for value, leaf, combine in (
        (own.weight, own.weight_leaf, torch.mul),
        (own.bias, own.bias_leaf, torch.add),
    ):
        if value is None:
            continue
        if leaf is None:
            per_row = value.unsqueeze(0)
        else:
            per_row = leaf.repeat_interleave(own.views, 0) if own.views > 1 else leaf
        missing = y.dim() - per_row.dim()
        shape = (
            (*per_row.shape, *(1,) * missing)
            if channels_first
            else (per_row.shape[0], *(1,) * missing, *per_row.shape[1:])
        )
        y = combine(y, per_row.reshape(shape))
    return y


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
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse = ctx.saved_tensors
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


_group_norm: Callable[..., Tensor] = _GroupNorm.apply


def group_norm(layer: nn.GroupNorm, own: Own, x: Tensor) -> Tensor:
    """Rule for `nn.GroupNorm`."""
    own_values = own.weight, own.bias, own.weight_leaf, own.bias_leaf
    plain = x.device.type == "cpu" and not torch.is_autocast_enabled("cpu") and x.dim() > 2
    if plain and own.cast and None not in own_values and x.dtype == own.weight.dtype:  # type: ignore[union-attr]
        return _group_norm(x, *own_values, layer.num_groups, layer.eps, own.views)
    y = F.group_norm(x, layer.num_groups, eps=layer.eps)
    return _scale_and_shift(y, own, channels_first=True)


def instance_norm(layer: nn.InstanceNorm2d, own: Own, x: Tensor) -> Tensor:
    """Rule for `nn.InstanceNorm1d/2d/3d` without running statistics."""
    y = F.instance_norm(x, eps=layer.eps)
    return _scale_and_shift(y, own, channels_first=True)


def layer_norm(layer: nn.LayerNorm, own: Own, x: Tensor) -> Tensor:
    """Rule for `nn.LayerNorm`."""
    y = F.layer_norm(x, layer.normalized_shape, eps=layer.eps)
    return _scale_and_shift(y, own, channels_first=False)


def rms_norm(layer: nn.RMSNorm, own: Own, x: Tensor) -> Tensor:
    """Rule for `nn.RMSNorm`."""
    y = F.rms_norm(x, layer.normalized_shape, eps=layer.eps)
    return _scale_and_shift(y, own, channels_first=False)


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
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        (rows, width), padding, views = ctx.settings
        examples = x.shape[0] // views
        indices = x.reshape(examples, -1, 1).long()
        d = d.reshape(examples, -1, width)
        dw = d.new_zeros(examples, rows, width).scatter_add_(1, indices.expand_as(d), d)
        if padding is not None:
            dw[:, padding] = 0
        return None, None, dw, None, None


_embedding: Callable[..., Tensor] = _Embedding.apply


def embedding(layer: nn.Embedding, own: Own, x: Tensor) -> Tensor:
    """Rule for `nn.Embedding`, whose padding row receives nothing."""
    return _embedding(x, own.weight, own.weight_leaf, layer.padding_idx, own.views)


RULES: dict[type[nn.Module], Rule] = {
    nn.Conv1d: conv1d,
    nn.Conv2d: conv2d,
    nn.ConvTranspose2d: conv_transpose2d,
    nn.Linear: linear,
    nn.Embedding: embedding,
    nn.GroupNorm: group_norm,
    nn.InstanceNorm1d: instance_norm,
    nn.InstanceNorm2d: instance_norm,
    nn.InstanceNorm3d: instance_norm,
    nn.LayerNorm: layer_norm,
    nn.RMSNorm: rms_norm,
}
