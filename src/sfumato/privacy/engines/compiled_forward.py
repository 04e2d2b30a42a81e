"""The forward passes that replace those of a model's layers in the compiled pass.

`Taps` gives each trained tensor a slot (see `stored_gradients`), as the planner chose, and each
layer a forward pass that computes with the slots' values and ties their leaves into the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from sfumato import kernels
from sfumato.kernels.definitions import Geometry
from sfumato.nn.reparametrisation import (
    FilterStandardisation,
    LinearExpansion,
    Reparametrisation,
)
from sfumato.privacy.engines import compiled_rules
from sfumato.privacy.engines.layer_rules import RULES, Own, _scale_and_shift
from sfumato.privacy.engines.objective import Objective
from sfumato.privacy.engines.paths import assign, kind_of
from sfumato.privacy.engines.storage_plan import (
    Convolution,
    Storage,
    by_outputs,
    geometry_of,
    outputs_of,
    plan,
    room,
)
from sfumato.privacy.engines.stored_gradients import Filters, Matrix, Pullback, Slot, Whole, zeros


class NotCompiled(Exception):
    """The model has a part that the compiled pass does not know."""


class Taps:
    """The slots and forward passes of all layers for one physical batch size.

    Args:
        objective: The model and its views.
        x: Inputs like those to come; the first is used for its shape.
        examples: The physical batch size.
        dtype: Precision of the pass.
        storage: Store this for all convolutions that can, instead of what the planner chooses.
        memory: Bytes that stored gradients may take. If None, a quarter of what is free, and no
            more than `sfumato.privacy.engines.storage_plan.room` leaves them.

    Attributes:
        slots: The slot of each trained tensor.
        forwards: The forward pass that replaces that of each layer.
        stash: Receives the inputs that slots need, in the order of the calls.
        layers: The convolutions that the operators can take, and their outputs' shapes.
        storage: The storage chosen for each convolution, by the layer's name.
    """

    def __init__(
        self,
        objective: Objective,
        x: Tensor,
        examples: int,
        dtype: torch.dtype,
        *,
        storage: Storage | None = None,
        memory: int | None = None,
    ) -> None:
        self.objective, self.examples, self.dtype = objective, examples, dtype
        self.slots: list[Slot] = []
        self.forwards: dict[nn.Module, Callable[..., Any]] = {}
        self.stash: list[Tensor] = []
        self._names = {id(p): n for n, p in objective.trainable.items()}
        self._by_value: dict[int, Slot] = {}
        self._frozen: list[tuple[Callable[[], Tensor], Tensor]] = []
        assigned = assign(objective.model)
        for _, module, how in assigned:
            if how == "torch.func" or kind_of(module) not in RULES or kind_of(module) in _SLOW:
                raise NotCompiled(f"{type(module).__name__} has no rule")
        by_operator = storage is not None or (kernels.AVAILABLE and x.is_cuda and dtype in _NARROW)
        shapes = outputs_of(objective.model, x[:1]) if by_operator else {}
        self._calls = {module: found[0] for module, found in shapes.items() if len(found) == 1}
        self.layers = convolutions(objective, self._calls)
        if memory is None:
            memory = _free(x.device)
            if by_operator:
                memory = min(memory, room(objective.model, x[:1], examples * objective.views))
        self.storage = plan([layer for layer, _ in self.layers.values()], examples, memory=memory)
        if storage is not None:
            can = {layer.name: layer.possible() for layer, _ in self.layers.values()}
            self.storage = {
                n: storage if storage in can[n] else found for n, found in self.storage.items()
            }
        for _, module, _ in assigned:
            self.forwards[module] = self._tap(module)
        for module in objective.model.modules():
            if kind_of(module) is nn.GroupNorm and module not in self.forwards:
                self.forwards[module] = self._tap(module)
            if kind_of(module) is nn.Mish:
                self.forwards[module] = compiled_rules.mish
        behind = [name for slot in self.slots for name in slot.names]
        if len(behind) != len(set(behind)) or set(behind) != set(objective.trainable):
            raise NotCompiled("a parameter is behind several weights, or behind none")
        called = [self._by_value.get(self._key(module, "weight")) for module in self._calls]
        with_input = [slot for slot in called if slot is not None and slot.needs_input]
        self._input_index = {id(slot): i for i, slot in enumerate(with_input)}

    def input_of(self, slot: Slot, inputs: list[Tensor]) -> Tensor | None:
        """The input that a slot needs, among all that were stashed."""
        index = self._input_index.get(id(slot))
        return None if index is None else inputs[index]

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the parameters' current values to the addresses that the forward passes read."""
        for slot in self.slots:
            slot.refresh()
        for read, value in self._frozen:
            value.copy_(read())

    def _tap(self, module: nn.Module) -> Callable[..., Tensor]:
        bias = self._slot(module, "bias")
        bias_leaf = bias.leaf if isinstance(bias, Whole) else None
        if module in self.layers:
            layer, shape = self.layers[module]
            slot = self._filters(module, self.storage[layer.name], layer.at, shape)
            if slot is not None:
                return self._tap_filters(module, slot, bias_leaf)
        if (matrix := self._matrix(module)) is not None:
            return self._tap_matrix(module, matrix, bias_leaf)
        rule = RULES[kind_of(module)]
        weight, tie = self._weight(module)
        values = self._values(module)
        if isinstance(module, nn.GroupNorm):
            rule = compiled_rules.group_norm
        leaf = None if weight is None else weight.leaf
        own = Own(self.objective.views, *values, leaf, bias_leaf, cast=False)

        def forward(*args: Any, **kwargs: Any) -> Tensor:
            tied = own
            if tie is not None and own.weight_leaf is not None:
                tied = replace(own, weight_leaf=tie(own.weight_leaf))
            result: Tensor = rule(module, tied, *args, **kwargs)
            return result

        return forward

    def _tap_filters(
        self, module: nn.Module, slot: Filters, bias_leaf: Tensor | None
    ) -> Callable[..., Tensor]:
        bias = self._values(module)[1]
        gain = self._gain(slot)
        within = (bias, bias_leaf) if gain is None else (None, None)
        leaves = compiled_rules.FilterLeaves(
            slot.value, *within, slot.geometry, slot.directions, slot.scales, slot.gradient,
            slot.statistics, slot.ghost, slot.output,
        )  # fmt: skip
        keep = slot.needs_input

        def forward(x: Tensor) -> Tensor:
            if keep:
                self.stash.append(x)
            y = compiled_rules.filters(leaves, x)
            if gain is None:
                return y
            after = Own(self.objective.views, gain.value, bias, gain.leaf, bias_leaf)
            return _scale_and_shift(y, after, channels_first=True)

        return forward

    def _matrix(self, module: nn.Module) -> Matrix | None:
        """The slot of a linear layer's matrix if its output gradients are stored instead."""
        value = getattr(module, "weight", None)
        shape = self._calls.get(module, ())
        if kind_of(module) is not nn.Linear or len(shape) != 2 or id(value) not in self._names:
            return None
        assert isinstance(value, Tensor)
        outputs, inputs = value.shape
        shared = self._key(module, "weight") in self._by_value
        if shared or not by_outputs(inputs, outputs, self.objective.views):
            return None
        static = _static(value, self.dtype)
        leaf = zeros(static, self.examples * self.objective.views, outputs)
        read = partial(getattr, module, "weight")
        slot = Matrix((self._names[id(value)],), read, static, leaf, self.objective.views)
        self._add(self._key(module, "weight"), slot)
        return slot

    def _tap_matrix(
        self, module: nn.Module, slot: Matrix, bias_leaf: Tensor | None
    ) -> Callable[..., Tensor]:
        bias = self._values(module)[1]

        def forward(x: Tensor) -> Tensor:
            self.stash.append(x)
            views = self.objective.views
            return compiled_rules.linear(x, slot.value, bias, bias_leaf, slot.leaf, views)

        return forward

    def _gain(self, slot: Filters) -> Whole | None:
        """The slot of the gain that standardised filters leave out under ghost norms."""
        gain: Tensor | None = getattr(slot.step, "gain", None)
        if slot.storage != "ghost" or gain is None:
            return None
        static = _static(gain, self.dtype)
        leaf = static.detach().expand(self.examples, *static.shape).requires_grad_()
        read = partial(getattr, slot.step, "gain")
        whole = Whole((self._names[id(gain)],), read, static, leaf, None)
        self._add(id(gain), whole)
        return whole

    def _weight(self, module: nn.Module) -> tuple[Whole | None, Callable[[Tensor], Tensor] | None]:
        """The slot of a layer's weight, and the map from its leaf to the weight, if any."""
        value = getattr(module, "weight", None)
        if value is None or not value.requires_grad:
            return None, None
        step = _step(module, "weight")
        if not isinstance(step, LinearExpansion):
            slot = self._slot(module, "weight")
            return slot if isinstance(slot, Whole) else None, None
        # The weight is a linear expansion of fewer numbers: take the gradients of those.
        raw = module.parametrizations["weight"].original  # type: ignore[union-attr, index]
        key = self._key(module, "weight")
        if key not in self._by_value:
            names = self._parameters(module, "weight")

            def pullback(gradient: Tensor) -> tuple[Tensor, ...]:
                return (step.pullback_expanded(raw.detach(), gradient),)

            static = _static(value, self.dtype)
            leaf = zeros(static, self.examples, *raw.shape)
            read = partial(getattr, module, "weight")
            self._add(key, Whole(names, read, static, leaf, pullback))
        slot = self._by_value[key]
        assert isinstance(slot, Whole)
        return slot, step.expand

    def _filters(
        self, module: nn.Module, storage: Storage, at: Geometry, shape: tuple[int, ...]
    ) -> Filters | None:
        """The slot of a convolution's filters by the operators, or None where they do not fit."""
        value = module.weight
        assert isinstance(value, Tensor)
        step = _step(module, "weight")
        if step is not None and not isinstance(step, FilterStandardisation):
            return None
        names, _ = self._behind(module, "weight", value)
        read: Callable[[], Tensor] = partial(getattr, module, "weight")
        raw = None
        if step is not None:
            raw = module.parametrizations["weight"].original  # type: ignore[union-attr, index]
            if storage == "ghost":
                names, read = names[:1], partial(step.bare, raw)
        static = _static(read(), self.dtype)
        output = (self.examples * self.objective.views, *shape[1:])
        slot = Filters(names, read, static, storage, at, self.examples, output, step, raw)
        self._add(self._key(module, "weight"), slot)
        return slot

    def _add(self, key: int, slot: Slot) -> None:
        self._by_value[key] = slot
        self.slots.append(slot)

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
        """The identity of a slot: shared parameters share one, a derived weight has its own."""
        if parametrize.is_parametrized(module, name):
            return id(module.parametrizations[name])  # type: ignore[index]
        return id(getattr(module, name, None))

    def _slot(self, module: nn.Module, name: str) -> Slot | None:
        value = getattr(module, name, None)
        if value is None or not value.requires_grad:
            return None
        key = self._key(module, name)
        if key not in self._by_value:
            names, pullback = self._behind(module, name, value)
            static = _static(value, self.dtype)
            leaf = static.detach().expand(self.examples, *static.shape).requires_grad_()
            self._add(key, Whole(names, partial(getattr, module, name), static, leaf, pullback))
        return self._by_value[key]

    def _parameters(self, module: nn.Module, name: str) -> tuple[str, ...]:
        """The parameters behind a reparametrised tensor: the raw one, then further ones."""
        chain = module.parametrizations[name]  # type: ignore[index]
        behind = [chain.original, *chain[0].parameters()]  # type: ignore[union-attr]
        if any(id(p) not in self._names for p in behind):
            raise NotCompiled("a reparametrised weight is partly frozen")
        return tuple(self._names[id(p)] for p in behind)

    def _behind(
        self, module: nn.Module, name: str, value: Tensor
    ) -> tuple[tuple[str, ...], Pullback | None]:
        """The parameters behind a layer's tensor, and the pullback of gradients to them."""
        if id(value) in self._names:
            return (self._names[id(value)],), None
        step = _step(module, name)
        if not isinstance(step, Reparametrisation):
            raise NotCompiled(f"the {name} of a {kind_of(module).__name__} has no closed pullback")
        raw = module.parametrizations[name].original  # type: ignore[index, union-attr]

        def pullback(gradient: Tensor) -> tuple[Tensor, ...]:
            if isinstance(step, FilterStandardisation):
                # Filters are in channels_last memory format: iterate over them in that order.
                own, *rest = step.pullback(
                    raw.detach().permute(0, 2, 3, 1), gradient.permute(0, 1, 3, 4, 2)
                )
                return own.permute(0, 1, 4, 2, 3), *rest
            return step.pullback(raw.detach(), gradient)

        return self._parameters(module, name), pullback


