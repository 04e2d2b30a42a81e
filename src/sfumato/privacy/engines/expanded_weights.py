"""The per-example leaves of one layered pass, and the forward passes that tie them in."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from sfumato.kernels.definitions import Geometry
from sfumato.privacy.engines.compiled_rules import FilterLeaves, filters, linear
from sfumato.privacy.engines.layer_rules import Own
from sfumato.privacy.engines.paths import Tapped
from sfumato.privacy.engines.stored_gradients import zeros


class NotPerLayer(Exception):
    """Use of a layer that only an engine for the whole model can follow."""


class Leaves:
    """The per-example leaves of one pass, created as layers ask for them."""

    def __init__(self, examples: int, views: int, parameters: dict[int, nn.Parameter]) -> None:
        self.examples, self.views = examples, views
        self._parameters = parameters
        self.of_parameter: dict[int, Tensor] = {}
        self.of_derived: list[tuple[Tensor, Tensor]] = []
        self.deferred: dict[int, tuple[Tensor, Tensor, Geometry]] = {}

    def _new(self, tensor: Tensor) -> Tensor:
        return tensor.detach().expand(self.examples, *tensor.shape).requires_grad_()

    def of(self, tensor: Tensor | None) -> Tensor | None:
        """The leaf of a parameter, the same each time, or a new one of a derived tensor."""
        if tensor is None or not tensor.requires_grad:
            return None
        if id(tensor) not in self._parameters:
            leaf = self._new(tensor)
            self.of_derived.append((tensor, leaf))
            return leaf
        if id(tensor) not in self.of_parameter:
            self.of_parameter[id(tensor)] = self._new(tensor)
        return self.of_parameter[id(tensor)]

    def defer(
        self, layer: nn.Conv2d | nn.Linear, x: Tensor, at: Geometry, output: torch.Size
    ) -> Tensor:
        """Give a layer a leaf for the gradients of its output instead of those of its weight."""
        leaf = zeros(x, x.shape[0], *output[1:])
        self.deferred[id(layer.weight)] = x.detach(), leaf, at
        weight, shift = layer.weight.detach(), None if layer.bias is None else layer.bias.detach()
        if isinstance(layer, nn.Linear):
            return linear(x, weight, shift, self.of(layer.bias), leaf, at.views)
        return filters(FilterLeaves(weight, shift, self.of(layer.bias), at, output=leaf), x)

    def own(self, module: nn.Module) -> Own:
        """The values and leaves for the module's rule in this pass."""
        weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
        return Own(
            self.views,
            None if weight is None else weight.detach(),
            None if bias is None else bias.detach(),
            self.of(weight),
            self.of(bias),
        )


def by_rule(name: str, module: nn.Module, rule: Any, leaves: Leaves) -> Tapped:
    """Run a known layer by its rule."""

    def forward(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if input.dim() < 2 or input.shape[0] != leaves.examples * leaves.views:
            raise NotPerLayer(f"layer '{name}' is called on inputs that are not batch-first")
        result: Tensor = rule(module, leaves.own(module), input, *args, **kwargs)
        return result

    return forward


def deferring(module: nn.Module, leaves: Leaves, at: Geometry, output: torch.Size) -> Tapped:
    """Run a layer whose weight gradients are not materialised."""
    assert isinstance(module, nn.Conv2d | nn.Linear)
    layer = module

    def forward(input: Tensor) -> Tensor:
        fits = input.dim() == len(output) and input.shape[0] == leaves.examples * leaves.views
        if not fits or id(layer.weight) in leaves.deferred:
            raise NotPerLayer("a layer is called otherwise than it was at first")
        return leaves.defer(layer, input, at, output)

    return forward


def by_vmap(name: str, module: nn.Module, leaves: Leaves) -> Tapped:
    """Run a module on one example (and its views) at a time, with the leaves of that example."""
    rows = leaves.examples * leaves.views
    own_forward = module.__dict__.get("forward")

    def forward(*args: Any, **kwargs: Any) -> Any:
        flat, spec = tree_flatten((args, kwargs))
        tensors = [t for t in flat if isinstance(t, Tensor)]
        if not tensors or any(t.dim() == 0 or t.shape[0] != rows for t in tensors):
            raise NotPerLayer(f"module '{name}' is called on inputs that are not batch-first")
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
