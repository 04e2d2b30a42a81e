"""Vision transformers (Dosovitskiy et al. 2021) with the sizes of DeiT (Touvron et al. 2021).

5 717 416 (tiny) and 22 050 664 (small) trainable parameters at 224x224, patch 16, 1000 classes.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

import torch
from torch import Tensor, nn

from sfumato import nn as layers
from sfumato.errors import UserError
from sfumato.models.registry import register
from sfumato.models.residual import Residual
from sfumato.nn import Init
from sfumato.nn.transformer import DotProductAttention, Permute, branch_end

PAPER = "Touvron et al. (2021)"
Pooling = Literal["token", "mean"]


class Tokens(nn.Module):
    """Patches as a sequence, after a class token if there is one, plus learned positions.

    Args:
        patches: The number of patches.
        width: The channels of a token.
        class_token: True for a token of its own, whose output is classified.
    """

    def __init__(self, patches: int, width: int, *, class_token: bool) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, width)) if class_token else None
        self.positions = nn.Parameter(torch.zeros(1, patches + class_token, width))
        nn.init.trunc_normal_(self.positions, std=0.02)
        if self.token is not None:
            nn.init.normal_(self.token, std=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        """Prepend the class token and add the positions."""
        if self.token is not None:
            x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1)
        return x + self.positions


class Pool(nn.Module):
    """The class token of a sequence, or the mean over all tokens."""

    def __init__(self, pooling: Pooling) -> None:
        super().__init__()
        self.pooling = pooling

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, tokens, width) to (B, width)."""
        return x[:, 0] if self.pooling == "token" else x.mean(1)


def usual_patch(size: tuple[int, int]) -> int:
    """The side of a patch where none is given: 4 below 64 pixels, 8 below 160, else 16."""
    return 4 if min(size) < 64 else 8 if min(size) < 160 else 16


@register("vit-tiny", paper=PAPER, minimum=4, preset={"width": 192, "heads": 3})
@register("vit-small", paper=PAPER, minimum=4, preset={"width": 384, "heads": 6})
def vit(
    *,
    classes: int,
    channels: int,
    size: tuple[int, int],
    patch: int | None = None,
    width: int = 192,
    heads: int = 3,
    depth: int = 12,
    mlp_ratio: int = 4,
    pooling: Pooling = "token",
    layer_scale: float | None = None,
    stochastic_depth: float = 0.0,
    init: Init = "truncated",
) -> nn.Module:
    """Patches as tokens, `depth` pre-norm blocks of attention and perceptron, and a linear layer.

    `patch` is the side of a patch: 4 for images below 64 pixels, 8 below 160, 16 from there on,
    unless given; images are padded with zeros to whole patches. `pooling` classifies a class token
    or the mean over the patches. `layer_scale` is the initial gain of each branch, where it has
    one; `stochastic_depth` the probability of leaving out the last block, growing linearly over the
    blocks. Initial weights are timm's: the patch convolution keeps torch's.
    """
    if width % heads:
        raise UserError(
            f"A vision transformer needs a width that its heads divide: {width} is not a multiple "
            f"of {heads}."
        )
    patch = patch or usual_patch(size)
    hidden = mlp_ratio * width
    rows, columns = (-(-side // patch) for side in size)

    def branch(rate: float, *parts: tuple[str, nn.Module]) -> Residual:
        named = OrderedDict[str, nn.Module](norm=nn.LayerNorm(width, eps=1e-6))
        named.update(parts)
        return Residual(nn.Sequential(named | branch_end(width, layer_scale, rate)), nn.Identity())

    def block(rate: float) -> nn.Sequential:
        attention = branch(
            rate,
            ("qkv", nn.Linear(width, 3 * width)),
            ("attention", DotProductAttention(heads)),
            ("out", nn.Linear(width, width)),
        )
        perceptron = branch(
            rate,
            ("fc1", nn.Linear(width, hidden)),
            ("activation", nn.GELU()),
            ("fc2", nn.Linear(hidden, width)),
        )
        return nn.Sequential(OrderedDict(attention=attention, mlp=perceptron))

    parts = OrderedDict[str, nn.Module]()
    if (rows * patch, columns * patch) != size:
        parts["pad"] = nn.ZeroPad2d((0, columns * patch - size[1], 0, rows * patch - size[0]))
    parts["patch"] = nn.Conv2d(channels, width, patch, stride=patch)
    parts["sequence"] = nn.Sequential(nn.Flatten(2), Permute(0, 2, 1))
    parts["tokens"] = Tokens(rows * columns, width, class_token=pooling == "token")
    rates = torch.linspace(0, stochastic_depth, depth).tolist()
    parts["blocks"] = layers.initialise(nn.Sequential(*map(block, rates)), init)
    parts["norm"] = nn.LayerNorm(width, eps=1e-6)
    parts["pool"] = Pool(pooling)
    parts["head"] = layers.initialise(nn.Linear(width, classes), init)
    return nn.Sequential(parts)
