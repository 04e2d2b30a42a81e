"""Wide residual networks (De et al., 2022) and ScaleWRN (Klause et al., 2022).

WRN-16-4 has 2 752 506 trainable parameters on 3x32x32 images with 10 classes, to the digit.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from sfumato import nn as layers
from sfumato.errors import UserError
from sfumato.models.registry import register
from sfumato.nn import Activation, Init, Norm, NormOrder

DE, KLAUSE = "De et al. (2022)", "Klause et al. (2022)"


class Block(nn.Module):
    """Two pre-activated 3x3 convolutions beside a skip path."""

    def __init__(
        self,
        *,
        before: nn.Module,
        first: nn.Module,
        between: nn.Module,
        second: nn.Module,
        skip: nn.Module | None,
        after: nn.Module,
    ) -> None:
        super().__init__()
        self.before, self.first, self.between, self.second = before, first, between, second
        self.skip, self.after = skip, after

    def forward(self, x: Tensor) -> Tensor:
        """Add the residual; a convolved skip path starts from the pre-activated input."""
        y = self.before(x)
        skip = x if self.skip is None else self.skip(y)
        out: Tensor = self.after(skip + self.second(self.between(self.first(y))))
        return out


@register(
    "wrn-16-4",
    paper=DE,
    parameters=2_752_506,
    minimum=4,
    preset={"depth": 16, "width": 4, "scaled": False},
)
@register(
    "wrn-40-4",
    paper=DE,
    parameters="8.9M",
    minimum=4,
    preset={"depth": 40, "width": 4, "scaled": False},
)
@register(
    "scale-wrn-16-4", paper=KLAUSE, minimum=4, preset={"depth": 16, "width": 4, "scaled": True}
)
@register("wrn-{depth}-{width}", paper=DE, minimum=4, preset={"scaled": False})
@register("scale-wrn-{depth}-{width}", paper=KLAUSE, minimum=4, preset={"scaled": True})
def wide_resnet(
    *,
    classes: int,
    channels: int,
    size: tuple[int, int],
    depth: int = 16,
    width: int = 4,
    scaled: bool = False,
    norm_order: NormOrder = "activation-norm",
    norm: Norm = "group",
    groups: int = 16,
    activation: Activation = "relu",
    standardise: bool = True,
    init: Init = "lecun",
) -> nn.Module:
    """WRN-depth-width: a first convolution and three stages of (depth - 4) / 6 blocks.

    The 3x3 convolutions are weight-standardised with a gain and a bias; the 1x1 skip convolutions
    have neither. De et al. normalise after the activation (`activation-norm`), which is worth many
    points under privacy. ScaleNorm is one more norm after each residual sum.
    """
    if depth < 10 or (depth - 4) % 6:
        raise UserError(
            f"A wide residual network cannot have depth {depth}: "
            "choose 10, 16, 22, 28, 34, 40 or another number of the form 6n + 4."
        )
    if width < 1:
        raise UserError("A wide residual network needs a width factor of at least 1.")

    def conv(into: int, out: int, stride: int = 1) -> nn.Conv2d:
        layer = nn.Conv2d(into, out, 3, stride=stride, padding=1)
        return layers.standardised(layer) if standardise else layer

    def preactivation(features: int) -> nn.Sequential:
        layer = layers.norm(norm, features, groups=groups)
        return nn.Sequential(layers.normalised(norm_order, layer, activation))

    def block(into: int, out: int, stride: int) -> Block:
        return Block(
            before=preactivation(into),
            first=conv(into, out, stride),
            between=preactivation(out),
            second=conv(out, out),
            skip=nn.Conv2d(into, out, 1, stride, bias=False) if into != out else None,
            after=layers.scale_norm(norm, out, groups=groups) if scaled else nn.Identity(),
        )

    blocks = (depth - 4) // 6
    parts = OrderedDict[str, nn.Module](conv=conv(channels, 16))
    into = 16
    for stage in range(3):
        out = 16 * width * 2**stage
        first = block(into, out, stride=2 if stage else 1)
        rest = [block(out, out, stride=1) for _ in range(blocks - 1)]
        parts[f"stage{stage + 1}"] = nn.Sequential(first, *rest)
        into = out
    parts["last"] = preactivation(into)
    parts["pool"] = nn.AdaptiveAvgPool2d(1)
    parts["flatten"] = nn.Flatten()
    parts["head"] = nn.Linear(into, classes)
    layers.check_norms(parts["stage3"], size=(-(-size[0] // 4), -(-size[1] // 4)))
    return layers.initialise(nn.Sequential(parts), init)
