"""The slow obvious way: one example at a time through autograd. Everything is compared with it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sfumato.privacy.gradients import Gradients, Loss, cross_entropy, per_example_losses
from sfumato.privacy.state import Snapshot


def one_at_a_time(
    model: nn.Module, x: Tensor, y: Tensor, *, loss: Loss = cross_entropy, views: int = 1
) -> Gradients:
    """Per-example gradients, each from a forward and a backward pass of its own.

    Guarantee: No example can reach another, whatever the model does, except through state that the
    model hides from `Snapshot`: what it keeps between calls is put back before every example, and
    ends as after a single pass.
    """
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    state = Snapshot(model)
    rows: list[list[Tensor]] = []
    losses, outputs = [], []
    for i in range(y.shape[0]):
        if i:
            state.put_back()
        with torch.enable_grad():
            out, own = per_example_losses(
                model, loss, x[i * views : (i + 1) * views], y[i : i + 1], views
            )
        total = own.sum()
        grads = (
            torch.autograd.grad(total, list(parameters.values()), allow_unused=True)
            if total.requires_grad
            else [None] * len(parameters)
        )
        rows.append(
            [
                torch.zeros_like(p) if g is None else g
                for g, p in zip(grads, parameters.values(), strict=True)
            ]
        )
        losses.append(own.detach())
        outputs.append(out.detach())
    stacked: list[Tensor | None] = [
        torch.stack([row[k] for row in rows]) if rows else p.new_zeros(0, *p.shape)
        for k, p in enumerate(parameters.values())
    ]
    return Gradients(
        tuple(parameters),
        tuple(p.shape for p in parameters.values()),
        stacked,
        torch.cat(losses) if losses else x.new_zeros(0),
        torch.cat(outputs) if outputs else None,
    )
