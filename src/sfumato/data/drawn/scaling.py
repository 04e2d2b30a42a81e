"""Scaling of random maps to mean 0 and variance 1, and colours for them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sfumato.data.drawn.chance import Chance

_LEAST = 1e-3
"""Added to standard deviations, so that maps without contrast stay finite."""
_VIVID = 1.2
"""The most that the mixing of a channel differs from that of grey."""


def standard(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """A map with mean 0 and variance 1 over these dimensions."""
    several = math.prod(x.shape[dim] for dim in dims) > 1
    std = x.std(dims, keepdim=True, correction=int(several))  # Of one number it is 0, not NaN.
    return (x - x.mean(dims, keepdim=True)) / (std + _LEAST)


def coloured(maps: Tensor, chance: Chance) -> Tensor:
    """Colours mixed at random from the maps `(n, k, height, width)` of each image, many near grey.

    Returns:
        `(n, 3, height, width)`, of variance 1 in each image.
    """
    n, k = maps.shape[:2]
    mixing, grey = chance.normal(n, 3, k) / k**0.5, chance.normal(n, 1, k) / k**0.5
    vivid = _VIVID * chance.uniform(n, 1, 1) ** 1.5
    mixing = grey + vivid * (mixing - mixing.mean(1, keepdim=True))
    colours = torch.einsum("noc,nchw->nohw", mixing, maps)
    return colours / (colours.std((1, 2, 3), keepdim=True) + _LEAST)
