"""The residual sum that ResNet-9 and its equivariant kin share."""

from __future__ import annotations

from torch import Tensor, nn


class Residual(nn.Module):
    """x + body(x), and the norm that follows the sum where the network has one."""

    def __init__(self, body: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.body, self.after = body, after

    def forward(self, x: Tensor) -> Tensor:
        """Add the residual."""
        out: Tensor = self.after(x + self.body(x))
        return out
