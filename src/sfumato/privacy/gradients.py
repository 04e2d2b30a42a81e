"""Per-example gradients of any model: every layer takes the fastest path that is right for it.

`PerExample` walks a model once and gives each module that owns trainable parameters a path:

- *rule*: a known layer (`sfumato.privacy.layers`), on its own parameters;
- *reparametrised*: a known layer whose weight is f(theta); the gradient is taken of the weight
  and mapped to theta by f's own derivative;
- *torch.func*: any other module, run one example at a time under `torch.func.vmap`;
- *loop*: the whole model, one example at a time, where nothing else applies.

The walk is then checked on this very model before the first batch counts: see `PerExample`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.errors import UserError
from sfumato.kernels.definitions import Geometry
from sfumato.privacy.compiled import Compiled
from sfumato.privacy.deferred import DeferredFilters, deferrable
from sfumato.privacy.layers import RULES
from sfumato.privacy.leaves import Leaves, NotPerLayer, by_rule, by_vmap, deferring
from sfumato.privacy.paths import Path, Tapped, assign, kind_of, size_of, tapped
from sfumato.privacy.refuse import refuse_mixing_layers
from sfumato.privacy.summing import Deferred, Gradients, PerExampleGradients

Loss = Callable[[Tensor, Tensor], Tensor]

METHODS = ("layers", "torch.func", "loop")
"""From the fastest to the one that is always right."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of each row apart."""
    return F.cross_entropy(outputs, targets, reduction="none")


def per_example_losses(
    model: nn.Module, loss: Loss, x: Tensor, y: Tensor, views: int
) -> tuple[Tensor, Tensor]:
    """Outputs of all rows, and the loss of each example as the mean over its views."""
    outputs = model(x)
    targets = y.repeat_interleave(views, 0) if views > 1 else y
    losses = loss(outputs, targets)
    if losses.shape != x.shape[:1]:
        raise UserError(
            f"The loss must return one number per row, shape ({x.shape[0]},), not "
            f"{tuple(losses.shape)}: use reduction='none' and average over each row's own values."
        )
    return outputs, losses.view(-1, views).mean(1)


