"""Contrastive loss (Chen et al., 2020): views of one image are to be more alike than others.

Each view picks its partner among all other views of the batch, by the cosine of their features
behind a small projection, which is discarded afterwards.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TEMPERATURE = 0.2
"""Temperature of the loss: the smaller, the more the most similar views count."""


class Projection(nn.Sequential):
    """Projection of a network's features to the vectors that are compared."""

    def __init__(self, features: int, *, hidden: int = 512, out: int = 128) -> None:
        super().__init__(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, out))


def contrast(features: Tensor, *, temperature: float = TEMPERATURE) -> tuple[Tensor, Tensor]:
    """Loss and accuracy of picking partners.

    Args:
        features: `(2 n, d)`: one view of each of n images, then the other views in the same order.
        temperature: Divides the cosines.

    Returns:
        The mean loss over views, and the fraction of them whose partner is the most alike.
    """
    unit = F.normalize(features.float(), dim=1)
    alike = unit @ unit.T / temperature
    itself = torch.eye(len(unit), dtype=torch.bool, device=unit.device)
    alike = alike.masked_fill(itself, float("-inf"))
    partner = torch.arange(len(unit), device=unit.device).roll(len(unit) // 2)
    return F.cross_entropy(alike, partner), (alike.argmax(1) == partner).float().mean()
