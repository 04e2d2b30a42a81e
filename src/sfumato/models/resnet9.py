"""ResNet-9 and ScaleResNet-9 of Klause et al. (2022).

2 447 946 trainable parameters on 3x32x32 images with 10 classes; ScaleNorm adds 768.
"""

from __future__ import annotations

from torch import Tensor, nn

from sfumato import nn as layers
from sfumato.models.registry import register
from sfumato.nn import Init, Norm, NormOrder

PAPER = "Klause et al. (2022)"


class Residual(nn.Module):
    """x + body(x), followed by ScaleNorm where the network has it."""

    def __init__(self, body: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.body, self.after = body, after

    def forward(self, x: Tensor) -> Tensor:
        """Add the residual."""
        out: Tensor = self.after(x + self.body(x))
        return out


@register("resnet9", paper=PAPER, parameters=2_447_946, minimum=8, preset={"scaled": False})
@register("scale-resnet9", paper=PAPER, minimum=8, preset={"scaled": True})
def resnet9(
    *,
    classes: int,
    channels: int,
    size: tuple[int, int],
    scaled: bool = False,
    layout: tuple[int, int, int] = (64, 128, 256),
    norm_order: NormOrder = "activation-norm",
    norm: Norm = "group",
    groups: int = 32,
    activation: str = "mish",
    init: Init = "torch",
) -> nn.Module:
    """Eight 3x3 convolutions without bias, of which two pairs are residual, and a linear layer.

    `norm_order` is that of the paper's text; its published module does `norm-activation`. `layout`
    gives the filters of the three widths. ScaleNorm is one more norm after each residual sum. Any
    image is pooled to 2x2 positions before the linear layer.
    """

    def block(into: int, out: int, pool: bool = False) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(into, out, 3, padding=1, bias=False),
            *layers.normalised(norm_order, layers.norm(norm, out, groups=groups), activation),
            *([nn.MaxPool2d(2)] if pool else []),
        )

    def residual(width: int) -> Residual:
        after = layers.scale_norm(norm, width, groups=groups) if scaled else nn.Identity()
        return Residual(nn.Sequential(block(width, width), block(width, width)), after)

    narrow, middle, wide = layout
    net = nn.Sequential(
        block(channels, narrow),
        block(narrow, middle, pool=True),
        residual(middle),
        block(middle, wide, pool=True),
        block(wide, wide, pool=True),
        residual(wide),
        nn.AdaptiveMaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * wide, classes),
    )
    return layers.initialise(net, init)
