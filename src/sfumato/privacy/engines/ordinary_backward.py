"""One ordinary backward pass for training without privacy, where only the sum is needed."""

from __future__ import annotations

import torch
from torch import Tensor

from sfumato.privacy.engines.objective import Objective
from sfumato.privacy.numerics.precision import widest


class Ordinary:
    """Gradients of one physical batch for a clipping rule that clips nothing.

    Per-example norms are unknown: they are zero where the loss is finite, and NaN where it is not.
    The sum is differentiated once, with the weights inside.

    Args:
        objective: The model, its loss and its views.
        x: Inputs, the views of an example beside each other.
        y: Targets.
    """

    def __init__(self, objective: Objective, x: Tensor, y: Tensor) -> None:
        parameters = objective.trainable
        self.names, self._parameters = tuple(parameters), list(parameters.values())
        with torch.enable_grad():
            outputs, self._losses = objective(x, y)
        self.outputs, self.losses = outputs.detach(), self._losses.detach()

    def squared_norms(self) -> Tensor:
        """Zero or NaN for each example and parameter: `(examples, parameters)`."""
        known = torch.where(self.losses.isfinite(), 0.0, torch.nan)
        return known.to(widest(known.device)).unsqueeze(1).expand(-1, len(self.names))

    def weighted_sum(self, weights: Tensor) -> list[Tensor]:
        """The gradient of the weighted sum of losses, with one weight for all parameters."""
        own = weights[:, 0].to(self._losses.dtype)
        if not self._losses.requires_grad:
            return [torch.zeros_like(p) for p in self._parameters]
        with torch.enable_grad():
            total = torch.where(own == 0, 0.0, self._losses * own).sum()
        found = torch.autograd.grad(total, self._parameters, allow_unused=True, retain_graph=True)
        return [
            torch.zeros_like(p) if grad is None else grad
            for p, grad in zip(self._parameters, found, strict=True)
        ]
