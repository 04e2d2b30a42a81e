"""EfficientNet-B0 with group norm: a baseline of Remerscheid et al. (2022), 4.0M parameters."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from sfumato import nn as layers
from sfumato.models.registry import register
from sfumato.models.resnet import Stem, small_stem
from sfumato.nn import Activation, Init, Norm

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
        parts = OrderedDict[str, nn.Module](
            mean=nn.AdaptiveAvgPool2d(1),
            squeeze=nn.Conv2d(channels, squeezed, 1),
            activation=activation,
            excite=nn.Conv2d(squeezed, channels, 1),
            sigmoid=nn.Sigmoid(),
        )
        self.gate = nn.Sequential(parts)

    def forward(self, x: Tensor) -> Tensor:
        """Scale the channels."""
        out: Tensor = x * self.gate(x)
        return out


class Block(nn.Module):
    """An inverted bottleneck, with a residual connection where the shapes agree."""

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
    activation: Activation = "silu",
    init: Init = "xavier",
) -> nn.Module:
    """The network of Tan and Le (2019) with group norm in place of batch norm, without dropout.

    `stem` is `imagenet` (first convolution of stride 2), `cifar` (stride 1), or `auto`: `cifar`
    where a side is under 64 pixels.
    """

    def normed(conv: nn.Conv2d, *, active: bool = True) -> nn.Sequential:
        layer = layers.norm(norm, conv.out_channels, groups=groups)
        parts = OrderedDict[str, nn.Module](conv=conv, norm=layer)
        if active:
            parts["activation"] = layers.activation(activation)
        return nn.Sequential(parts)

    def pointwise(into: int, out: int) -> nn.Conv2d:
        return nn.Conv2d(into, out, 1, bias=False)

    def bottleneck(into: int, out: int, expansion: int, kernel: int, stride: int) -> Block:
        wide, half = into * expansion, kernel // 2
        depthwise = nn.Conv2d(wide, wide, kernel, stride, half, groups=wide, bias=False)
        parts = OrderedDict[str, nn.Module]()
        if expansion > 1:
            parts["expand"] = normed(pointwise(into, wide))
        parts["depthwise"] = normed(depthwise)
        parts["gate"] = SqueezeExcite(wide, into // 4, layers.activation(activation))
        parts["project"] = normed(pointwise(wide, out), active=False)
        return Block(nn.Sequential(parts), residual=stride == 1 and into == out)

    start = 1 if small_stem(stem, size) else 2
    first = nn.Conv2d(channels, 32, 3, start, padding=1, bias=False)
    parts = OrderedDict[str, nn.Module](first=normed(first))
    into = 32
    for number, (expansion, kernel, stride, out, blocks) in enumerate(_STAGES, start=1):
        rest = [bottleneck(out, out, expansion, kernel, 1) for _ in range(blocks - 1)]
        sequence = [bottleneck(into, out, expansion, kernel, stride), *rest]
        parts[f"stage{number}"] = nn.Sequential(*sequence)
        into = out
    parts["last"] = normed(pointwise(into, 1280))
    parts["pool"] = nn.AdaptiveAvgPool2d(1)
    parts["flatten"] = nn.Flatten()
    parts["head"] = nn.Linear(1280, classes)
    stride = 16 * start
    layers.check_norms(parts["last"], size=(-(-size[0] // stride), -(-size[1] // stride)))
    return layers.initialise(nn.Sequential(parts), init)
