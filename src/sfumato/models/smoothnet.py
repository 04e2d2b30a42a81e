"""SmoothNet and the family of its component study (Remerscheid et al., 2022).

Trainable parameters on 3x32x32 images with 10 classes: width 8, depth 5 (the published network)
3 391 853; width 4, depth 5 1 009 149; width 1, depth 1 101 017.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

import torch
from torch import Tensor, nn

from sfumato import nn as layers
from sfumato.models.registry import register
from sfumato.nn import Activation, Init, Norm, NormOrder

Links = Literal["dense", "residual", "plain"]
Pooling = Literal["max", "average", "none"]


class Stage(nn.Module):
    """Blocks of `width` channels, linked to all earlier outputs, to their input, or to neither.

    Attributes:
        channels: The channels of the output, concatenated where the links are dense.
    """

    def __init__(self, blocks: list[nn.Module], *, into: int, width: int, links: Links) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.links = links
        self.channels = into + len(blocks) * width if links == "dense" else width
        project = links == "residual" and into != width
        self.skip = nn.Conv2d(into, width, 1, bias=False) if project else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Run the blocks."""
        for index, block in enumerate(self.blocks):
            y = block(x)
            if self.links == "dense":
                x = torch.cat([x, y], dim=1)
            elif self.links == "residual":
                x = y + (self.skip(x) if index == 0 else x)
            else:
                x = y
        return x


class LastChannels(nn.Module):
    """Keep the last `channels` channels only: the output of the last block."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels

    def forward(self, x: Tensor) -> Tensor:
        """Drop the earlier channels."""
        return x[:, -self.channels :]


def _pool(kind: Pooling) -> nn.Module:
    """A 3x3 maximum or mean of stride 1; padding counts as zeros in the mean."""
    if kind == "max":
        return nn.MaxPool2d(3, stride=1, padding=1)
    # A separate padding layer: average pooling with its own padding has a wrong gradient in PyTorch
    # 2.11 on CUDA.
    return nn.Sequential(nn.ZeroPad2d(1), nn.AvgPool2d(3, stride=1))


@register("smoothnet", paper="Remerscheid et al. (2022)", parameters="3.4M", minimum=4)
def smoothnet(
    *,
    classes: int,
    channels: int,
    size: tuple[int, int],
    width: int = 8,
    depth: int = 5,
    links: Links = "dense",
    norm: Norm = "group",
    groups: int = 8,
    pooling: Pooling = "max",
    activation: Activation = "selu",
    norm_order: NormOrder = "norm-activation",
    init: Init = "xavier",
) -> nn.Module:
    """Two stages of `depth` blocks (convolution, 3x3 pool of stride 1, norm, activation).

    The blocks have 8 * `width` channels in the first stage and 16 * `width` in the second; between
    the stages a 1x1 convolution halves the channels. The second stage's last block is pooled to
    4x4 positions and classified by three linear layers. With `residual` links the first block of a
    stage has a 1x1 convolution on its skip path.
    """

    def block(into: int, out: int) -> nn.Module:
        parts = OrderedDict[str, nn.Module](conv=nn.Conv2d(into, out, 3, padding=1, bias=False))
        if pooling != "none":
            parts["pool"] = _pool(pooling)
        parts |= layers.normalised(norm_order, layers.norm(norm, out, groups=groups), activation)
        return nn.Sequential(parts)

    def stage(into: int, out: int) -> Stage:
        later = [into + index * out if links == "dense" else out for index in range(1, depth)]
        blocks = [block(seen, out) for seen in (into, *later)]
        return Stage(blocks, into=into, width=out, links=links)

    first = stage(channels, 8 * width)
    between = max(1, first.channels // 2)
    parts = OrderedDict[str, nn.Module](
        stage1=first,
        between=nn.Conv2d(first.channels, between, 1, bias=False),
        pool1=nn.AvgPool2d(2),
        stage2=stage(between, 16 * width),
        pool2=nn.AvgPool2d(2),
        last=LastChannels(16 * width),
        pool3=nn.AdaptiveAvgPool2d(4),
        flatten=nn.Flatten(),
        hidden1=nn.Linear(16 * 16 * width, 256),
        activation1=layers.activation(activation),
        hidden2=nn.Linear(256, 128),
        activation2=layers.activation(activation),
        head=nn.Linear(128, classes),
    )
    return layers.initialise(nn.Sequential(parts), init)
