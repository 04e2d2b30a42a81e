"""Dead leaves: shapes of all sizes that occlude each other, as objects do in photographs.

Each shape is filled with a colour, a shade and a texture, and the textures come from random
networks of oriented filters, one network for each image.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sfumato.data.drawn.chance import Chance
from sfumato.data.drawn.filter_networks import textures

_LEAVES = 3, 40
"""Fewest and most shapes in an image."""
_LEVELS = 4
"""Scales of a texture."""


def draw(n: int, side: int, chance: Chance) -> Tensor:
    """Dead leaves `(n, 3, side, side)` from 0 to 1, with textures of random networks."""
    fills = textures(n, side, chance, levels=_LEVELS)
    return pile(fills * (0.1 + 0.2 * chance.uniform(n, 1, 1, 1)), chance)


def pile(textures: Tensor, chance: Chance) -> Tensor:
    """Shapes over a background, from 0 to 1; the first are at the bottom and are the largest.

    Args:
        textures: `(n, 3, side, side)`: those of each image, which its shapes have in random order.
        chance: The random numbers.
    """
    normal, uniform = chance.normal, chance.uniform
    n, side = len(textures), textures.shape[-1]
    rough = 1.2 * uniform(n, 1, 1, 1)
    vivid = 0.05 + 0.2 * uniform(n, 1, 1, 1)
    tone = vivid * normal(n, 3, 1, 1)

    def paint(m: int) -> Tensor:
        return 0.5 + 0.28 * normal(m, 1, 1, 1) + vivid[:m] * normal(m, 3, 1, 1)

    few, most = _LEAVES
    # Sort images by their number of shapes, so that those without a next shape can be skipped.
    leaves = few * torch.exp(uniform(n).sort(descending=True)[0] * math.log(most / few))
    counts = [int(count) for count in (leaves.unsqueeze(1) > torch.arange(most).to(leaves)).sum(0)]
    leaves = leaves.view(n, 1, 1)
    least = 0.05 + 0.1 * uniform(n, 1, 1) * (leaves < 12)
    images = paint(n) + tone + rough * textures
    for number, m in enumerate(counts):
        if not m:
            break
        largest = 0.65 - 0.4 * number / most
        cover, dx, dy, radius = _shape(m, side, chance, least[:m], largest, leaves[:m])
        shade = 0.12 * ((dx * normal(m, 1, 1) + dy * normal(m, 1, 1)) / radius).unsqueeze(1)
        shift = chance.whole(side)
        texture = textures[chance.order(n)[:m]].roll((shift, shift // 2), (-1, -2))
        fill = paint(m) + tone[:m] * (uniform(m, 1, 1, 1) < 0.5) + shade
        fill = fill + 1.6 * uniform(m, 1, 1, 1) * rough[:m] * texture
        images[:m] = torch.lerp(images[:m], fill, cover.unsqueeze(1))
    grain = 0.04 * uniform(n, 1, 1, 1) * normal(n, 3, side, side)
    return (images + grain).clamp(0, 1)


def _shape(
    n: int, side: int, chance: Chance, least: Tensor, largest: float, leaves: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One shape per image: its coverage of each pixel, the pixels' coordinates, its radius."""
    uniform = chance.uniform
    line = torch.arange(side, device=chance.device) + 0.5
    down, across = torch.meshgrid(line, line, indexing="ij")
    # Radii are distributed as in photographs: their density falls with the cube.
    spread = least**-2 - uniform(n, 1, 1) * (least**-2 - largest**-2)
    radius = side * spread**-0.5 * (1 + (leaves < 8))
    turn, long = math.tau * uniform(n, 1, 1), 0.45 + 0.55 * uniform(n, 1, 1)
    dx, dy = across - side * uniform(n, 1, 1), down - side * uniform(n, 1, 1)
    dx, dy = (
        (dx * turn.cos() + dy * turn.sin()) * long,
        (dy * turn.cos() - dx * turn.sin()) / long,
    )
    angle, distance = torch.atan2(dy, dx), torch.hypot(dx, dy)
    lobes = 2 + (4 * uniform(n, 1, 1)).floor()
    bump = 0.25 * uniform(n, 1, 1) * torch.cos((lobes + 1) * angle + math.tau * uniform(n, 1, 1))
    blob = 1 + 0.45 * uniform(n, 1, 1) * torch.cos(lobes * angle) + bump
    half = math.pi / (lobes + 1)
    polygon = half.cos() / torch.cos(torch.remainder(angle, 2 * half) - half)
    edge = torch.where(uniform(n, 1, 1) < 0.6, blob, polygon)
    sharp = 0.6 + 2.5 * uniform(n, 1, 1)
    return torch.sigmoid((radius * edge - distance) * sharp), dx, dy, radius
