"""Images that the program draws at random, for initial weights without real images.

A network that has learned to tell such images apart has useful filters and depends on nobody's data
(Baradad et al., 2021, "Learning to see by looking at noise"; Tang et al., 2023, use them before
private training).
"""

from __future__ import annotations

import torch
from torch import Tensor

from sfumato.data.catalogue import DRAWN, LUMA
from sfumato.data.drawn import dead_leaves, mixture
from sfumato.data.drawn.chance import Chance, Painter
from sfumato.data.progress_bar import progress

MEAN, STD = 0.5, 0.25
"""Mean and standard deviation for their normalisation."""

_PAINTERS: dict[str, tuple[Painter, int]] = dict(
    zip(DRAWN, ((dead_leaves.draw, 512), (mixture.draw, 2048)), strict=True)
)
"""The function that draws each kind, and the number of images that it draws at once."""


def draw(
    name: str, count: int, *, side: int, channels: int = 3, generator: torch.Generator
) -> Tensor:
    """Draw images.

    Args:
        name: The kind of images, one of `catalogue.DRAWN`.
        count: The number of images.
        side: Their height and width.
        channels: 3, or 1 for grey.
        generator: Source of all randomness; its device does the work.

    Returns:
        `(count, channels, side, side)` uint8, on the generator's device.
    """
    paint, together = _PAINTERS[name]
    chance = Chance(generator)
    parts = [torch.zeros(0, channels, side, side, dtype=torch.uint8, device=chance.device)]
    with progress("drawing", count) as advance:
        for first in range(0, count, together):
            images = paint(min(together, count - first), side, chance)
            if channels == 1:
                weights = torch.tensor(LUMA, device=images.device).view(1, 3, 1, 1)
                images = (images * weights).sum(1, keepdim=True)
            parts.append((images * 255).round().to(torch.uint8))
            advance(len(images))
    return torch.cat(parts)
