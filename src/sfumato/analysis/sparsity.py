"""Sparsity: numbers of parameters and gradient entries close to zero, the l0^eps "norm".

Hölzl et al. (2023, section 4.1) count the entries with a magnitude below eps (Donoho and Elad,
2003); eps has nothing to do with privacy. They state no value, so several are given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.errors import UserError
from sfumato.memory import BatchSize

THRESHOLDS = (1e-2, 1e-3, 1e-4, 1e-5)


@dataclass(frozen=True)
class Sparsity:
    """Fractions of entries with a magnitude of at most each threshold.

    Attributes:
        thresholds: The eps.
        parameters: Of all trainable parameters, one fraction per threshold.
        gradients: Of the gradient of the mean loss in them.
        size: Number of trainable parameters.
        by_tensor: For each parameter tensor its size, and the two rows of fractions.
    """

    thresholds: tuple[float, ...]
    parameters: tuple[float, ...]
    gradients: tuple[float, ...]
    size: int
    by_tensor: dict[str, tuple[int, tuple[float, ...], tuple[float, ...]]]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "thresholds": list(self.thresholds),
            "parameters": list(self.parameters),
            "gradients": list(self.gradients),
            "size": self.size,
            "by_tensor": {
                name: {"size": size, "parameters": list(p), "gradients": list(g)}
                for name, (size, p, g) in self.by_tensor.items()
            },
        }


def l0_eps(tensors: Tensor | Iterable[Tensor], *, eps: float) -> float:
    """The fraction of all entries with a magnitude of at most `eps`; NaN is not close to zero."""
    if eps < 0:
        raise UserError(f"eps is a magnitude, at least 0, not {eps}.")
    below = total = 0
    for tensor in (tensors,) if isinstance(tensors, Tensor) else tensors:
        below += int((tensor.detach().abs() <= eps).sum())
        total += tensor.numel()
    if not total:
        raise UserError("There are no entries to compare with eps.")
    return below / total


def mean_gradient(model: nn.Module, x: Tensor, y: Tensor, *, batch: int = 256) -> dict[str, Tensor]:
    """The gradient of the mean cross-entropy in every trainable parameter, in eval mode."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    sums = {name: torch.zeros_like(p) for name, p in named.items()}
    modes = {module: module.training for module in model.modules()}

    def slopes_of(part: slice) -> tuple[Tensor, ...]:
        loss = F.cross_entropy(model(x[part]), y[part], reduction="sum") / len(y)
        return torch.autograd.grad(loss, list(named.values()), materialize_grads=True)

    model.eval()
    try:
        with torch.enable_grad():
            for slopes in BatchSize(batch).parts(len(y), slopes_of):
                for name, slope in zip(named, slopes, strict=True):
                    sums[name] += slope
    finally:
        for module, mode in modes.items():
            module.training = mode
    return sums


def sparsity_of(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    thresholds: Sequence[float] = THRESHOLDS,
    batch: int = 256,
) -> Sparsity:
    """l0^eps of a model's trainable parameters and of the gradient of its mean loss on images."""
    gradient = mean_gradient(model, x, y, batch=batch)
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return Sparsity(
        thresholds=tuple(thresholds),
        parameters=_fractions(named, thresholds),
        gradients=_fractions(gradient, thresholds),
        size=sum(p.numel() for p in named.values()),
        by_tensor={
            name: (
                p.numel(),
                _fractions({name: p}, thresholds),
                _fractions({name: gradient[name]}, thresholds),
            )
            for name, p in named.items()
        },
    )


def _fractions(tensors: Mapping[str, Tensor], thresholds: Sequence[float]) -> tuple[float, ...]:
    return tuple(l0_eps(tensors.values(), eps=eps) for eps in thresholds)
