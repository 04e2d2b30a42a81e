"""Per-example gradients by `torch.func.vmap`, of a whole model or of a module."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from sfumato.privacy.engines.collecting import run_with_leaves
from sfumato.privacy.engines.engine import Engine
from sfumato.privacy.engines.leaves import Leaves, NotPerOperator
from sfumato.privacy.engines.paths import Tapped
from sfumato.privacy.engines.results import Gradients


class Vectorised(Engine):
    """Per-example gradients of the whole model under `torch.func.vmap`."""

    name = "torch.func"

    def gradients(self, x: Tensor, y: Tensor) -> Gradients:
        """Per-example gradients in one vectorised pass.

        Raises:
            NotPerOperator: The model is called on inputs that are not batch-first.
        """
        parameters, model = self.objective.trainable, self.objective.model
        leaves = Leaves(y.shape[0], self.objective.views, {id(p): p for p in parameters.values()})
        taps = {model: by_vmap("(whole model)", model, leaves)}
        return run_with_leaves(self.objective, x, y, parameters, leaves, taps)


def by_vmap(name: str, module: nn.Module, leaves: Leaves) -> Tapped:
    """Run a module on one example (and its views) at a time, with the leaves of that example."""
    rows = leaves.examples * leaves.views
    own_forward = module.__dict__.get("forward")

    def forward(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return vectorised(*args, **kwargs)

    def vectorised(*args: Any, **kwargs: Any) -> Any:
        flat, spec = tree_flatten((args, kwargs))
        tensors = [t for t in flat if isinstance(t, Tensor)]
        if not tensors or any(t.dim() == 0 or t.shape[0] != rows for t in tensors):
            raise NotPerOperator(f"module '{name}' is called on inputs that are not batch-first")
        own = {n: leaf for n, p in module.named_parameters() if (leaf := leaves.of(p)) is not None}
        returned: list[tuple[list[Any], Any]] = []

        def one(own: dict[str, Tensor], tensors: list[Tensor]) -> list[Tensor]:
            inner_args, inner_kwargs = tree_unflatten(_filled(flat, tensors), spec)
            out = torch.func.functional_call(module, own, inner_args, inner_kwargs)
            returned.append(tree_flatten(out))
            return [t for t in returned[-1][0] if isinstance(t, Tensor)]

        override = module.__dict__.pop("forward")
        if own_forward is not None:
            module.__dict__["forward"] = own_forward
        try:
            split = [t.view(leaves.examples, leaves.views, *t.shape[1:]) for t in tensors]
            outputs = torch.func.vmap(one, randomness="different")(own, split)
        finally:
            module.__dict__["forward"] = override
        flat_out, out_spec = returned[-1]
        return tree_unflatten(_filled(flat_out, [t.flatten(0, 1) for t in outputs]), out_spec)

    return forward


def _filled(template: list[Any], tensors: list[Tensor]) -> list[Any]:
    """The template with its tensors replaced, in order."""
    given = iter(tensors)
    return [next(given) if isinstance(t, Tensor) else t for t in template]
