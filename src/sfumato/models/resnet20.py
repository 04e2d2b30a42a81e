"""ResNet-20 with weight standardisation and group norm (Radhakrishna and Hegde, 2024)."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from sfumato import nn as layers
from sfumato.models.registry import register
from sfumato.nn import Activation, Init, Norm


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
    activation: Activation = "relu",
    standardise: bool = True,
    init: Init = "lecun",
) -> nn.Module:
    """Three stages of `blocks` blocks with `filters`, twice and four times as many channels.

    All convolutions are standardised in the paper's plain form, without gain or bias; a norm group
    has `group_size` channels, so 4, 8 and 16 groups. The paper states no parameter count.
    """

    def conv(into: int, out: int, *, kernel: int = 3, stride: int = 1) -> nn.Sequential:
        layer = nn.Conv2d(into, out, kernel, stride=stride, padding=kernel // 2, bias=False)
        if standardise:
            layers.standardised(layer, form="plain", gain=False)
        groups = max(1, out // group_size)
        parts = OrderedDict[str, nn.Module](conv=layer, norm=layers.norm(norm, out, groups=groups))
        return nn.Sequential(parts)

    def block(into: int, out: int, *, stride: int = 1) -> Block:
        body = OrderedDict[str, nn.Module](
            first=conv(into, out, stride=stride),
            activation=layers.activation(activation),
            second=conv(out, out),
        )
        return Block(
            body=nn.Sequential(body),
            skip=nn.Identity() if into == out else conv(into, out, kernel=1, stride=stride),
            activation=layers.activation(activation),
        )

    parts = OrderedDict[str, nn.Module](
        first=conv(channels, filters), activation=layers.activation(activation)
    )
    into = filters
    for stage in range(3):
        out = filters * 2**stage
        rest = [block(out, out) for _ in range(blocks - 1)]
        parts[f"stage{stage + 1}"] = nn.Sequential(block(into, out, stride=out // into), *rest)
        into = out
    parts["pool"] = nn.AdaptiveAvgPool2d(1)
    parts["flatten"] = nn.Flatten()
    parts["head"] = nn.Linear(into, classes)
    layers.check_norms(parts["stage3"], size=(-(-size[0] // 4), -(-size[1] // 4)))
    return layers.initialise(nn.Sequential(parts), init)
