"""Per-example gradients in one pass over a model, layer by layer, or by `torch.func.vmap`.

`Layered` walks a model once and gives each module that owns trainable parameters a path:

- *rule*: a known layer (see `layer_rules`), on its own parameters;
- *reparametrised*: a known layer whose weight is f(theta); the gradient is taken of the weight
  and mapped to theta by f's own derivative;
- *torch.func*: any other module, run one example at a time under `torch.func.vmap`.

`Vectorised` runs the whole model under `torch.func.vmap`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Self

import torch
from torch import Tensor, nn

from sfumato.kernels.definitions import Geometry
from sfumato.privacy.engines.book_keeping import DeferredFilters, DeferredMatrix, deferrable
from sfumato.privacy.engines.engine import Engine
from sfumato.privacy.engines.expanded_weights import (
    Leaves,
    NotPerLayer,
    by_rule,
    by_vmap,
    deferring,
)
from sfumato.privacy.engines.layer_rules import RULES
from sfumato.privacy.engines.objective import Objective
from sfumato.privacy.engines.paths import Path, Tapped, assign, kind_of, size_of, tapped
from sfumato.privacy.engines.results import Deferred, Gradients


class Layered(Engine):
    """Per-example gradients by the path that fits each layer, in one forward and one backward pass.

    Args:
        objective: The model, its loss and its views.
        book_keeping: Store inputs and output gradients instead of weight gradients where that is
            cheaper, on a CPU; see `book_keeping`.
    """

    name = "layers"

    def __init__(self, objective: Objective, *, book_keeping: bool = True) -> None:
        super().__init__(objective)
        self.book_keeping = book_keeping
        self._books: dict[object, dict[nn.Module, tuple[Geometry, torch.Size]]] = {}
        self._assigned: dict[tuple[str, ...], list[tuple[str, nn.Module, str]]] = {}

    def on(self, objective: Objective) -> Self:
        """The same engine for another objective."""
        return type(self)(objective, book_keeping=self.book_keeping)

    def paths(self) -> list[Path]:
        """The path of each module."""
        return [
            Path(name or "(whole model)", kind_of(module).__name__, path, size_of(module))
            for name, module, path in self._module_paths(tuple(self.objective.trainable))
        ]

    @property
    def keeps_books(self) -> bool:
        """Tell whether the gradients of some layer are not materialised."""
        return self.book_keeping and any(self._books.values())

    def prepare(self, x: Tensor, names: tuple[str, ...] | None = None) -> None:
        """Record once how the model calls its layers, to decide which gradients to materialise.

        Args:
            x: Inputs like those to come.
            names: Names of the parameters trained now; looked up if None.
        """
        own = self.objective
        names = tuple(own.trainable) if names is None else names
        key = tuple(x.shape[1:]), names
        wanted = self.book_keeping and x.device.type == "cpu" and x.shape[0]
        if wanted and key not in self._books:
            self._books[key] = deferrable(own.model, self._module_paths(names), x, own.views)

    def gradients(self, x: Tensor, y: Tensor) -> Gradients:
        """Per-example gradients in one pass, layer by layer.

        Raises:
            NotPerLayer: The model uses a layer in a way that the paths cannot follow.
        """
        parameters = self.objective.trainable
        names = tuple(parameters)
        leaves = Leaves(y.shape[0], self.objective.views, {id(p): p for p in parameters.values()})
        taps: dict[nn.Module, Tapped] = {}
        for name, module, path in self._module_paths(names):
            if path == "torch.func":
                taps[module] = by_vmap(name, module, leaves)
            else:
                taps[module] = by_rule(name, module, RULES[kind_of(module)], leaves)
        for module, (at, output) in self._deferrable(x, names).items():
            taps[module] = deferring(module, leaves, at, output)
        return _run(self.objective, x, y, parameters, leaves, taps)

    def _module_paths(self, names: tuple[str, ...]) -> list[tuple[str, nn.Module, str]]:
        """The path of each module, for the parameters trained now."""
        if names not in self._assigned:
            self._assigned[names] = assign(self.objective.model)
        return self._assigned[names]

    def _deferrable(
        self, x: Tensor, names: tuple[str, ...]
    ) -> dict[nn.Module, tuple[Geometry, torch.Size]]:
        """Layers whose gradients are not materialised, found by running the model once."""
        self.prepare(x, names)
        narrow = x.dtype not in (torch.float32, torch.float64)
        if not self.book_keeping or x.device.type != "cpu" or narrow:
            return {}
        in_autocast = torch.is_autocast_enabled("cpu")
        return {} if in_autocast else self._books.get((tuple(x.shape[1:]), names), {})


class Vectorised(Engine):
    """Per-example gradients of the whole model under `torch.func.vmap`."""

    name = "torch.func"

    def gradients(self, x: Tensor, y: Tensor) -> Gradients:
        """Per-example gradients in one vectorised pass.

        Raises:
            NotPerLayer: The model is called on inputs that are not batch-first.
        """
        parameters, model = self.objective.trainable, self.objective.model
        leaves = Leaves(y.shape[0], self.objective.views, {id(p): p for p in parameters.values()})
        taps = {model: by_vmap("(whole model)", model, leaves)}
        return _run(self.objective, x, y, parameters, leaves, taps)


def _run(
    objective: Objective,
    x: Tensor,
    y: Tensor,
    parameters: dict[str, nn.Parameter],
    leaves: Leaves,
    taps: dict[nn.Module, Tapped],
) -> Gradients:
    """Run the objective with the forward passes of some modules replaced by ones with leaves."""
    with torch.enable_grad(), tapped(taps):
        outputs, losses = objective(x, y)
        tensors = _collect(losses.sum(), leaves, {id(p): p for p in parameters.values()})
    shapes = tuple(p.shape for p in parameters.values())
    return Gradients(tuple(parameters), shapes, tensors, losses.detach(), outputs.detach())


def _collect(
    total: Tensor, leaves: Leaves, parameters: dict[int, nn.Parameter]
) -> list[Tensor | Deferred | None]:
    """Differentiate, map derived weights back to their parameters, and sum uses."""
    theta = list(parameters.values())
    # Layers within a checkpoint run again in the backward pass, and ask for leaves again.
    direct, later = dict(leaves.of_parameter), dict(leaves.deferred)
    derived = list(leaves.of_derived)
    if not total.requires_grad:
        return [None] * len(theta)
    groups = (
        list(direct.values()),
        [leaf for _, leaf in derived],
        [leaf for _, leaf, _ in later.values()],
        theta,
    )
    grads = torch.autograd.grad(total, [t for g in groups for t in g], allow_unused=True)
    ours, of_derived, of_later, stray = _split(grads, [len(g) for g in groups])
    if any(g is not None for g in stray):
        raise NotPerLayer("a parameter is used outside the layer that owns it")
    found: dict[int, Tensor] = {}
    kept: dict[int, Deferred] = {}
    for (key, (x, _, at)), d in zip(later.items(), of_later, strict=True):
        if d is not None and d.dim() == 2:
            kept[key] = DeferredMatrix(x, d, at.views)
        elif d is not None:
            kept[key] = DeferredFilters(x, d, parameters[key].detach(), at)
    for key, grad in zip(direct, ours, strict=True):
        if grad is not None:
            found[key] = grad
    for (weight, _), grad in zip(derived, of_derived, strict=True):
        if grad is None:
            continue
        mapped = torch.autograd.grad(
            weight, theta, grad, is_grads_batched=True, allow_unused=True, retain_graph=True
        )
        for parameter, part in zip(theta, mapped, strict=True):
            if part is not None:
                key = id(parameter)
                found[key] = found[key] + part if key in found else part
    return [found.get(id(p), kept.get(id(p))) for p in theta]


def _split(
    found: Sequence[Tensor | None], sizes: Sequence[int]
) -> Iterator[Sequence[Tensor | None]]:
    """Consecutive parts of these sizes."""
    start = 0
    for size in sizes:
        yield found[start : start + size]
        start += size
