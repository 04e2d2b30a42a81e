"""Averages of the weights over steps: post-processing, at no privacy cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Average:
    """A running average of a model's parameters, of one of two kinds.

    `ema` is the exponential moving average with De et al.'s (2022) warm-up, of decay
    min(decay, (1 + t)/(10 + t)). `tail` is the plain mean over the last part of the steps (Polyak
    and Juditsky, 1992, without the beginning); before that part it is the weights themselves.

    Args:
        model: The model whose parameters are averaged.
        amount: Decay of `ema`, or the fraction of the steps that `tail` averages over.
        kind: `ema` or `tail`.
        steps: Total number of steps, for `tail`.

    Guarantee: It reads released weights only, so it costs no privacy.
    """

    def __init__(
        self, model: nn.Module, amount: float, *, kind: str = "ema", steps: int = 0
    ) -> None:
        self.amount, self.kind = amount, kind
        self.first = steps - max(1, math.ceil(amount * steps)) + 1
        """The first step whose weights enter a tail average."""
        self.tensors = {name: t.detach().clone() for name, t in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Add the weights after step `step` (from 1)."""
        share = self._share(step)
        names, parameters = zip(*model.named_parameters(), strict=True)
        own = [self.tensors[name] for name in names]
        torch._foreach_lerp_(own, [p.detach() for p in parameters], share)

    def _share(self, step: int) -> float:
        """The weight of this step's parameters in the average."""
        if self.kind == "tail":
            return 1 / max(1, step - self.first + 1)
        return 1 - min(self.amount, (1 + step) / (10 + step))

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore saved averages."""
        for name, tensor in self.tensors.items():
            tensor.copy_(tensors[name])

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Give the model the averaged weights within a `with` block."""
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
