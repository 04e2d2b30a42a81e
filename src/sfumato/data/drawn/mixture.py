"""A mixture of drawn images: dead leaves of two kinds, textures, patterns, clouds and patches.

No one kind teaches all that photographs ask for: leaves have outlines and objects before others,
random networks have textures, patterns have long curves and symmetries, and clouds have the
spectrum of photographs.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from sfumato.data.drawn import dead_leaves
from sfumato.data.drawn.chance import Chance, Painter
from sfumato.data.drawn.clouds import clouds
from sfumato.data.drawn.coordinate_networks import patterns
from sfumato.data.drawn.filter_networks import textures
from sfumato.data.drawn.scaling import coloured, standard

_LEVELS = 5
"""Scales of a texture that fills an image."""
_STRENGTH = 0.1, 0.3
"""Weakest and strongest texture of a leaf."""


def _mixed(shares: Mapping[Painter, float]) -> Painter:
    """A painter of all kinds in these shares, in random order."""
    ends = list(accumulate(shares.values(), initial=0.0))

    def draw(n: int, side: int, chance: Chance) -> Tensor:
        parts = [torch.zeros(0, 3, side, side, device=chance.device)]
        bounds = pairwise(round(n * end / ends[-1]) for end in ends)
        for paint, (first, end) in zip(shares, bounds, strict=True):
            if end > first:
                parts.append(paint(end - first, side, chance))
        return torch.cat(parts)[chance.order(n)]

    return draw


def _texture(n: int, side: int, chance: Chance) -> Tensor:
    return standard(textures(n, side, chance, levels=_LEVELS), (1, 2, 3))


def _pattern(n: int, side: int, chance: Chance) -> Tensor:
    return coloured(patterns(n, side, chance, maps=4), chance)


def _cloud(n: int, side: int, chance: Chance) -> Tensor:
    return coloured(clouds(n, side, chance, maps=3), chance)


_fill = _mixed({_texture: 1.0, _pattern: 1.0, _cloud: 1.0})
"""Textures, patterns and clouds of variance 1."""


def _varied_leaves(n: int, side: int, chance: Chance) -> Tensor:
    """Dead leaves with fills of all kinds."""
    weakest, strongest = _STRENGTH
    strength = weakest + (strongest - weakest) * chance.uniform(n, 1, 1, 1)
    return dead_leaves.pile(_fill(n, side, chance) * strength, chance)


def _lit(fill: Painter) -> Painter:
    """Images of one fill each, of random brightness, contrast, tint and grain."""

    def draw(n: int, side: int, chance: Chance) -> Tensor:
        normal, uniform = chance.normal, chance.uniform
        contrast = 0.12 + 0.2 * uniform(n, 1, 1, 1)
        light = 0.5 + 0.15 * normal(n, 1, 1, 1) + 0.08 * normal(n, 3, 1, 1)
        grain = 0.03 * uniform(n, 1, 1, 1) * normal(n, 3, side, side)
        return (light + contrast * fill(n, side, chance) + grain).clamp(0, 1)

    return draw


def _patches(n: int, side: int, chance: Chance) -> Tensor:
    """Two fills beside each other, divided by the level of a cloud or a pattern."""
    normal, uniform = chance.normal, chance.uniform
    half = n // 2
    levels = [clouds(n - half, side, chance, maps=1)]
    if half:
        levels.append(patterns(half, side, chance, maps=1))
    sharp = 3 + 20 * uniform(n, 1, 1, 1)
    first = torch.sigmoid((torch.cat(levels) - 0.7 * normal(n, 1, 1, 1)) * sharp)
    contrast = 0.08 + 0.15 * uniform(n, 1, 1, 1)
    one, other = (
        0.5 + 0.2 * normal(n, 1, 1, 1) + 0.1 * normal(n, 3, 1, 1)
        + contrast * _fill(n, side, chance)
        for _ in range(2)
    )  # fmt: skip
    return torch.lerp(other, one, first).clamp(0, 1)


draw = _mixed(
    {
        dead_leaves.draw: 1.0, _varied_leaves: 3.0, _lit(_texture): 1.0, _lit(_pattern): 1.5,
        _lit(_cloud): 0.5, _patches: 2.0,
    }
)  # fmt: skip
"""Images from 0 to 1 of all kinds."""
