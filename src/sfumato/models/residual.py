"""The residual sum shared by ResNet-9 and the equivariant networks."""

from __future__ import annotations

from torch import Tensor, nn


class Residual(nn.Module):
    """x + body(x), followed by a norm if the network has one after the sum."""

    def __init__(self, body: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.body, self.after = body, after

    def forward(self, x: Tensor) -> Tensor:
        """Add the residual."""
        out: Tensor = self.after(x + self.body(x))
        return out