_SLOW = (nn.Embedding,)
"""Layers with a rule that the compiled pass does not use because it would be slow."""

_NARROW = (torch.bfloat16, torch.float16)


def convolutions(
    objective: Objective, calls: dict[nn.Module, torch.Size]
) -> dict[nn.Module, tuple[Convolution, tuple[int, ...]]]:
    """The convolutions that the operators can take, and the shapes of their outputs.

    Args:
        objective: The model and its views.
        calls: Output shape of each layer for one row, for layers called once.
    """
    named = {module: name for name, module, _ in assign(objective.model)}
    found: dict[nn.Module, tuple[Convolution, tuple[int, ...]]] = {}
    for module, shape in calls.items():
        if module not in named or kind_of(module) is not nn.Conv2d:
            continue
        assert isinstance(module, nn.Conv2d)
        step = _step(module, "weight")
        known = not parametrize.is_parametrized(module, "weight") or isinstance(
            step, FilterStandardisation
        )
        at = geometry_of(module, objective.views)
        if not known or at is None or not module.weight.requires_grad:
            continue
        positions = shape[2] * shape[3]
        layer = Convolution(named[module], at, module.in_channels, module.out_channels, positions)
        found[module] = layer, tuple(shape)
    return found


def _step(module: nn.Module, name: str) -> Any:
    """The one parametrisation of a tensor, or None."""
    if not parametrize.is_parametrized(module, name):
        return None
    steps = list(module.parametrizations[name])  # type: ignore[index]
    return steps[0] if len(steps) == 1 else None


def _free(device: torch.device) -> int:
    """A quarter of the memory that is free."""
    if device.type != "cuda":
        return 1 << 30
    return int(torch.cuda.mem_get_info(device)[0]) // 4


def _static(value: Tensor, dtype: torch.dtype) -> Tensor:
    """A channels-last copy in the compute precision, which later values are copied to."""
    copy = value.detach().to(dtype, copy=True)
    return (
        copy.contiguous(memory_format=torch.channels_last) if copy.dim() == 4 else copy.contiguous()
    )
