"""Clipping rules: from the norms of an example's gradient to the weight it enters the sum with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from sfumato.errors import UserError

MARGIN = 1e-5
"""Rounding head-room: examples are scaled to C·(1 − MARGIN), so C itself is never exceeded."""


class ClippingRule(Protocol):
    """Turns squared norms per parameter into weights, and states its sensitivity."""

    @property
    def sensitivity(self) -> float:
        """Bound on the norm of what one example adds to the sum."""
        ...

    def weights(self, squared_norms: Tensor) -> Tensor:
        """Weights `(examples, parameters)` from squared norms of the same shape."""
        ...


@dataclass(frozen=True)
class Flat:
    """Scale the whole gradient of an example to norm at most `clip` (Abadi et al., 2016).

    Guarantee: Whatever the gradients hold, the weighted gradient of one example has Euclidean norm
    at most `clip`; an example whose norm is not finite gets weight zero.
    """

    clip: float

    def __post_init__(self) -> None:
        if not 0 < self.clip < float("inf"):
            raise UserError(f"The clipping norm must be a positive number, not {self.clip}.")

    @property
    def sensitivity(self) -> float:
        """The clipping norm."""
        return self.clip

    def weights(self, squared_norms: Tensor) -> Tensor:
        """`min(1, C / norm)`, the same for every parameter of an example."""
        norm = squared_norms.sum(1).sqrt()
        scale = (self.clip * (1 - MARGIN) / norm).clamp(max=1)
        scale = torch.where(torch.isfinite(norm), scale, torch.zeros_like(scale))
        return scale.unsqueeze(1).expand_as(squared_norms)


@dataclass(frozen=True)
class Unclipped:
    """Let every finite gradient through as it is: for runs without privacy."""

    @property
    def sensitivity(self) -> float:
        """Unbounded."""
        return float("inf")

    def weights(self, squared_norms: Tensor) -> Tensor:
        """One for every finite example."""
        finite = torch.isfinite(squared_norms.sum(1))
        return finite.to(squared_norms.dtype).unsqueeze(1).expand_as(squared_norms)
