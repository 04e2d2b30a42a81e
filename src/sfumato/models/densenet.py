"""DenseNet-121 with group norm: a baseline of Remerscheid et al. (2022), 7.0M parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sfumato import nn as layers
from sfumato.errors import UserError
from sfumato.models.registry import register
from sfumato.models.resnet import Stem, small_stem
from sfumato.nn import Init, Norm


class Concatenated(nn.Module):
    """The input and the body's output, side by side."""

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
    activation: str = "relu",
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

    def normalised(width: int) -> list[nn.Module]:
        layer = layers.norm(norm, width, groups=groups)
        return layers.normalised("norm-activation", layer, activation)

    width = 2 * growth
    net = nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1, bias=False)
        if small
        else nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False),
        *normalised(width),
        *([] if small else [nn.MaxPool2d(3, stride=2, padding=1)]),
    )
    for stage, blocks in enumerate((6, 12, 24, 16)):
        if stage > 0:
            half = width // 2
            net.extend([*normalised(width), nn.Conv2d(width, half, 1, bias=False), nn.AvgPool2d(2)])
            width = half
        for _ in range(blocks):
            body = nn.Sequential(
                *normalised(width),
                nn.Conv2d(width, 4 * growth, 1, bias=False),
                *normalised(4 * growth),
                nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
            )
            net.append(Concatenated(body))
            width += growth
    net.extend([*normalised(width), nn.AdaptiveAvgPool2d(1), nn.Flatten()])
    net.append(nn.Linear(width, classes))
    return layers.initialise(net, init)