class PerExample:
    """Takes per-example gradients of a model's loss, in physical batches.

    Args:
        model: Any module from `(rows, ...)` to outputs; frozen parameters are left alone.
        loss: From outputs and targets to one loss per row.
        views: Rows per example, in example-major order. The loss of an example is the mean over
            its views, so its gradient is averaged over them before anything is clipped.
        check: Compare with the one-example-at-a-time reference before the first batch.
        precision: Compute in this precision where a compiled pass fits the model; norms and sums
            are in float32 whatever it is. None for the model's own precision, not compiled.

    Attributes:
        method: How the last batch was run: one of `METHODS`.
        passed_over: Faster methods that were not used, and why.

    Guarantee: Before the first batch of a new input shape, and again before a larger one, on random
    inputs and targets, this very model is run with one example changed (no other output and no
    state that the model keeps may move, else a `UserError`), and its per-example gradients are
    compared with one-example-at-a-time autograd; a method that disagrees, or whose gradients of one
    example move with another, is never used. Layers known to mix examples are refused by name.
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
        refuse_mixing_layers(model)
        self.model, self.loss, self.views, self.check = model, loss, views, check
        self.precision = precision
        self._deferring: dict[object, dict[nn.Module, tuple[Geometry, torch.Size]]] = {}
        self._compiled: dict[object, Compiled | None] = {}
        self.method: str | None = None
        self.passed_over: dict[str, str] = {}
        self._checked: dict[object, tuple[str, int]] = {}
        self._assigned: dict[tuple[str, ...], list[tuple[str, nn.Module, str]]] = {}

    @property
    def trainable(self) -> dict[str, nn.Parameter]:
        """The parameters to train, by name, shared ones once."""
        return {n: p for n, p in self.model.named_parameters() if p.requires_grad}

    def __call__(self, x: Tensor, y: Tensor) -> PerExampleGradients:
        """Per-example gradients for `len(y)` examples of `views` rows each."""
        if x.shape[0] != y.shape[0] * self.views:
            raise ValueError(
                f"{y.shape[0]} targets with {self.views} views each need "
                f"{y.shape[0] * self.views} rows, not {x.shape[0]}"
            )
        if y.shape[0] == 0:
            return self._empty(x)
        method = self._method_for(x, y)
        compiled = self._compiled_for(x, y) if method == "layers" else None
        if compiled is not None:
            return compiled(x, y)
        try:
            return self._run(method, x, y)
        except NotPerLayer:
            # What these very inputs make the model do was not seen in the checks.
            return self._run("loop", x, y)

    def _method_for(self, x: Tensor, y: Tensor) -> str:
        """The method chosen for inputs like these, checked for batches up to this size."""
        signature = (
            tuple(x.shape[1:]),
            x.dtype,
            x.device,
            x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last),
            tuple(module.training for module in self.model.modules()),
            tuple(self.trainable),
        )
        method, largest = self._checked.get(signature, ("", 0))
        if y.shape[0] > largest:
            self.prepare(x)
            from sfumato.privacy.probe import choose_method

            method = choose_method(self, x, y)
            self._checked[signature] = method, y.shape[0]
        self.method = method
        return method

    def _compiled_for(self, x: Tensor, y: Tensor) -> Compiled | None:
        """The compiled pass for batches like this one, if it is asked for and fits the model."""
        if self.precision is None:
            return None
        key = (tuple(x.shape), self.precision, self.model.training, tuple(self.trainable))
        if key not in self._compiled:
            from sfumato.privacy.fitting import compiled_pass

            self._compiled[key] = compiled_pass(self, x, y, self.precision)
        return self._compiled[key]

    def paths(self) -> list[Path]:
        """Which module takes which path; complete once a first batch has been seen."""
        if self.method in ("torch.func", "loop"):
            count = sum(p.numel() for p in self.trainable.values())
            return [Path("(whole model)", type(self.model).__name__, self.method, count)]
        return [
            Path(name or "(whole model)", kind_of(module).__name__, way, size_of(module))
            for name, module, way in self._ways()
        ]

    def _ways(self) -> list[tuple[str, nn.Module, str]]:
        trainable = tuple(self.trainable)
        if trainable not in self._assigned:
            self._assigned[trainable] = assign(self.model)
        return self._assigned[trainable]

    def prepare(self, x: Tensor) -> None:
        """Look once at how the model calls its convolutions, to know whose gradients to defer."""
        key = tuple(x.shape[1:]), tuple(self.trainable)
        if key not in self._deferring and x.device.type == "cpu" and x.shape[0]:
            self._deferring[key] = deferrable(self.model, self._ways(), x, self.views)

    def _deferrable(self, x: Tensor) -> dict[nn.Module, tuple[Geometry, torch.Size]]:
        """Convolutions whose gradients are not written out, on a CPU; see `privacy.deferred`."""
        narrow = x.dtype not in (torch.float32, torch.float64)
        if x.device.type != "cpu" or narrow or torch.is_autocast_enabled("cpu"):
            return {}
        return self._deferring.get((tuple(x.shape[1:]), tuple(self.trainable)), {})

    def _empty(self, x: Tensor) -> Gradients:
        parameters = self.trainable
        return Gradients(
            tuple(parameters),
            tuple(p.shape for p in parameters.values()),
            [p.new_zeros(0, *p.shape) for p in parameters.values()],
            x.new_zeros(0),
            None,
        )

    def _run(self, method: str, x: Tensor, y: Tensor) -> Gradients:
        if method == "loop":
            from sfumato.privacy.reference import one_at_a_time

            return one_at_a_time(self.model, x, y, loss=self.loss, views=self.views)
        parameters = self.trainable
        by_id = {id(p): p for p in parameters.values()}
        leaves = Leaves(y.shape[0], self.views, by_id)
        taps: dict[nn.Module, Tapped] = {}
        if method == "torch.func":
            taps[self.model] = by_vmap("(whole model)", self.model, leaves)
        else:
            for name, module, way in self._ways():
                if way == "torch.func":
                    taps[module] = by_vmap(name, module, leaves)
                else:
                    taps[module] = by_rule(name, module, RULES[kind_of(module)], leaves)
            for module, (at, output) in self._deferrable(x).items():
                taps[module] = deferring(module, leaves, at, output)
        with torch.enable_grad(), tapped(taps):
            outputs, losses = per_example_losses(self.model, self.loss, x, y, self.views)
            tensors = self._collect(losses.sum(), leaves, by_id)
        shapes = tuple(p.shape for p in by_id.values())
        return Gradients(tuple(parameters), shapes, tensors, losses.detach(), outputs.detach())

    def _collect(
        self, total: Tensor, leaves: Leaves, parameters: dict[int, nn.Parameter]
    ) -> list[Tensor | Deferred | None]:
        """Differentiate, map derived weights back to their parameters, and sum uses."""
        theta = list(parameters.values())
        direct = list(leaves.of_parameter.values())
        later = [leaf for _, leaf, _ in leaves.deferred.values()]
        derived = [leaf for _, leaf in leaves.of_derived]
        if not total.requires_grad:
            return [None] * len(theta)
        wanted = [*direct, *derived, *later, *theta]
        grads = torch.autograd.grad(total, wanted, allow_unused=True)
        if any(g is not None for g in grads[-len(theta) :]):
            raise NotPerLayer("a parameter is used outside the layer that owns it")
        found: dict[int, Tensor] = {}
        kept: dict[int, DeferredFilters] = {}
        start = len(direct) + len(derived)
        for (key, (x, _, at)), d in zip(leaves.deferred.items(), grads[start:], strict=False):
            if d is not None:
                kept[key] = DeferredFilters(x, d, parameters[key].detach(), at)
        for key, grad in zip(leaves.of_parameter, grads, strict=False):
            if grad is not None:
                found[key] = grad
        for (weight, _), grad in zip(leaves.of_derived, grads[len(direct) :], strict=False):
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


__all__ = ["Gradients", "Loss", "Path", "PerExample", "cross_entropy", "per_example_losses"]
