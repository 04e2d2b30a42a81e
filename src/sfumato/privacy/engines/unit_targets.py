"""Targets of units with several images, and which of these are no padding, in one tensor.

Every engine takes one tensor of targets. A mask beside them leaves all of their values to the loss.
"""

from __future__ import annotations

import torch
from torch import Tensor


def joined(targets: Tensor, there: Tensor) -> Tensor:
    """Targets of units beside the mask of their images that are no padding.

    The targets of padding are not read: each becomes that of a real image of its unit, so that the
    loss accepts it if it accepts the unit's own.

    Args:
        targets: `(units, images, ...)` targets, of any values and any type.
        there: `(units, images)` mask of the images that are not padding.

    Returns:
        `(units, 2, images, ...)`: the targets, and ones and zeros of their type.
    """
    there = there.to(targets.device).bool()
    units = torch.arange(len(targets), device=targets.device)
    real = targets[units, there.byte().argmax(1)].unsqueeze(1)
    mask = there.view(*there.shape, *(1 for _ in targets.shape[2:]))
    return torch.stack(
        [torch.where(mask, targets, real), mask.to(targets.dtype).expand_as(targets)], 1
    )


def parted(both: Tensor) -> tuple[Tensor, Tensor]:
    """Targets `(units, images, ...)` and the mask `(units, images)` that were joined."""
    there = both[:, 1] != 0
    return both[:, 0], there.flatten(2)[..., 0] if there.dim() > 2 else there
