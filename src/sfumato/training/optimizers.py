"""PyTorch's optimizers for the private gradient."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from sfumato.distributed.ranks import Ranks
from sfumato.settings import Optimizer


def build(settings: Optimizer, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer of a recipe.

    On several ranks a sharded one is PyTorch's `ZeroRedundancyOptimizer`: each rank has the state
    of some parameters, updates those, and sends them to the others. Weights are the same bits.

    Guarantee: Optimizers see only what `PrivateGradients.release` wrote into `.grad`, so their
    updates are post-processing.
    """
    kind, arguments = _kind(settings)
    if settings.sharded and Ranks.current().size > 1:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(list(parameters), kind, **arguments)
    return kind(list(parameters), **arguments)


def gather_state(optimizer: torch.optim.Optimizer) -> None:
    """Make the state of a sharded optimizer whole on rank 0, until its next step.

    All ranks call this together.
    """
    if hasattr(optimizer, "consolidate_state_dict"):
        optimizer.consolidate_state_dict(to=0)


def _kind(settings: Optimizer) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """The class of an optimizer, and its arguments besides the parameters."""
    s, optim = settings, torch.optim
    common: dict[str, Any] = {"lr": s.lr, "weight_decay": s.weight_decay}
    betas = {"betas": (s.beta1, s.beta2)}
    match s.name:
        case "sgd":
            return optim.SGD, common | {"momentum": s.momentum, "nesterov": s.nesterov}
        case "adam":
            return optim.Adam, common | betas
        case "adamw":
            return optim.AdamW, common | betas
        case "nadam":
            return optim.NAdam, common | betas
        case _:
            return optim.RMSprop, common | {"momentum": s.momentum}
