"""DenseNet-121 with group norm: a baseline of Remerscheid et al. (2022), 7.0M parameters."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from sfumato import nn as layers
from sfumato.errors import UserError
from sfumato.models.registry import register
from sfumato.models.resnet import Stem, small_stem
from sfumato.nn import Activation, Init, Norm


class Concatenated(nn.Module):
    """Concatenation of the input and the body's output along the channels."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """Append the body's channels."""
        return torch.cat([x, self.body(x)], dim=1)


@register("densenet121", paper="Remerscheid et al. (2022)", parameters="7.0M", minimum=8)
def densenet121(
    *,
    classes: int,
    channels: int,
    size: tuple[int, int],
    growth: int = 32,
    stem: Stem = "auto",
    norm: Norm = "group",
    groups: int = 32,
    activation: Activation = "relu",
    init: Init = "xavier",
) -> nn.Module:
    """The densely connected network of Huang et al. (2017) with group norm in place of batch norm.

    Four stages of 6, 12, 24 and 16 blocks, each a 1x1 convolution to 4 * `growth` channels and a
    3x3 convolution to `growth`; between the stages the channels and the sides are halved. `stem` is
    as for the residual networks: `imagenet`, `cifar` (full resolution), or `auto`.
    """
    small = small_stem(stem, size)
    if not small and min(size) < 32:
        raise UserError(
            f"densenet121 with the imagenet stem needs images of at least 32x32 pixels, not "
            f"{size[0]}x{size[1]}: choose stem = 'cifar'."
        )

    def preactivated(conv: nn.Conv2d) -> nn.Sequential:
        layer = layers.norm(norm, conv.in_channels, groups=groups)
        parts = layers.normalised("norm-activation", layer, activation)
        parts["conv"] = conv
        return nn.Sequential(parts)

    def block(width: int) -> Concatenated:
        squeeze = nn.Conv2d(width, 4 * growth, 1, bias=False)
        grow = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)
        return Concatenated(nn.Sequential(preactivated(squeeze), preactivated(grow)))

    width = 2 * growth
    parts = OrderedDict[str, nn.Module]()
    if small:
        parts["first"] = nn.Conv2d(channels, width, 3, padding=1, bias=False)
    else:
        parts["first"] = nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False)
        parts["norm1"] = layers.norm(norm, width, groups=groups)
        parts["activation1"] = layers.activation(activation)
        parts["pool1"] = nn.MaxPool2d(3, stride=2, padding=1)
    for stage, blocks in enumerate((6, 12, 24, 16), start=1):
        if stage > 1:
            parts[f"between{stage}"] = preactivated(nn.Conv2d(width, width // 2, 1, bias=False))
            parts[f"pool{stage}"] = nn.AvgPool2d(2)
            width //= 2
        sequence = [block(width + index * growth) for index in range(blocks)]
        parts[f"stage{stage}"] = nn.Sequential(*sequence)
        width += blocks * growth
    parts["norm"] = layers.norm(norm, width, groups=groups)
    parts["activation"] = layers.activation(activation)
    parts["pool"] = nn.AdaptiveAvgPool2d(1)
    parts["flatten"] = nn.Flatten()
    parts["head"] = nn.Linear(width, classes)
    stride = 8 if small else 32
    layers.check_norms(parts["stage4"], size=(size[0] // stride, size[1] // stride))
    return layers.initialise(nn.Sequential(parts), init)
