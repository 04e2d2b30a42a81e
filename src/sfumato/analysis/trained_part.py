"""The part of a network that has all trainable parameters, and its inputs.

What precedes a last linear layer that alone is trainable, such as fixed wavelets, is the same in
every pass: it needs to run once, however many products with the Hessian are taken.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sfumato.memory import BatchSize
from sfumato.training.initial.frozen_features import End, entering, trained_end


def trained_part(model: nn.Module, x: Tensor) -> tuple[nn.Module, Tensor]:
    """A last linear layer that alone is trainable and what enters it, or the model and `x`.

    Args:
        model: A network in the mode in which it is analysed.
        x: Its inputs.
    """
    path = trained_end(model)
    if not path or not isinstance(model.get_submodule(path), nn.Linear):
        return model, x
    end = End(path, model.get_submodule(path))

    def rows(part: slice) -> tuple[Tensor | None, Tensor]:
        return entering(model, path, x[part])

    found = []
    for inputs, outputs in BatchSize(_AT_ONCE).parts(len(x), rows):
        if inputs is None or len(inputs) != len(outputs):
            return model, x
        with torch.no_grad():
            if not torch.equal(end(inputs), outputs):
                return model, x
        found.append(inputs)
    return end, torch.cat(found)


_AT_ONCE = 64
"""Images that run at once."""
