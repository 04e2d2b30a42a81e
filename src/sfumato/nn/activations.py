"""Activations by name, with the tempered sigmoid of Papernot et al. (2019, 2020)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.errors import UserError, nearest


class TemperedSigmoid(nn.Module):
    """The bounded activation s * sigmoid(T * x) - o; s = 2, T = 2, o = 1 is tanh.

    Bounded activations keep the gradients of an example small, so that clipping discards less.
    """

    def __init__(
        self, *, scale: float = 2.0, temperature: float = 2.0, offset: float = 1.0
    ) -> None:
        super().__init__()
        self.scale, self.temperature, self.offset = scale, temperature, offset

    def forward(self, x: Tensor) -> Tensor:
        """Apply the activation elementwise."""
        return self.scale * torch.sigmoid(self.temperature * x) - self.offset

    def extra_repr(self) -> str:
        """The three constants."""
        return f"scale={self.scale}, temperature={self.temperature}, offset={self.offset}"


class Mish(nn.Mish):
    """Mish, x * tanh(log(1 + exp(x))), on a CPU without denormal numbers.

    PyTorch's own computes with denormal numbers far below zero, where a CPU takes ten times longer.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Apply the activation elementwise."""
        if x.device.type != "cpu":
            return super().forward(x)
        cut = F.threshold(x, _LOWEST, _LOWEST)  # Half the time of a clamp and its gradient.
        return F.mish(cut, inplace=not torch.is_grad_enabled())


_LOWEST = -40.0
"""The input below which inputs are taken for it: Mish is between -2e-16 and 0 there."""

_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "mish": Mish,
    "none": nn.Identity,
    "relu": nn.ReLU,
    "selu": nn.SELU,
    "sigmoid": nn.Sigmoid,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "tempered-sigmoid": TemperedSigmoid,
}

Activation = Annotated[
    str, "one of " + ", ".join(sorted(_ACTIVATIONS)) + " (or tempered-sigmoid:s,T,o)"
]
"""The name of an activation, as an option of a model."""


def activation_names() -> list[str]:
    """The names that `activation` accepts."""
    return sorted(_ACTIVATIONS)


def activation(name: str) -> nn.Module:
    """Create an activation module.

    Args:
        name: One of `activation_names()`. The tempered sigmoid takes its constants s, T, o after a
            colon: `tempered-sigmoid:1.58,3,0.71`.

    Raises:
        UserError: An unknown name, or constants that are not three numbers.
    """
    kind, _, constants = name.partition(":")
    if kind not in _ACTIVATIONS:
        raise UserError(
            f"There is no activation '{name}'.{nearest(kind, _ACTIVATIONS)} "
            f"Known activations: {', '.join(activation_names())}."
        )
    if not constants:
        return _ACTIVATIONS[kind]()
    try:
        scale, temperature, offset = (float(part) for part in constants.split(","))
    except ValueError:
        scale = float("nan")
    if kind != "tempered-sigmoid" or scale != scale:
        raise UserError(
            f"The activation '{name}' cannot be read: only the tempered sigmoid takes constants, "
            "three numbers s,T,o as in 'tempered-sigmoid:2,2,1'."
        )
    return TemperedSigmoid(scale=scale, temperature=temperature, offset=offset)
