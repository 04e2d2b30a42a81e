"""Per-example gradients of a convolution's filters: batched products over positions and views."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato import kernels
from sfumato.kernels.definitions import Geometry

_NARROW = (torch.bfloat16, torch.float16)

_FEW = 256
"""Rows up to which products are PyTorch's own. Our kernels would have to be compiled first: 4.3 s
for the eight examples with which the checks compare a compiled WRN-16-4."""

Pair = tuple[int, int]


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
        `(rows / views, out, in / groups, *kernel)`, possibly strided.
    """
    ours = kernels.AVAILABLE and x.is_cuda
    if ours and groups == 1 and x.dtype in _NARROW and len(x) > _FEW:
        geometry = Geometry(kernel, stride, padding, dilation, views)
        grads: Tensor = torch.ops.sfumato.conv_gradients(x, d, None, geometry.numbers, views, True)[
            0
        ]
        return grads[..., : x.shape[1]].permute(0, 1, 4, 2, 3)
    if ours and groups > 1 and x.dtype != torch.float64:
        numbers = Geometry(kernel, stride, padding, dilation, views).numbers
        found: Tensor = torch.ops.sfumato.grouped_gradients(x, d, numbers, groups, views)
        return found.permute(0, 1, 4, 2, 3)
    if 1 < groups == x.shape[1] and x.device.type == "cpu" and x.dtype == torch.float32:
        return _by_channels(x, d, kernel, stride, padding, dilation, views)
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

    The output gradients are padded to the input's grid, so a shifted slice of the flattened input
    is contiguous and runs over rows and views alike; nothing is unfolded.
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


def _by_channels(
    x: Tensor, d: Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, views: int
) -> Tensor:
    """One convolution in which each channel of each row is filtered by its output gradient."""
    rows, out = d.shape[:2]
    each = out // x.shape[1]
    x = x.repeat_interleave(each, 1) if each > 1 else x
    found = F.conv2d(
        x.reshape(1, rows * out, *x.shape[2:]), d.reshape(rows * out, 1, *d.shape[2:]),
        stride=dilation, padding=padding, dilation=stride, groups=rows * out,
    )  # fmt: skip
    # A stride may leave positions at the end that no filter tap has seen.
    grad = found[..., : kernel[0], : kernel[1]].reshape(-1, views, out, 1, *kernel)
    return grad.sum(1) if views > 1 else grad.squeeze(1)


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
