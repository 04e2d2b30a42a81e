"""Exponential averaging of the weights: post-processing, free of privacy cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Average:
    """Exponential moving average with De et al.'s (2022) warm-up min(decay, (1 + t)/(10 + t))."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.tensors = {name: t.detach().clone() for name, t in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Move towards the weights after step `step` (from 1)."""
        decay = min(self.decay, (1 + step) / (10 + step))
        for name, parameter in model.named_parameters():
            self.tensors[name].lerp_(parameter.detach(), 1 - decay)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from saved averages."""
        for name, tensor in self.tensors.items():
            tensor.copy_(tensors[name])

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Have the model carry the averaged weights for a while."""
        own = {name: t.detach().clone() for name, t in model.named_parameters()}
        _copy(model, self.tensors)
        try:
            yield
        finally:
            _copy(model, own)


@torch.no_grad()
def _copy(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        parameter.copy_(tensors[name])
