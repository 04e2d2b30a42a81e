"""Textures that random networks of oriented filters make out of noise, from coarse to fine."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.data.drawn.chance import Chance
from sfumato.data.drawn.scaling import standard

_FILTERS, _KERNEL = 12, 5
"""Filters of a random network, and their side."""


def textures(n: int, side: int, chance: Chance, *, levels: int) -> Tensor:
    """Textures `(n, 3, side, side)` of one network for each image.

    Each of the `levels` scales is twice as fine as the one before. The brightness has variance 1 or
    a little less; colours differ from it more or less.
    """
    width = _FILTERS
    normal, uniform = chance.normal, chance.uniform
    coarse = -(-side // 2 ** (levels - 1))
    x = normal(n, width, coarse, coarse)
    colours = torch.zeros(n, 3, coarse, coarse, device=chance.device)
    for level in range(levels):
        if level:
            x = F.interpolate(x, scale_factor=2, mode="bilinear")
            colours = 0.9 * F.interpolate(colours, scale_factor=2, mode="bilinear")
        gabor = _oriented(n, chance)
        strength = 0.2 + 2 * uniform(n, 1, width, 1, 1).square()
        kernels = normal(n, width, width, 1, 1) * strength * gabor / width**0.5
        here, edge = x.shape[-1], _KERNEL // 2
        padded = F.pad(x, (edge,) * 4, mode="replicate")
        x = F.conv2d(
            padded.reshape(1, n * width, here + 2 * edge, here + 2 * edge),
            kernels.reshape(n * width, width, _KERNEL, _KERNEL),
            groups=n,
        ).view(n, width, here, here)
        x = standard(x, (-1, -2))
        grain = 0.7 * uniform(n, width, 1, 1) ** 3 * normal(n, width, here, here)
        x = F.leaky_relu(x + grain + 0.7 * normal(n, width, 1, 1), 0.1)
        mixing = normal(n, 3, width) * (0.3 + uniform(n, 1, 1)) / width**0.5
        colours = colours + torch.einsum("noc,nchw->nohw", mixing, x)
    colours = standard(colours[..., :side, :side], (1, 2, 3))
    grey = colours.mean(1, keepdim=True)
    return grey + (0.2 + uniform(n, 1, 1, 1)) * (colours - grey)


def _oriented(n: int, chance: Chance) -> Tensor:
    """Gabor filters of random angles and wavelengths, `(n, filters, 1, side, side)`, of norm 1."""
    width, uniform = _FILTERS, chance.uniform
    line = torch.linspace(-1, 1, _KERNEL, device=chance.device)
    down, across = torch.meshgrid(line, line, indexing="ij")
    angle, phase = math.pi * uniform(n, width, 1, 1, 1), math.tau * uniform(n, width, 1, 1, 1)
    along = across * angle.cos() + down * angle.sin()
    beside = down * angle.cos() - across * angle.sin()
    wave = torch.cos((1.5 + 4.5 * uniform(n, width, 1, 1, 1)) * along + phase)
    narrow = 0.3 + 2 * uniform(n, width, 1, 1, 1)
    gabor = wave * torch.exp(-2 * along.square() - narrow * beside.square())
    filters: Tensor = gabor / gabor.norm(dim=(-1, -2), keepdim=True)
    return filters
