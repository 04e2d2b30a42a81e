"""The reference that every engine is compared with: one example at a time through autograd."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sfumato.privacy.engines.engine import Engine
from sfumato.privacy.engines.objective import Loss, Objective, cross_entropy
from sfumato.privacy.engines.results import Gradients
from sfumato.privacy.numerics.model_state import Snapshot


def one_at_a_time(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    loss: Loss = cross_entropy,
    views: int = 1,
    state: Snapshot | None = None,
) -> Gradients:
    """Per-example gradients, each from a forward and a backward pass of its own.

    `state` is a snapshot of the model as it is now, if there is one already.

    Guarantee: No example can reach another, whatever the model does, except through state that the
    model hides from `Snapshot`: the state that it keeps between calls is restored before every
    example, and ends as after a single pass.
    """
    objective = Objective(model, loss, views)
    parameters = objective.trainable
    state = state or Snapshot(model)
    found: list[list[Tensor]] = []
    losses, outputs = [], []
    for i in range(y.shape[0]):
        if i:
            state.restore()
        leaf = x[i * views : (i + 1) * views].detach().clone()
        if leaf.is_floating_point():
            leaf.requires_grad_()
        with torch.enable_grad():
            # Asking for the input's gradient too keeps PyTorch 2.13 from a crash in GroupNorm's
            # backward pass (channels_last on the CPU, no gradient needed below the layer). Inputs
            # that are not leaves may be changed in place.
            rows = leaf * 1 if leaf.requires_grad else leaf
            out, own = objective(rows, y[i : i + 1])
            total = own.sum()
        wanted = [*parameters.values(), *([leaf] if leaf.requires_grad else [])]
        grads: Sequence[Tensor | None] = [None] * len(parameters)
        if total.requires_grad:
            grads = torch.autograd.grad(total, wanted, allow_unused=True)[: len(parameters)]
        found.append(
            [
                torch.zeros_like(p) if g is None else g
                for g, p in zip(grads, parameters.values(), strict=True)
            ]
        )
        losses.append(own.detach())
        outputs.append(out.detach())
    stacked: list[Tensor | None] = [
        torch.stack([grads[k] for grads in found]) if found else p.new_zeros(0, *p.shape)
        for k, p in enumerate(parameters.values())
    ]
    return Gradients(
        tuple(parameters),
        tuple(p.shape for p in parameters.values()),
        stacked,
        torch.cat(losses) if losses else x.new_zeros(0),
        torch.cat(outputs) if outputs else None,
    )


class OneAtATime(Engine):
    """The reference as an engine: examples run one at a time, slow and right for every model."""

    name = "loop"

    def gradients(self, x: Tensor, y: Tensor) -> Gradients:
        """Per-example gradients, each from a forward and a backward pass of its own."""
        own = self.objective
        return one_at_a_time(own.model, x, y, loss=own.loss, views=own.views)
