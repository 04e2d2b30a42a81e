"""Per-example gradients of single layers: the rules.

Each rule runs a layer's ordinary forward pass on plain values and, for every trainable tensor of
the layer, ties a *leaf* of shape `(examples, *shape)` into the graph. Where a parameter is small
(norm gains and shifts) the leaf is used in its place; where it is large (filters, matrices) the
leaf is never read, and an autograd function defines its gradient. Either way
`torch.autograd.grad(loss, leaf)` is the gradient of each example apart, without hooks and
without state on parameters.

A rule sees `rows = examples * views` inputs in example-major order. Gradients are summed over the
views of an example here; the mean is taken in the loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Pair = tuple[int, int]


class Leaves(Protocol):
    """What a rule asks for the per-example leaf of a layer's tensor."""

    @property
    def views(self) -> int:
        """Rows per example."""
        ...

    def of(self, tensor: Tensor | None) -> Tensor | None:
        """The leaf of a trainable tensor, or None where nothing is to be trained."""
        ...


Rule = Callable[..., Tensor]


def conv_weight_gradients(
    x: Tensor,
    d: Tensor,
    *,
    kernel: Pair,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
    views: int,
) -> Tensor:
    """Gradient of each example's loss with respect to a convolution's filters.

    Args:
        x: Inputs `(rows, in, H, W)`.
        d: Gradients of the loss with respect to the outputs, `(rows, out, H', W')`.
        kernel: Height and width of the filters.
        stride: As in `torch.nn.Conv2d`, and so are `padding`, `dilation` and `groups`.
        padding: Zeros added on both sides.
        dilation: Distance between taps.
        groups: Channel groups.
        views: Rows per example, contracted together with the positions.

    Returns:
        `(rows / views, out, in / groups, *kernel)`, possibly strided: see `dense`.
    """
    if groups == 1 and stride == (1, 1) and x.shape[1] >= 16 and kernel != (1, 1):
        area = x.shape[2] * x.shape[3]
        padded = (x.shape[2] + 2 * padding[0]) * (x.shape[3] + 2 * padding[1])
        if padded <= 1.6 * area:
            return _by_taps(x, d, kernel, padding, dilation, views)
    return _by_unfolding(x, d, kernel, stride, padding, dilation, groups, views)


def _by_taps(
    x: Tensor, d: Tensor, kernel: Pair, padding: Pair, dilation: Pair, views: int
) -> Tensor:
    """One batched product per filter tap, on shifted slices of the zero-padded input.

    The output gradients lie on the padded grid with zeros at its ends, so a shifted slice of the
    flattened input is contiguous and runs over rows and views alike; nothing is unfolded.
    """
    (kh, kw), (ph, pw), (dh, dw) = kernel, padding, dilation
    channels, out = x.shape[1], d.shape[1]
    height, width = x.shape[2] + 2 * ph, x.shape[3] + 2 * pw
    examples = x.shape[0] // views
    xs = F.pad(x.permute(0, 2, 3, 1), (0, 0, pw, pw, ph, ph))
    ds = F.pad(d.permute(0, 2, 3, 1), (0, 0, 0, width - d.shape[3], 0, height - d.shape[2]))
    xs = xs.reshape(examples, views * height * width, channels)
    ds = ds.reshape(examples, views * height * width, out)
    reach = (kh - 1) * dh * width + (kw - 1) * dw
    length = xs.shape[1] - reach
    dt = ds[:, :length].transpose(1, 2)
    taps = x.new_empty(kh * kw, examples, out, channels)
    for i in range(kh):
        for j in range(kw):
            start = i * dh * width + j * dw
            torch.bmm(dt, xs[:, start : start + length], out=taps[i * kw + j])
    return taps.view(kh, kw, examples, out, channels).permute(2, 3, 4, 0, 1)


