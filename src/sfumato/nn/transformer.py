"""Layers of vision transformers and of ConvNeXt: attention, LayerScale, stochastic depth."""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.errors import UserError


class DotProductAttention(nn.Module):
    """Scaled dot-product attention among the tokens of an image, in PyTorch's fused kernel.

    Args:
        heads: The number of heads, which share the channels equally.
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        """Map queries, keys and values (B, tokens, 3 * width), side by side, to (B, tokens, width).

        The order of the channels is that of timm and DeiT: query, key, value, each by heads.
        """
        count, tokens, width = x.shape[0], x.shape[1], x.shape[2] // 3
        split = x.reshape(count, tokens, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value)
        return mixed.transpose(1, 2).reshape(count, tokens, width)

    def extra_repr(self) -> str:
        """The number of heads."""
        return f"heads={self.heads}"


class LayerScale(nn.Module):
    """A trained gain per channel, the last dimension, of a residual branch (Touvron et al. 2021).

    Args:
        width: The number of channels.
        initial: The initial gain.
    """

    def __init__(self, width: int, initial: float) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((width,), initial))

    def forward(self, x: Tensor) -> Tensor:
        """Scale the channels."""
        return x * self.gain


class StochasticDepth(nn.Module):
    """A residual branch that is left out at random, for each example (Huang et al. 2016).

    In training mode a branch is zero with probability `rate`, and else scaled by 1 / (1 - rate).

    Args:
        rate: At least 0 and below 1.

    Raises:
        UserError: If it is not.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise UserError(f"The rate of stochastic depth is {rate}, but must be in [0, 1).")
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Keep or drop the branch of each example."""
        kept = x.new_ones(x.shape[0], *[1] * (x.dim() - 1))
        return x * F.dropout(kept, self.rate, self.training)

    def extra_repr(self) -> str:
        """The probability of leaving the branch out."""
        return f"rate={self.rate}"


class Permute(nn.Module):
    """The dimensions of a tensor in another order."""

    def __init__(self, *order: int) -> None:
        super().__init__()
        self.order = order

    def forward(self, x: Tensor) -> Tensor:
        """Permute the dimensions."""
        return x.permute(self.order)

    def extra_repr(self) -> str:
        """The order."""
        return ", ".join(map(str, self.order))


def branch_end(width: int, layer_scale: float | None, rate: float) -> OrderedDict[str, nn.Module]:
    """The last layers of a residual branch: LayerScale and stochastic depth, where asked for."""
    parts = OrderedDict[str, nn.Module]()
    if layer_scale is not None:
        parts["scale"] = LayerScale(width, layer_scale)
    if rate:
        parts["depth"] = StochasticDepth(rate)
    return parts
