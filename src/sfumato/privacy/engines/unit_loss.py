"""The loss of units of privacy with several images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sfumato.privacy.engines.objective import Loss

PADDING = -1
"""Target, and index of an image, that stands for no image; NaN in targets that are not integers."""


@dataclass(frozen=True)
class UnitLoss:
    """A loss whose mean over the rows of a unit is the mean over its images.

    Attributes:
        loss: From outputs and targets to one loss per row.
        images: Images of a unit in a batch, padding included.
        views: Rows per image.
    """

    loss: Loss
    images: int
    views: int

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One loss per row.

        Args:
            outputs: One row for each image and view.
            targets: `(rows, images, ...)` targets of all images of each row's unit.
        """
        rows = torch.arange(targets.shape[0], device=targets.device)
        there = _there(targets)
        own = rows // self.views % self.images
        mine = targets[rows, own]
        safe = mine.nan_to_num(0.0) if mine.is_floating_point() else mine.clamp_min(0)
        losses = self.loss(outputs, safe)
        share = self.images / there.sum(1).clamp_min(1)
        return torch.where(there[rows, own], losses * share, torch.zeros_like(losses))


def _there(targets: Tensor) -> Tensor:
    """Mask `(rows, images)` of the targets that are not padding."""
    found = ~targets.isnan() if targets.is_floating_point() else targets != PADDING
    return found.flatten(2).all(2) if found.dim() > 2 else found
