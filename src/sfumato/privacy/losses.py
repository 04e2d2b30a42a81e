"""The loss of each example: the mean over its views."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.errors import UserError

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
    if isinstance(outputs, Tensor) and outputs.shape[:1] != x.shape[:1]:
        raise UserError(
            f"For a batch of {x.shape[0]} the model returns outputs of shape "
            f"{tuple(outputs.shape)}, not one row per example. If it ends in squeeze(), which "
            "drops the batch where that is one example: name what to drop, as in squeeze(1) or "
            "flatten(1)."
        )
    targets = y.repeat_interleave(views, 0) if views > 1 else y
    losses = loss(outputs, targets)
    if losses.shape != x.shape[:1]:
        raise UserError(
            f"The loss must return one number per row, shape ({x.shape[0]},), not "
            f"{tuple(losses.shape)}: use reduction='none' and average over each row's own values."
        )
    return outputs, losses.view(-1, views).mean(1)
