"""PyTorch's optimizers for the private gradient."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from sfumato.settings import Optimizer


def build(settings: Optimizer, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer of a recipe.

    Guarantee: Optimizers see only what `PrivateGradients.release` wrote into `.grad`, so their
    updates are post-processing.
    """
    s, optim = settings, torch.optim
    betas = (s.beta1, s.beta2)
    given = list(parameters)
    match s.name:
        case "sgd":
            return optim.SGD(
                given, s.lr, s.momentum, weight_decay=s.weight_decay, nesterov=s.nesterov
            )
        case "adam":
            return optim.Adam(given, s.lr, betas, weight_decay=s.weight_decay)
        case "adamw":
            return optim.AdamW(given, s.lr, betas, weight_decay=s.weight_decay)
        case "nadam":
            return optim.NAdam(given, s.lr, betas, weight_decay=s.weight_decay)
        case _:
            return optim.RMSprop(given, s.lr, momentum=s.momentum, weight_decay=s.weight_decay)