def _by_unfolding(
    x: Tensor,
    d: Tensor,
    kernel: Pair,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
    views: int,
) -> Tensor:
    """One batched product per example and group, on the unfolded input."""
    rows, channels, out = x.shape[0], x.shape[1], d.shape[1]
    examples = rows // views
    if kernel == (1, 1) and padding == (0, 0):
        columns = x[:, :, :: stride[0], :: stride[1]].reshape(rows, channels, -1)
    else:
        columns = F.unfold(x, kernel, dilation=dilation, padding=padding, stride=stride)
    ds = d.reshape(rows, out, -1)
    fan_in = columns.shape[1] // groups
    if views > 1:
        columns = _views_to_positions(columns, views)
        ds = _views_to_positions(ds, views)
    columns = columns.reshape(examples * groups, fan_in, -1)
    ds = ds.reshape(examples * groups, out // groups, -1)
    grad = torch.bmm(ds, columns.transpose(1, 2))
    return grad.view(examples, out, channels // groups, *kernel)


def _views_to_positions(t: Tensor, views: int) -> Tensor:
    """`(examples * views, channels, positions)` to `(examples, channels, views * positions)`."""
    rows, channels, _ = t.shape
    return t.view(rows // views, views, channels, -1).transpose(1, 2).flatten(2)


def _over_positions(d: Tensor, views: int) -> Tensor:
    """Sum of `(rows, channels, ...)` over views and positions: `(examples, channels)`."""
    d = d.flatten(2).sum(2) if d.dim() > 2 else d
    return d.view(-1, views, d.shape[1]).sum(1) if views > 1 else d


class _Convolution(torch.autograd.Function):
    """A convolution, or its transpose, whose leaves receive per-example gradients."""

    @staticmethod
    def forward(  # type: ignore[override]
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
        # With a frozen weight nothing but the shape of x is needed, and x may change in place.
        ctx.save_for_backward(None if weight_leaf is None else x, weight)
        ctx.shape = x.shape
        ctx.settings = stride, padding, dilation, groups, transposed, output_padding, views
        y: Tensor = torch.ops.aten.convolution(
            x, weight, bias, stride, padding, dilation, transposed, output_padding, groups
        )
        return y

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
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
    """A linear layer over the last dimension whose leaves receive per-example gradients."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        weight_leaf: Tensor | None,
        bias_leaf: Tensor | None,
        views: int,
    ) -> Tensor:
        ctx.save_for_backward(None if weight_leaf is None else x, weight)
        ctx.views = views
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        needs_x, _, _, needs_weight, needs_bias = ctx.needs_input_grad[:5]
        examples = d.shape[0] // ctx.views
        dx = dw = db = None
        ds = d.reshape(examples, -1, d.shape[-1])
        if needs_x:
            dx = d @ weight
        if needs_weight:
            dw = torch.bmm(ds.transpose(1, 2), x.reshape(examples, -1, x.shape[-1]))
        if needs_bias:
            db = ds.sum(1)
        return dx, None, None, dw, db, None


def _values(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Input and plain values of a layer, cast as `torch.autocast` would cast them around it."""
    weight, bias = weight.detach(), None if bias is None else bias.detach()
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
    """Apply any padding that the convolution itself cannot, and say what is left to it."""
    before_after: list[int] = layer._reversed_padding_repeated_twice
    if layer.padding_mode != "zeros":
        return F.pad(x, before_after, mode=layer.padding_mode), (0,) * (x.dim() - 2)
    if isinstance(layer.padding, str):
        if before_after[::2] == before_after[1::2]:
            return x, tuple(reversed(before_after[::2]))
        return F.pad(x, before_after), (0,) * (x.dim() - 2)
    return x, tuple(layer.padding)


def conv2d(layer: nn.Conv2d, leaves: Leaves, x: Tensor) -> Tensor:
    """Rule for `nn.Conv2d`, with every stride, padding mode, dilation and grouping."""
    weight, bias = layer.weight, layer.bias
    x, padding = _padded(layer, x)
    y: Tensor = _Convolution.apply(
        *_values(x, weight, bias), leaves.of(weight), leaves.of(bias),
        _pair(layer.stride), _pair(padding), _pair(layer.dilation), layer.groups,
        False, (0, 0), leaves.views,
    )  # fmt: skip
    return y


def conv1d(layer: nn.Conv1d, leaves: Leaves, x: Tensor) -> Tensor:
    """Rule for `nn.Conv1d`: the two-dimensional rule on images of height one."""
    weight, bias = layer.weight, layer.bias
    x, padding = _padded(layer, x)
    leaf = leaves.of(weight)
    x, values, shift = _values(x, weight, bias)
    y: Tensor = _Convolution.apply(
        x.unsqueeze(2), values.unsqueeze(2), shift,
        None if leaf is None else leaf.unsqueeze(3), leaves.of(bias),
        (1, layer.stride[0]), (0, padding[0]), (1, layer.dilation[0]), layer.groups,
        False, (0, 0), leaves.views,
    )  # fmt: skip
    return y.squeeze(2)


def conv_transpose2d(
    layer: nn.ConvTranspose2d, leaves: Leaves, x: Tensor, output_size: list[int] | None = None
) -> Tensor:
    """Rule for `nn.ConvTranspose2d`."""
    weight, bias = layer.weight, layer.bias
    output_padding = layer._output_padding(
        x, output_size, layer.stride, layer.padding, layer.kernel_size, 2, layer.dilation
    )  # type: ignore[arg-type]
    y: Tensor = _Convolution.apply(
        *_values(x, weight, bias), leaves.of(weight), leaves.of(bias),
        _pair(layer.stride), _pair(layer.padding), _pair(layer.dilation), layer.groups,
        True, _pair(output_padding), leaves.views,
    )  # fmt: skip
    return y


def linear(layer: nn.Linear, leaves: Leaves, x: Tensor) -> Tensor:
    """Rule for `nn.Linear` on inputs of any number of dimensions."""
    weight, bias = layer.weight, layer.bias
    y: Tensor = _Linear.apply(
        *_values(x, weight, bias), leaves.of(weight), leaves.of(bias), leaves.views
    )
    return y


def _scale_and_shift(
    y: Tensor, layer: nn.Module, leaves: Leaves, *, channels_first: bool
) -> Tensor:
    """Apply a norm's gain and shift through their leaves, one row of them per example."""
    for name, combine in (("weight", torch.mul), ("bias", torch.add)):
        value = getattr(layer, name, None)
        if value is None:
            continue
        leaf = leaves.of(value)
        if leaf is None:
            value = value.detach()
            per_row = value.unsqueeze(0)
        else:
            per_row = leaf.repeat_interleave(leaves.views, 0) if leaves.views > 1 else leaf
        missing = y.dim() - per_row.dim()
        shape = (
            (*per_row.shape, *(1,) * missing)
            if channels_first
            else (per_row.shape[0], *(1,) * missing, *per_row.shape[1:])
        )
        y = combine(y, per_row.reshape(shape))
    return y


def group_norm(layer: nn.GroupNorm, leaves: Leaves, x: Tensor) -> Tensor:
    """Rule for `nn.GroupNorm`."""
    y = F.group_norm(x, layer.num_groups, eps=layer.eps)
    return _scale_and_shift(y, layer, leaves, channels_first=True)


def instance_norm(layer: nn.InstanceNorm2d, leaves: Leaves, x: Tensor) -> Tensor:
    """Rule for `nn.InstanceNorm1d/2d/3d` without running statistics."""
    y = F.instance_norm(x, eps=layer.eps)
    return _scale_and_shift(y, layer, leaves, channels_first=True)


def layer_norm(layer: nn.LayerNorm, leaves: Leaves, x: Tensor) -> Tensor:
    """Rule for `nn.LayerNorm`."""
    y = F.layer_norm(x, layer.normalized_shape, eps=layer.eps)
    return _scale_and_shift(y, layer, leaves, channels_first=False)


def rms_norm(layer: nn.RMSNorm, leaves: Leaves, x: Tensor) -> Tensor:
    """Rule for `nn.RMSNorm`."""
    y = F.rms_norm(x, layer.normalized_shape, eps=layer.eps)
    return _scale_and_shift(y, layer, leaves, channels_first=False)


RULES: dict[type[nn.Module], Rule] = {
    nn.Conv1d: conv1d,
    nn.Conv2d: conv2d,
    nn.ConvTranspose2d: conv_transpose2d,
    nn.Linear: linear,
    nn.GroupNorm: group_norm,
    nn.InstanceNorm1d: instance_norm,
    nn.InstanceNorm2d: instance_norm,
    nn.InstanceNorm3d: instance_norm,
    nn.LayerNorm: layer_norm,
    nn.RMSNorm: rms_norm,
}
