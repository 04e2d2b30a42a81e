"""ResNet-18, 34 and 50 with group norm: baselines of Remerscheid et al. and Klause et al. (2022).

With 10 classes: 11.2M, 21.3M and 23.5M trainable parameters. ScaleResNet-50 has one more norm after
each residual sum.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from sfumato import nn as layers
from sfumato.models.registry import register
from sfumato.nn import Init, Norm

SMOOTHNETS, KLAUSE = "Remerscheid et al. (2022)", "Klause et al. (2022)"
Stem = Literal["auto", "imagenet", "cifar"]


class Block(nn.Module):
    """A body beside a skip path; ScaleNorm, where the network has it, and the activation follow."""

    def __init__(
        self, *, body: nn.Module, skip: nn.Module, after: nn.Module, activation: nn.Module
    ) -> None:
        super().__init__()
        self.body, self.skip, self.after, self.activation = body, skip, after, activation

    def forward(self, x: Tensor) -> Tensor:
        """Add the residual."""
        out: Tensor = self.activation(self.after(self.skip(x) + self.body(x)))
        return out


def small_stem(stem: Stem, size: tuple[int, int]) -> bool:
    """Whether the network starts at full resolution: asked for, or `auto` and a side under 64."""
    return stem == "cifar" or (stem == "auto" and min(size) < 64)


@register(
    "resnet18",
    paper=SMOOTHNETS,
    parameters="11.2M",
    minimum=8,
    preset={"blocks": (2, 2, 2, 2), "bottleneck": False, "scaled": False},
)
@register(
    "resnet34",
    paper=SMOOTHNETS,
    parameters="21.2M",
    minimum=8,
    preset={"blocks": (3, 4, 6, 3), "bottleneck": False, "scaled": False},
)
@register(
    "resnet50",
    paper=KLAUSE,
    minimum=8,
    preset={"blocks": (3, 4, 6, 3), "bottleneck": True, "scaled": False},
)
@register(
    "scale-resnet50",
    paper=KLAUSE,
    minimum=8,
    preset={"blocks": (3, 4, 6, 3), "bottleneck": True, "scaled": True},
)
def resnet(
    *,
    classes: int,
    channels: int,
    size: tuple[int, int],
    blocks: tuple[int, int, int, int] = (2, 2, 2, 2),
    bottleneck: bool = False,
    scaled: bool = False,
    stem: Stem = "auto",
    norm: Norm = "group",
    groups: int = 32,
    activation: str = "relu",
    init: Init = "xavier",
) -> nn.Module:
    """The residual networks of He et al. (2016) with group norm in place of batch norm.

    `stem` is `imagenet` (7x7 convolution of stride 2 and a max-pool), `cifar` (3x3 convolution at
    full resolution), or `auto`: `cifar` where a side is under 64 pixels.
    """

    def conv(into: int, out: int, kernel: int, stride: int = 1) -> list[nn.Module]:
        layer = nn.Conv2d(into, out, kernel, stride=stride, padding=kernel // 2, bias=False)
        return [layer, layers.norm(norm, out, groups=groups)]

    def block(into: int, width: int, out: int, stride: int) -> Block:
        if bottleneck:
            sizes = [(into, width, 1, 1), (width, width, 3, stride), (width, out, 1, 1)]
        else:
            sizes = [(into, width, 3, stride), (width, out, 3, 1)]
        body: list[nn.Module] = []
        for place in sizes:
            body += [layers.activation(activation)] if body else []
            body += conv(*place)
        same = into == out and stride == 1
        return Block(
            body=nn.Sequential(*body),
            skip=nn.Identity() if same else nn.Sequential(*conv(into, out, 1, stride)),
            after=layers.scale_norm(norm, out, groups=groups) if scaled else nn.Identity(),
            activation=layers.activation(activation),
        )

    small = small_stem(stem, size)
    net = nn.Sequential(
        *(conv(channels, 64, 3) if small else conv(channels, 64, 7, 2)),
        layers.activation(activation),
        *([] if small else [nn.MaxPool2d(3, stride=2, padding=1)]),
    )
    into = 64
    for stage, count in enumerate(blocks):
        width = 64 * 2**stage
        out = 4 * width if bottleneck else width
        for index in range(count):
            net.append(block(into, width, out, stride=2 if stage > 0 and index == 0 else 1))
            into = out
    net.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(into, classes)])
    return layers.initialise(net, init)
