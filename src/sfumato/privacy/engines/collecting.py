"""Gradients of the leaves of one pass, mapped to the parameters that they belong to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from sfumato.privacy.engines.leaves import Leaves, NotPerOperator
from sfumato.privacy.engines.objective import Objective
from sfumato.privacy.engines.paths import Tapped, tapped
from sfumato.privacy.engines.results import Deferred, Gradients


def run_with_leaves(
    objective: Objective,
    x: Tensor,
    y: Tensor,
    parameters: dict[str, nn.Parameter],
    leaves: Leaves,
    taps: dict[nn.Module, Tapped],
    forward_ended: Callable[[], None] = lambda: None,
) -> Gradients:
    """Run the objective with the forward passes of some modules replaced by ones with leaves.

    Args:
        objective: The model, its loss and its views.
        x: Inputs.
        y: Targets.
        parameters: The trained parameters by name.
        leaves: The leaves of this pass.
        taps: The forward passes that replace those of some modules.
        forward_ended: Called between the forward and the backward pass.
    """
    with torch.enable_grad(), tapped(taps):
        outputs, losses = objective(x, y)
        forward_ended()
        tensors = _collect(losses.sum(), leaves, {id(p): p for p in parameters.values()})
    shapes = tuple(p.shape for p in parameters.values())
    return Gradients(tuple(parameters), shapes, tensors, losses.detach(), outputs.detach())


def _collect(
    total: Tensor, leaves: Leaves, parameters: dict[int, nn.Parameter]
) -> list[Tensor | Deferred | None]:
    """Differentiate, map derived weights back to their parameters, and sum uses."""
    theta = list(parameters.values())
    # Operators within a checkpoint run again in the backward pass, and ask for leaves again.
    direct = dict(leaves.of_parameter)
    later = [(key, use) for key, uses in leaves.deferred.items() for use in uses]
    derived = list(leaves.of_derived.values())
    if any(weight._version != version for (_, version), (weight, _) in leaves.of_derived.items()):
        raise NotPerOperator("a weight is changed in place after its use")
    if not total.requires_grad:
        return [None] * len(theta)
    groups = (
        list(direct.values()),
        [leaf for _, leaf in derived],
        [leaf for _, (leaf, _) in later],
        theta,
    )
    grads = torch.autograd.grad(total, [t for g in groups for t in g], allow_unused=True)
    ours, of_derived, of_later, stray = _split(grads, [len(g) for g in groups])
    if any(g is not None for g in stray):
        raise NotPerOperator("a parameter meets the batch in an operator that has no rule")
    found: dict[int, Tensor] = {}
    uses: dict[int, list[Deferred]] = {}
    for (key, (_, use)), d in zip(later, of_later, strict=True):
        if d is not None:
            uses.setdefault(key, []).append(use(d))
    kept = {key: own[0].with_uses(own[1:]) for key, own in uses.items()}
    for key, grad in zip(direct, ours, strict=True):
        if grad is not None:
            found[key] = grad
    for key, grad in _pulled_back(derived, of_derived, theta):
        found[key] = found[key] + grad if key in found else grad
    for key in found.keys() & kept.keys():
        found[key] = found[key] + kept[key].tensor()
    return [found.get(id(p), kept.get(id(p))) for p in theta]


def _pulled_back(
    derived: Sequence[tuple[Tensor, Tensor]],
    gradients: Sequence[Tensor | None],
    theta: Sequence[Tensor],
) -> Iterator[tuple[int, Tensor]]:
    """Gradients of weights that are computed from parameters as gradients of these parameters.

    All weights are pulled back at once: what several of them are computed from is differentiated
    once for each example.
    """
    found = [(w, g) for (w, _), g in zip(derived, gradients, strict=True) if g is not None]
    if not found:
        return
    weights, own = zip(*found, strict=True)
    # Weights may be used again after this pass, as under `parametrize.cached`.
    mapped = torch.autograd.grad(
        weights, theta, own, is_grads_batched=True, allow_unused=True, retain_graph=True
    )
    for parameter, grad in zip(theta, mapped, strict=True):
        if grad is not None:
            yield id(parameter), grad


def _split(
    found: Sequence[Tensor | None], sizes: Sequence[int]
) -> Iterator[Sequence[Tensor | None]]:
    """Consecutive parts of these sizes."""
    start = 0
    for size in sizes:
        yield found[start : start + size]
        start += size
