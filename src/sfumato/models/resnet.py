"""ResNet-18, 34 and 50 with group norm: baselines of Remerscheid et al. and Klause et al. (2022).

With 10 classes: 11.2M, 21.3M and 23.5M trainable parameters. ScaleResNet-50 has one more norm after
each residual sum.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

from torch import Tensor, nn

from sfumato import nn as layers
from sfumato.models.registry import register
from sfumato.nn import Activation, Init, Norm

SMOOTHNETS, KLAUSE = "Remerscheid et al. (2022)", "Klause et al. (2022)"
Stem = Literal["auto", "imagenet", "cifar"]


class Block(nn.Module):
    """A body with a skip path, followed by ScaleNorm, if the network has it, and the activation."""

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
    """Tell whether the stem keeps full resolution: `cifar`, or `auto` and a side under 64."""
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
    activation: Activation = "relu",
    init: Init = "xavier",
) -> nn.Module:
    """The residual networks of He et al. (2016) with group norm in place of batch norm.

    `stem` is `imagenet` (7x7 convolution of stride 2 and a max-pool), `cifar` (3x3 convolution at
    full resolution), or `auto`: `cifar` where a side is under 64 pixels.
    """

    def conv(into: int, out: int, kernel: int, stride: int = 1) -> nn.Sequential:
        layer = nn.Conv2d(into, out, kernel, stride=stride, padding=kernel // 2, bias=False)
        parts = OrderedDict[str, nn.Module](conv=layer, norm=layers.norm(norm, out, groups=groups))
        return nn.Sequential(parts)

    def block(into: int, width: int, out: int, stride: int = 1) -> Block:
        if bottleneck:
            convs = [conv(into, width, 1), conv(width, width, 3, stride), conv(width, out, 1)]
        else:
            convs = [conv(into, width, 3, stride), conv(width, out, 3)]
        for each in convs[:-1]:
            each.add_module("activation", layers.activation(activation))
        return Block(
            body=nn.Sequential(*convs),
            skip=nn.Identity() if (into, stride) == (out, 1) else conv(into, out, 1, stride),
            after=layers.scale_norm(norm, out, groups=groups) if scaled else nn.Identity(),
            activation=layers.activation(activation),
        )

    small = small_stem(stem, size)
    parts = OrderedDict[str, nn.Module](
        first=conv(channels, 64, 3) if small else conv(channels, 64, 7, 2),
        activation=layers.activation(activation),
    )
    if not small:
        parts["pool1"] = nn.MaxPool2d(3, stride=2, padding=1)
    into = 64
    for stage, count in enumerate(blocks):
        width = 64 * 2**stage
        out = 4 * width if bottleneck else width
        rest = [block(out, width, out) for _ in range(count - 1)]
        parts[f"stage{stage + 1}"] = nn.Sequential(
            block(into, width, out, stride=2 if stage else 1), *rest
        )
        into = out
    parts["pool"] = nn.AdaptiveAvgPool2d(1)
    parts["flatten"] = nn.Flatten()
    parts["head"] = nn.Linear(into, classes)
    stride = 8 if small else 32
    layers.check_norms(parts["stage4"], size=(-(-size[0] // stride), -(-size[1] // stride)))
    return layers.initialise(nn.Sequential(parts), init)
