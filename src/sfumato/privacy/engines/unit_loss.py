"""The loss of units of privacy with several images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sfumato.privacy.engines.objective import Loss
from sfumato.privacy.engines.unit_targets import parted


@dataclass(frozen=True)
class UnitLoss:
    """A loss whose mean over the rows of a unit is the mean over its images.

    The loss itself sees single images, as it does where units are images: those of padding too,
    whose results have weight zero.

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
            targets: `(rows, 2, images, ...)` targets of all images of each row's unit, and which of
                these are no padding (`unit_targets.joined`).
        """
        rows = torch.arange(targets.shape[0], device=targets.device)
        own = rows // self.views % self.images
        every, there = parted(targets)
        losses = self.loss(outputs, every[rows, own])
        if losses.shape != own.shape:
            return losses  # The objective says what is wrong.
        wide = torch.promote_types(losses.dtype, torch.float32)
        share = self.images / there.sum(1, dtype=wide).clamp_min(1)
        return torch.where(there[rows, own], losses * share, 0.0)


def of_images(loss: Loss, y: Tensor) -> tuple[Loss, Tensor]:
    """The loss of single images, and the targets of all images, if these are those of units."""
    if not isinstance(loss, UnitLoss):
        return loss, y
    return loss.loss, parted(y)[0].flatten(0, 1)
