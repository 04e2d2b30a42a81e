"""ConvNeXt (Liu et al. 2022): depthwise 7x7 convolutions, LayerNorm over channels, LayerScale.

With 1000 classes: 3 695 520 (atto, timm's) and 28 589 128 (tiny) trainable parameters, patch 4.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

from sfumato import nn as layers
from sfumato.errors import UserError
from sfumato.models.registry import register
from sfumato.models.residual import Residual
from sfumato.nn import Init
from sfumato.nn.transformer import Permute, branch_end

Four = tuple[int, int, int, int]


def usual_patch(size: tuple[int, int]) -> int:
    """The side of the stem's patches where none is given: 1 below 16 pixels, 2 below 64, else 4."""
    return 1 if min(size) < 16 else 2 if min(size) < 64 else 4


def _norm(width: int) -> nn.Sequential:
    """LayerNorm over the channels of (B, C, H, W), which are last while it runs."""
    norm = nn.LayerNorm(width, eps=1e-6)
    return nn.Sequential(
        OrderedDict(last=Permute(0, 2, 3, 1), norm=norm, first=Permute(0, 3, 1, 2))
    )


@register(
    "convnext-atto",
    paper="Wightman (2022), timm",
    minimum=8,
    preset={"widths": (40, 80, 160, 320), "blocks": (2, 2, 6, 2)},
)
@register(
    "convnext-tiny",
    paper="Liu et al. (2022)",
    minimum=8,
    preset={"widths": (96, 192, 384, 768), "blocks": (3, 3, 9, 3)},
)
def convnext(
    *,
    classes: int,
    channels: int,
    size: tuple[int, int],
    widths: Four = (40, 80, 160, 320),
    blocks: Four = (2, 2, 6, 2),
    patch: int | None = None,
    kernel: int = 7,
    layer_scale: float | None = 1e-6,
    stochastic_depth: float = 0.0,
    init: Init = "truncated",
) -> nn.Module:
    """Four stages of residual blocks: depthwise convolution, LayerNorm, perceptron on channels.

    `patch` is the side of the stem's patches: 1 for images below 16 pixels, 2 below 64, 4 from
    there on, unless given; each later stage halves the sides. `layer_scale` is the initial gain of
    each block's branch; `stochastic_depth` the probability of leaving out the last block, growing
    linearly over the blocks.
    """
    patch = patch or usual_patch(size)
    if min(size) < 8 * patch:
        raise UserError(
            f"ConvNeXt halves the sides three times after patches of {patch} pixels, so images "
            f"need at least {8 * patch}x{8 * patch} pixels, not {size[0]}x{size[1]}: choose a "
            "smaller patch."
        )
    if kernel % 2 == 0:
        raise UserError(f"ConvNeXt needs an odd kernel, not {kernel}.")

    def block(width: int, rate: float) -> Residual:
        body = OrderedDict[str, nn.Module](
            conv=nn.Conv2d(width, width, kernel, padding=kernel // 2, groups=width),
            last=Permute(0, 2, 3, 1),
            norm=nn.LayerNorm(width, eps=1e-6),
            fc1=nn.Linear(width, 4 * width),
            activation=nn.GELU(),
            fc2=nn.Linear(4 * width, width),
        )
        body |= branch_end(width, layer_scale, rate)
        body["first"] = Permute(0, 3, 1, 2)
        return Residual(nn.Sequential(body), nn.Identity())

    rates = iter(torch.linspace(0, stochastic_depth, sum(blocks)).tolist())
    stem = nn.Conv2d(channels, widths[0], patch, stride=patch)
    parts = OrderedDict[str, nn.Module](
        stem=nn.Sequential(OrderedDict(conv=stem, norm=_norm(widths[0])))
    )
    for stage, (width, count) in enumerate(zip(widths, blocks, strict=True)):
        if stage:
            halved = nn.Conv2d(widths[stage - 1], width, 2, stride=2)
            parts[f"down{stage}"] = nn.Sequential(
                OrderedDict(norm=_norm(widths[stage - 1]), conv=halved)
            )
        parts[f"stage{stage + 1}"] = nn.Sequential(
            *(block(width, next(rates)) for _ in range(count))
        )
    parts["pool"] = nn.AdaptiveAvgPool2d(1)
    parts["flatten"] = nn.Flatten()
    parts["norm"] = nn.LayerNorm(widths[-1], eps=1e-6)
    parts["head"] = nn.Linear(widths[-1], classes)
    return layers.initialise(nn.Sequential(parts), init)
