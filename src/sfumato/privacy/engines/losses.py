"""The loss of each example: the mean over its views."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.errors import UserError
from sfumato.privacy.checks.isolation import shape_complaint

Loss = Callable[[Tensor, Tensor], Tensor]
"""From outputs and targets to one loss per row."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of each row apart."""
    return F.cross_entropy(outputs, targets, reduction="none")


def per_example_losses(
    model: nn.Module, loss: Loss, x: Tensor, y: Tensor, views: int
) -> tuple[Tensor, Tensor]:
    """Outputs of all rows, and the loss of each example as the mean over its views."""
    outputs = model(x)
    if complaint := shape_complaint(outputs, x.shape[0]):
        raise UserError(f"This model cannot be trained: {complaint}.")
    targets = y.repeat_interleave(views, 0) if views > 1 else y
    losses = loss(outputs, targets)
    if losses.shape != x.shape[:1]:
        raise UserError(
            f"The loss must return one number per row, shape ({x.shape[0]},), not "
            f"{tuple(losses.shape)}: use reduction='none' and average over each row's own values."
        )
    return outputs, losses.view(-1, views).mean(1)
