"""ResNet-9 and ScaleResNet-9 of Klause et al. (2022).

2 447 946 trainable parameters on 3x32x32 images with 10 classes; ScaleNorm adds 768.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from sfumato import nn as layers
from sfumato.models.registry import register
from sfumato.models.residual import Residual
from sfumato.nn import Activation, Init, Norm, NormOrder

PAPER = "Klause et al. (2022)"


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
    activation: Activation = "mish",
    init: Init = "torch",
) -> nn.Module:
    """Eight 3x3 convolutions without bias, of which two pairs are residual, and a linear layer.

    `norm_order` is that of the paper's text; its published module does `norm-activation`. `layout`
    gives the filters of the three widths. ScaleNorm is one more norm after each residual sum. Any
    image is pooled to 2x2 positions before the linear layer.
    """

    def block(into: int, out: int, pool: bool = False) -> nn.Sequential:
        parts = OrderedDict[str, nn.Module](conv=nn.Conv2d(into, out, 3, padding=1, bias=False))
        parts |= layers.normalised(norm_order, layers.norm(norm, out, groups=groups), activation)
        if pool:
            parts["pool"] = nn.MaxPool2d(2)
        return nn.Sequential(parts)

    def residual(width: int) -> Residual:
        after = layers.scale_norm(norm, width, groups=groups) if scaled else nn.Identity()
        return Residual(nn.Sequential(block(width, width), block(width, width)), after)

    narrow, middle, wide = layout
    parts = OrderedDict[str, nn.Module](
        conv1=block(channels, narrow),
        conv2=block(narrow, middle, pool=True),
        res1=residual(middle),
        conv3=block(middle, wide, pool=True),
        conv4=block(wide, wide, pool=True),
        res2=residual(wide),
        pool=nn.AdaptiveMaxPool2d(2),
        flatten=nn.Flatten(),
        head=nn.Linear(4 * wide, classes),
    )
    layers.check_norms(parts["res2"], size=(size[0] // 8, size[1] // 8))
    return layers.initialise(nn.Sequential(parts), init)
