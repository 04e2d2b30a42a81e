"""One pass over a model for the gradients of each example, layer by layer.

`Layered` walks a model once and gives each module that owns trainable parameters a path:

- *rule*: a known layer (`sfumato.privacy.engines.layer_rules`), on its own parameters;
- *reparametrised*: a known layer whose weight is f(theta); the gradient is taken of the weight
  and mapped to theta by f's own derivative;
- *torch.func*: any other module, run one example at a time under `torch.func.vmap`;
- *loop*: the whole model, one example at a time, where nothing else applies.

Nothing is checked here: see `sfumato.privacy.per_example`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from sfumato.errors import UserError
from sfumato.kernels.definitions import Geometry
from sfumato.privacy.checks.refusals import refuse_loss, refuse_mixing_layers, refuse_parameters
from sfumato.privacy.engines.book_keeping import DeferredFilters, DeferredMatrix, deferrable
from sfumato.privacy.engines.expanded_weights import (
    Leaves,
    NotPerLayer,
    by_rule,
    by_vmap,
    deferring,
)
from sfumato.privacy.engines.layer_rules import RULES
from sfumato.privacy.engines.losses import Loss, cross_entropy, per_example_losses
from sfumato.privacy.engines.one_at_a_time import one_at_a_time
from sfumato.privacy.engines.paths import Path, Tapped, assign, kind_of, size_of, tapped
from sfumato.privacy.engines.results import Deferred, Gradients

METHODS = ("layers", "torch.func", "loop")
"""From the fastest to the one that is always right."""


class Layered:
    """A model, its loss and the ways to its per-example gradients.

    Arguments and attributes are those of `sfumato.privacy.per_example.PerExample`.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        loss: Loss = cross_entropy,
        views: int = 1,
        check: bool = True,
        precision: torch.dtype | None = None,
    ) -> None:
        if views < 1:
            raise UserError(f"An example needs at least one view, not {views}.")
        model = getattr(model, "_orig_mod", model)  # What torch.compile was given.
        refuse_mixing_layers(model)
        refuse_parameters(model)
        refuse_loss(loss)
        self.model, self.loss, self.views, self.check = model, loss, views, check
        self.precision = precision
        self.narrowest = torch.float32
        self._deferring: dict[object, dict[nn.Module, tuple[Geometry, torch.Size]]] = {}
        self.defers = True
        self.method: str | None = None
        self.passed_over: dict[str, str] = {}
        self._assigned: dict[tuple[str, ...], list[tuple[str, nn.Module, str]]] = {}

    @property
    def trainable(self) -> dict[str, nn.Parameter]:
        """The parameters to train, by name, shared ones once."""
        return self.parameters()[0]

    def parameters(self) -> tuple[dict[str, nn.Parameter], list[nn.Parameter]]:
        """The parameters to train, by name, shared ones once, and all others."""
        trained, others = {}, []
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                trained[name] = parameter
            else:
                others.append(parameter)
        return trained, others

    def paths(self) -> list[Path]:
        """Which module takes which path; complete once a first batch has been seen."""
        if self.method in ("torch.func", "loop"):
            count = sum(p.numel() for p in self.trainable.values())
            return [Path("(whole model)", type(self.model).__name__, self.method, count)]
        return [
            Path(name or "(whole model)", kind_of(module).__name__, way, size_of(module))
            for name, module, way in self._ways()
        ]

    def _ways(self, names: tuple[str, ...] | None = None) -> list[tuple[str, nn.Module, str]]:
        """The way of each module, for the parameters trained now, whose names may be known."""
        names = tuple(self.trainable) if names is None else names
        if names not in self._assigned:
            self._assigned[names] = assign(self.model)
        return self._assigned[names]

    @property
    def deferring(self) -> bool:
        """Whether the gradients of some layer are not written out."""
        return self.defers and any(self._deferring.values())

    def prepare(self, x: Tensor) -> None:
        """Look once at how the model calls its layers, to know whose gradients to defer."""
        names = tuple(self.trainable)
        key = tuple(x.shape[1:]), names
        if key not in self._deferring and x.device.type == "cpu" and x.shape[0]:
            self._deferring[key] = deferrable(self.model, self._ways(names), x, self.views)

    def _deferrable(
        self, x: Tensor, names: tuple[str, ...]
    ) -> dict[nn.Module, tuple[Geometry, torch.Size]]:
        """Layers whose gradients are not written out, on a CPU; see `book_keeping`."""
        narrow = x.dtype not in (torch.float32, torch.float64)
        if not self.defers or x.device.type != "cpu" or narrow or torch.is_autocast_enabled("cpu"):
            return {}
        return self._deferring.get((tuple(x.shape[1:]), names), {})

    def _empty(self, x: Tensor, parameters: dict[str, nn.Parameter]) -> Gradients:
        return Gradients(
            tuple(parameters),
            tuple(p.shape for p in parameters.values()),
            [p.new_zeros(0, *p.shape) for p in parameters.values()],
            x.new_zeros(0),
            None,
        )

    def _run(
        self, method: str, x: Tensor, y: Tensor, parameters: dict[str, nn.Parameter] | None = None
    ) -> Gradients:
        """One pass by a method; `parameters` are those trained now, looked up if None."""
        if method == "loop":
            return one_at_a_time(self.model, x, y, loss=self.loss, views=self.views)
        parameters = self.trainable if parameters is None else parameters
        names = tuple(parameters)
        by_id = {id(p): p for p in parameters.values()}
        leaves = Leaves(y.shape[0], self.views, by_id)
        taps: dict[nn.Module, Tapped] = {}
        if method == "torch.func":
            taps[self.model] = by_vmap("(whole model)", self.model, leaves)
        else:
            for name, module, way in self._ways(names):
                if way == "torch.func":
                    taps[module] = by_vmap(name, module, leaves)
                else:
                    taps[module] = by_rule(name, module, RULES[kind_of(module)], leaves)
            for module, (at, output) in self._deferrable(x, names).items():
                taps[module] = deferring(module, leaves, at, output)
        with torch.enable_grad(), tapped(taps):
            outputs, losses = per_example_losses(self.model, self.loss, x, y, self.views)
            tensors = self._collect(losses.sum(), leaves, by_id)
        shapes = tuple(p.shape for p in by_id.values())
        return Gradients(names, shapes, tensors, losses.detach(), outputs.detach())

    def _collect(
        self, total: Tensor, leaves: Leaves, parameters: dict[int, nn.Parameter]
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
