"""The layered pass as compiled graphs over leaves that stay where they are.

Forward and backward pass become one pair of graphs, and so do the norms and the weighted sum.
Gradients of reparametrised weights stay in the space of the weight: norms are taken through the
parametrisation's `pullback`, and only the weighted sum is mapped to the parameters, once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from sfumato.privacy.layers import RULES, Own
from sfumato.privacy.paths import kind_of, tapped

if TYPE_CHECKING:
    from sfumato.privacy.gradients import PerExample


_ROUNDED_UP = 1 + 2e-4
"""Squared norms are summed in float32 here; rounded up by this, they are never too small."""


class NotCompiled(Exception):
    """The model has a part that the compiled pass does not know."""


@dataclass
class _Slot:
    """One trained tensor of a layer: where its value lies, its leaf, and whose gradient it holds.

    Attributes:
        read: Computes the value from the parameters.
        value: The value in the compute precision, at a fixed address.
        leaf: Receives the per-example gradients; an expanded view of `value`.
        names: The parameters behind it.
        pullback: From gradients of the value to gradients of those parameters; None if they are
            the same.
    """

    read: Callable[[], Tensor]
    value: Tensor
    leaf: Tensor
    names: tuple[str, ...]
    pullback: Callable[[Tensor], tuple[Tensor, ...]] | None


@dataclass
class Fused:
    """Per-example gradients of one physical batch, in the space of the weights."""

    names: tuple[str, ...]
    losses: Tensor
    outputs: Tensor | None
    _grads: list[Tensor]
    _norms: Callable[[list[Tensor]], Tensor]
    _sums: Callable[[list[Tensor], Tensor], list[Tensor]]

    def squared_norms(self) -> Tensor:
        """Squared norms `(examples, parameters)`, rounded up by one part in ten thousand."""
        return self._norms(self._grads).double() * _ROUNDED_UP

    def weighted_sum(self, weights: Tensor) -> list[Tensor]:
        """Sum over examples of `weights[example, parameter] * gradient`, in parameter order.

        Guarantee: Products and sums are in float32. Where a weight is zero the example contributes
        exactly nothing, even if its gradient holds NaN or infinity.
        """
        return self._sums(self._grads, weights.float())


@dataclass
class Compiled:
    """The compiled pass for one physical batch size.

    Args:
        engine: Whose model, loss and views.
        examples: The physical batch size.
        dtype: Precision of the pass; norms and sums are in float32 whatever it is.
    """

    engine: PerExample
    examples: int
    dtype: torch.dtype
    slots: list[_Slot] = field(default_factory=list)

    def __post_init__(self) -> None:
        parameters = self.engine.trainable
        self._names = {id(p): n for n, p in parameters.items()}
        self._order = tuple(parameters)
        self._by_value: dict[int, _Slot] = {}
        self._frozen: list[tuple[Callable[[], Tensor], Tensor]] = []
        self._taps: dict[nn.Module, Callable[..., Any]] = {}
        for _, module, way in self.engine._ways():
            if way == "torch.func" or kind_of(module) not in RULES:
                raise NotCompiled(f"{type(module).__name__} has no rule")
            self._taps[module] = self._tap(module)
        behind = [name for slot in self.slots for name in slot.names]
        if len(behind) != len(set(behind)) or set(behind) != set(self._order):
            raise NotCompiled("a parameter is behind several weights, or behind none")
        self._fresh: tuple[int, ...] = ()
        self._forward = torch.compile(self._losses, dynamic=False, fullgraph=True)
        self._norms = torch.compile(self._squared, dynamic=False, fullgraph=True)
        self._sums = torch.compile(self._summed, dynamic=False, fullgraph=True)

    def _tap(self, module: nn.Module) -> Callable[..., Tensor]:
        rule = RULES[kind_of(module)]
        weight = self._slot(module, "weight")
        bias = self._slot(module, "bias")
        own = Own(
            self.engine.views,
            *self._values(module),
            None if weight is None else weight.leaf,
            None if bias is None else bias.leaf,
            cast=False,
        )

        def forward(*args: Any, **kwargs: Any) -> Tensor:
            result: Tensor = rule(module, own, *args, **kwargs)
            return result

        return forward

    def _values(self, module: nn.Module) -> tuple[Tensor | None, Tensor | None]:
        found = []
        for name in ("weight", "bias"):
            slot = self._by_value.get(self._key(module, name))
            value = getattr(module, name, None)
            if slot is None and value is not None:
                value = _static(value, self.dtype)
                self._frozen.append((partial(getattr, module, name), value))
            found.append(value if slot is None else slot.value)
        return found[0], found[1]

    @staticmethod
    def _key(module: nn.Module, name: str) -> int:
        """Shared parameters share a slot; a derived weight has one of its own."""
        if parametrize.is_parametrized(module, name):
            return id(module.parametrizations[name])  # type: ignore[index]
        return id(getattr(module, name, None))

    def _slot(self, module: nn.Module, name: str) -> _Slot | None:
        value = getattr(module, name, None)
        if value is None or not value.requires_grad:
            return None
        key = self._key(module, name)
        if key not in self._by_value:
            names, pullback = self._behind(module, name, value)
            static = _static(value, self.dtype)
            leaf = static.detach().expand(self.examples, *static.shape).requires_grad_()
            slot = _Slot(partial(getattr, module, name), static, leaf, names, pullback)
            self._by_value[key] = slot
            self.slots.append(slot)
        return self._by_value[key]

    def _behind(
        self, module: nn.Module, name: str, value: Tensor
    ) -> tuple[tuple[str, ...], Callable[[Tensor], tuple[Tensor, ...]] | None]:
        """The parameters behind a layer's tensor, and the way back to them."""
        if id(value) in self._names:
            return (self._names[id(value)],), None
        steps = list(module.parametrizations[name]) if parametrize.is_parametrized(module) else []  # type: ignore[index]
        if len(steps) != 1 or not hasattr(steps[0], "pullback"):
            raise NotCompiled(f"the {name} of a {kind_of(module).__name__} has no closed pullback")
        step = steps[0]
        raw = module.parametrizations[name].original  # type: ignore[index, union-attr]
        behind = [raw, *step.parameters()]
        if any(id(p) not in self._names for p in behind):
            raise NotCompiled("a reparametrised weight is partly frozen")

        def pullback(gradient: Tensor) -> tuple[Tensor, ...]:
            if getattr(step, "any_order", False):
                # Filters lie in memory with their channels last: go over them in that order.
                own, *rest = step.pullback(
                    raw.detach().permute(0, 2, 3, 1), gradient.permute(0, 1, 3, 4, 2)
                )
                return own.permute(0, 1, 4, 2, 3), *rest
            back = step.pullback(raw.detach(), gradient)
            return back if isinstance(back, tuple) else (back,)

        return tuple(self._names[id(p)] for p in behind), pullback

    def refresh(self) -> None:
        """Copy the parameters' current values to where the graphs read them."""
        version = tuple(p._version for p in self.engine.model.parameters())
        if version != self._fresh:
            with torch.no_grad():
                for slot in self.slots:
                    slot.value.copy_(slot.read())
                for read, value in self._frozen:
                    value.copy_(read())
            self._fresh = version

    def __call__(self, x: Tensor, y: Tensor) -> Fused:
        """Per-example gradients of `examples` examples."""
        self.refresh()
        with torch.enable_grad(), tapped(self._taps):
            total, losses, outputs = self._forward(x.to(self.dtype), y)
            leaves = [slot.leaf for slot in self.slots]
            grads = list(torch.autograd.grad(total, leaves))
        return Fused(self._order, losses.detach(), outputs.detach(), grads, self._norms, self._sums)

    def _losses(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        views = self.engine.views
        outputs = self.engine.model(x).float()
        targets = y.repeat_interleave(views, 0) if views > 1 else y
        losses = self.engine.loss(outputs, targets).view(-1, views).mean(1)
        return losses.sum(), losses, outputs

    def _squared(self, grads: list[Tensor]) -> Tensor:
        columns: dict[str, Tensor] = {}
        for slot, grad in zip(self.slots, grads, strict=True):
            wide = grad.to(_at_least_float32(grad))
            back = (wide,) if slot.pullback is None else slot.pullback(wide)
            for name, part in zip(slot.names, back, strict=True):
                columns[name] = part.square().sum(tuple(range(1, part.dim())))
        return torch.stack([columns[name] for name in self._order], 1)

    def _summed(self, grads: list[Tensor], weights: Tensor) -> list[Tensor]:
        sums: dict[str, Tensor] = {}
        for slot, grad in zip(self.slots, grads, strict=True):
            for k, name in enumerate(slot.names):
                column = weights[:, self._order.index(name)].view(-1, *(1,) * (grad.dim() - 1))
                wide = grad.to(_at_least_float32(grad))
                total = torch.where(column == 0, 0.0, wide * column.to(wide.dtype)).sum(0)
                if slot.pullback is not None:
                    total = slot.pullback(total.unsqueeze(0))[k].squeeze(0)
                sums[name] = total
        return [sums[name] for name in self._order]


def _at_least_float32(t: Tensor) -> torch.dtype:
    return torch.promote_types(t.dtype, torch.float32)


def _static(value: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy in the compute precision, channels last, that later values are copied to."""
    copy = value.detach().to(dtype, copy=True)
    return (
        copy.contiguous(memory_format=torch.channels_last) if copy.dim() == 4 else copy.contiguous()
    )
