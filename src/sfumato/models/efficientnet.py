"""EfficientNet-B0 with group norm: a baseline of Remerscheid et al. (2022), 4.0M parameters."""

from __future__ import annotations

from torch import Tensor, nn

from sfumato import nn as layers
from sfumato.models.registry import register
from sfumato.models.resnet import Stem, small_stem
from sfumato.nn import Init, Norm

_STAGES = (
    # expansion, kernel, stride, channels, blocks
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)


class SqueezeExcite(nn.Module):
    """Scale each channel by a gate in (0, 1), computed from the channels' means."""

    def __init__(self, channels: int, squeezed: int, activation: nn.Module) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, squeezed, 1),
            activation,
            nn.Conv2d(squeezed, channels, 1),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Scale the channels."""
        out: Tensor = x * self.gate(x)
        return out


class Block(nn.Module):
    """An inverted bottleneck, with its input added where the shapes agree."""

    def __init__(self, body: nn.Module, *, residual: bool) -> None:
        super().__init__()
        self.body, self.residual = body, residual

    def forward(self, x: Tensor) -> Tensor:
        """Run the bottleneck."""
        out: Tensor = self.body(x)
        return x + out if self.residual else out


@register("efficientnet-b0", paper="Remerscheid et al. (2022)", parameters="4.0M", minimum=8)
def efficientnet_b0(
    *,
    classes: int,
    channels: int,
    size: tuple[int, int],
    stem: Stem = "auto",
    norm: Norm = "group",
    groups: int = 32,
    activation: str = "silu",
    init: Init = "xavier",
) -> nn.Module:
    """The network of Tan and Le (2019) with group norm in place of batch norm, without dropout.

    `stem` is `imagenet` (first convolution of stride 2), `cifar` (stride 1), or `auto`: `cifar`
    where a side is under 64 pixels.
    """

    def conv(
        into: int, out: int, kernel: int, stride: int = 1, groups_: int = 1
    ) -> list[nn.Module]:
        padding = kernel // 2
        layer = nn.Conv2d(into, out, kernel, stride, padding, groups=groups_, bias=False)
        return [layer, layers.norm(norm, out, groups=groups)]

    def bottleneck(into: int, out: int, expansion: int, kernel: int, stride: int) -> Block:
        wide = into * expansion
        expand = [*conv(into, wide, 1), layers.activation(activation)] if expansion > 1 else []
        body = nn.Sequential(
            *expand,
            *conv(wide, wide, kernel, stride, groups_=wide),
            layers.activation(activation),
            SqueezeExcite(wide, into // 4, layers.activation(activation)),
            *conv(wide, out, 1),
        )
        return Block(body, residual=stride == 1 and into == out)

    first = 1 if small_stem(stem, size) else 2
    net = nn.Sequential(*conv(channels, 32, 3, first), layers.activation(activation))
    into = 32
    for expansion, kernel, stride, out, blocks in _STAGES:
        for index in range(blocks):
            net.append(bottleneck(into, out, expansion, kernel, stride if index == 0 else 1))
            into = out
    net.extend([*conv(into, 1280, 1), layers.activation(activation)])
    net.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, classes)])
    return layers.initialise(net, init)
