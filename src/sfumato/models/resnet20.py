"""ResNet-20 with weight standardisation and group norm (Radhakrishna and Hegde, 2024)."""

from __future__ import annotations

from torch import Tensor, nn

from sfumato import nn as layers
from sfumato.models.registry import register
from sfumato.nn import Init, Norm


class Block(nn.Module):
    """Two normalised convolutions beside a skip path, and the activation after the sum."""

    def __init__(self, *, body: nn.Module, skip: nn.Module, activation: nn.Module) -> None:
        super().__init__()
        self.body, self.skip, self.activation = body, skip, activation

    def forward(self, x: Tensor) -> Tensor:
        """Add the residual."""
        out: Tensor = self.activation(self.skip(x) + self.body(x))
        return out


@register("resnet20", paper="Radhakrishna and Hegde (2024)", minimum=4)
def resnet20(
    *,
    classes: int,
    channels: int,
    size: tuple[int, int],
    blocks: int = 3,
    filters: int = 16,
    norm: Norm = "group",
    group_size: int = 4,
    activation: str = "relu",
    standardise: bool = True,
    init: Init = "lecun",
) -> nn.Module:
    """Three stages of `blocks` blocks with `filters`, twice and four times as many channels.

    All convolutions are standardised in the paper's plain form, without gain or bias; a norm group
    has `group_size` channels, so 4, 8 and 16 groups. The paper states no parameter count.
    """

    def conv(into: int, out: int, kernel: int, stride: int) -> list[nn.Module]:
        layer = nn.Conv2d(into, out, kernel, stride=stride, padding=kernel // 2, bias=False)
        if standardise:
            layers.standardised(layer, form="plain", gain=False)
        return [layer, layers.norm(norm, out, groups=max(1, out // group_size))]

    into = filters
    net = nn.Sequential(*conv(channels, into, 3, 1), layers.activation(activation))
    for stage in range(3):
        out = filters * 2**stage
        for _ in range(blocks):
            stride = 2 if into != out else 1
            body = [
                *conv(into, out, 3, stride),
                layers.activation(activation),
                *conv(out, out, 3, 1),
            ]
            skip = nn.Identity() if into == out else nn.Sequential(*conv(into, out, 1, stride))
            act = layers.activation(activation)
            net.append(Block(body=nn.Sequential(*body), skip=skip, activation=act))
            into = out
    net.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(into, classes)])
    return layers.initialise(net, init)
