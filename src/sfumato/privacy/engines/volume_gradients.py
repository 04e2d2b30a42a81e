"""Per-example gradients of filters of two and of three dimensions.

For one tap along depth, the filters of a convolution of volumes are filters of two dimensions, and
the depths of the output are positions like any other. So the gradient of each depth of a filter is
that of a convolution of images, whose rows are the slices of the volumes. On a CPU, the gradient of
one convolution with a group of channels for each example is faster.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.privacy.engines.convolution_gradients import Pair, conv_weight_gradients

Sizes = tuple[int, ...]
"""A number for each spatial dimension."""


def filter_gradients(
    x: Tensor,
    d: Tensor,
    *,
    kernel: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int,
    views: int,
) -> Tensor:
    """Gradient of each example's loss with respect to the filters of a convolution.

    Args:
        x: Inputs `(rows, in, H, W)` or `(rows, in, D, H, W)`.
        d: Gradients of the loss with respect to the outputs, `(rows, out, ...)`.
        kernel: Sizes of the filters.
        stride: As in `torch.nn.Conv3d`, and so are `padding`, `dilation` and `groups`.
        padding: Zeros added on both sides.
        dilation: Distance between taps.
        groups: Channel groups.
        views: Rows per example, contracted together with the positions.

    Returns:
        `(rows / views, out, in / groups, *kernel)`, possibly strided.
    """
    if len(kernel) == 2:
        return conv_weight_gradients(
            x, d, kernel=_pair(kernel), stride=_pair(stride), padding=_pair(padding),
            dilation=_pair(dilation), groups=groups, views=views,
        )  # fmt: skip
    if x.device.type == "cpu" and x.dtype == torch.float32:
        return _by_groups(x, d, kernel, stride, padding, dilation, groups, views)
    return _by_slices(x, d, kernel, stride, padding, dilation, groups, views)


_BLOCK = 16
"""Channels that a CPU's convolutions of volumes take at a time. With other numbers they are up to
ten times slower, so that channels of zeros are added."""


def _by_groups(
    x: Tensor,
    d: Tensor,
    kernel: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int,
    views: int,
) -> Tensor:
    """The gradient of one convolution in which every example has groups of channels of its own."""
    examples, (inputs, out) = x.shape[0] // views, (x.shape[1] // groups, d.shape[1])
    if groups == 1:
        x, d = (F.pad(t, (0, 0, 0, 0, 0, 0, 0, -t.shape[1] % _BLOCK)) for t in (x, d))
    channels = d.shape[1]
    grouped = [
        t.reshape(examples, views, *t.shape[1:]).transpose(0, 1).flatten(1, 2) for t in (x, d)
    ]
    like = x.new_empty(1).expand(examples * channels, x.shape[1] // groups, *kernel)
    found: Tensor = torch.ops.aten.convolution_backward(
        grouped[1], grouped[0], like, None, stride, padding, dilation, False, (0, 0, 0),
        examples * groups, [False, True, False],
    )[1]  # fmt: skip
    return found.view(examples, channels, -1, *kernel)[:, :out, :inputs]


def _by_slices(
    x: Tensor,
    d: Tensor,
    kernel: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int,
    views: int,
) -> Tensor:
    """One gradient of a convolution of images for each tap along depth."""
    steps, zeros, gap = stride[0], padding[0], dilation[0]
    shape = x.shape[0] // views, d.shape[1], x.shape[1] // groups, *kernel[1:]
    xs, ds = x.transpose(1, 2), d.transpose(1, 2)
    found = []
    for tap in range(kernel[0]):
        offset = tap * gap - zeros
        # Output z sees input z * steps + offset at this tap: outputs that see padding are left out.
        first = max(0, -(offset // steps))
        last = min(d.shape[2], (x.shape[2] - 1 - offset) // steps + 1)
        if last <= first:
            found.append(x.new_zeros(shape))
            continue
        start = first * steps + offset
        seen = xs[:, start : start + (last - first - 1) * steps + 1 : steps]
        gradient = conv_weight_gradients(
            seen.flatten(0, 1), ds[:, first:last].flatten(0, 1),
            kernel=_pair(kernel), stride=_pair(stride), padding=_pair(padding),
            dilation=_pair(dilation),
            groups=groups, views=views * (last - first),
        )  # fmt: skip
        found.append(gradient)
    # In memory the taps come first, as in the gradients of each.
    return torch.stack([t.permute(3, 4, 0, 1, 2) for t in found]).permute(3, 4, 5, 0, 1, 2)


def _pair(numbers: Sizes) -> Pair:
    """The numbers of height and width."""
    return numbers[-2], numbers[-1]
