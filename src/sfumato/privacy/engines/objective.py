"""The function that per-example gradients are taken of: a model, its loss and its views."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.errors import UserError

Loss = Callable[[Tensor, Tensor], Tensor]
"""From outputs and targets to one loss per row."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of each row apart."""
    return F.cross_entropy(outputs, targets, reduction="none")


@dataclass(eq=False)
class Objective:
    """A model with its loss.

    Attributes:
        model: Any module from `(rows, ...)` to outputs; frozen parameters are left alone.
        loss: From outputs and targets to one loss per row.
        views: Rows per example, in example-major order.
    """

    model: nn.Module
    loss: Loss = cross_entropy
    views: int = 1

    @property
    def trainable(self) -> dict[str, nn.Parameter]:
        """The parameters to train, by name, shared ones once."""
        return self.parameters()[0]

    def parameters(self) -> tuple[dict[str, nn.Parameter], list[nn.Parameter]]:
        """The parameters to train, by name, shared ones once, and all others."""
        trained, others = {}, []
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                trained[name] = parameter
            else:
                others.append(parameter)
        return trained, others

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs of all rows, and the loss of each example as the mean over its views."""
        outputs = self.model(x)
        if complaint := shape_complaint(outputs, x.shape[0]):
            raise UserError(f"This model cannot be trained: {complaint}.")
        targets = y.repeat_interleave(self.views, 0) if self.views > 1 else y
        losses = self.loss(outputs, targets)
        if losses.shape != x.shape[:1]:
            raise UserError(
                f"The loss must return one number per row, shape ({x.shape[0]},), not "
                f"{tuple(losses.shape)}: use reduction='none' and average over each row's own "
                "values."
            )
        return outputs, losses.view(-1, self.views).mean(1)


def shape_complaint(outputs: object, rows: int) -> str | None:
    """A sentence about outputs that are not one row per example, or None."""
    if isinstance(outputs, Tensor) and outputs.dim() > 0 and outputs.shape[0] == rows:
        return None
    said = f"for a batch of {rows} the model returns"
    if not isinstance(outputs, Tensor):
        kind = type(outputs).__name__
        return f"{said} a {kind}: wrap it in a module that returns one tensor, such as the logits"
    wrong = f"{said} {tuple(outputs.shape)}, not one row of outputs per example"
    if rows > 1:
        return wrong
    return f"{wrong}: if it uses squeeze(), name what to drop, as in squeeze(1) or flatten(1)"
