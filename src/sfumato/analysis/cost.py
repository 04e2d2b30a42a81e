"""Cost of a network: parameters and multiply-accumulates (MACs) of every layer, per image.

Layers come from `sfumato.models.summary`; a second count of all operations finds products outside
convolutions and linear layers, such as those of attention, and those that a batch needs once, such
as making filters of a steerable basis. It does not see Fourier transforms: those of wavelets are
counted by their formula.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from sfumato.models import Layer, summary
from sfumato.nn.scattering import Scattering


@dataclass(frozen=True)
class Cost:
    """The result of `cost_of`.

    Attributes:
        layers: Every layer in the order of its calls.
        parameters: Trainable parameters.
        macs: Multiply-accumulates of one image's forward pass.
        elsewhere: Those of them outside convolutions and linear layers.
        once: Further ones that a batch of any size needs once.
    """

    layers: tuple[Layer, ...]
    parameters: int
    macs: int
    elsewhere: int
    once: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "parameters": self.parameters,
            "macs": self.macs,
            "macs_elsewhere": self.elsewhere,
            "macs_once_per_batch": self.once,
            "layers": [
                {
                    "name": layer.name,
                    "kind": layer.kind,
                    "output": list(layer.output),
                    "parameters": layer.parameters,
                    "macs": layer.macs,
                }
                for layer in self.layers
            ],
        }


def cost_of(model: nn.Module, input: tuple[int, int, int]) -> Cost:
    """Count a model's parameters and MACs for one image of `(channels, height, width)`."""
    found = summary(model, input)
    one, two = (_products(model, count, input) for count in (1, 2))
    counted = sum(layer.macs for layer in found.layers if layer.kind != Scattering.__name__)
    elsewhere = max(0, two - one - counted)
    once = max(0, 2 * one - two)
    return Cost(found.layers, found.parameters, found.macs + elsewhere, elsewhere, once)


def _products(model: nn.Module, images: int, input: tuple[int, int, int]) -> int:
    """Multiply-accumulates of a batch, wherever they happen."""
    like = next(model.parameters(), torch.empty(0))
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(torch.zeros(images, *input, device=like.device, dtype=like.dtype))
    finally:
        for module, mode in modes.items():
            module.training = mode
    return int(counter.get_total_flops()) // 2
