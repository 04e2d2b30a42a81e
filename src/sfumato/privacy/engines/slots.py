"""The slots of a model: what the compiled pass stores for each of its weights.

A weight is a parameter that meets the batch, or a tensor that is computed from parameters and meets
the batch. Every weight has a slot (see `stored_gradients`), as the planner chose. Weights that are
computed from the same parameter share a slot, so that every parameter has one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils import parametrize

from sfumato import kernels
from sfumato.kernels.definitions import Geometry, padded
from sfumato.nn.reparametrisation import (
    FilterStandardisation,
    LinearExpansion,
    Reparametrisation,
)
from sfumato.privacy.engines.contact_rule import named
from sfumato.privacy.engines.contacts import Contact, Weight
from sfumato.privacy.engines.convolution_rules import CONVOLUTION, zero_padding
from sfumato.privacy.engines.objective import Objective
from sfumato.privacy.engines.operators import Operators, Program, owner_of
from sfumato.privacy.engines.recorded_calls import Key
from sfumato.privacy.engines.storage_plan import Convolution, Storage, by_outputs, plan, room
from sfumato.privacy.engines.stored_gradients import Derived, Filters, Matrix, Slot, Whole, zeros


class NotCompiled(Exception):
    """The model has a part that the compiled pass does not know."""


Uses = list[tuple[Contact, Weight]]


class Slots:
    """The slots of all weights for one physical batch size.

    Args:
        objective: The model and its views.
        x: Inputs like those to come; the first is used for its shape.
        examples: The physical batch size.
        dtype: Precision of the pass.
        storage: Store this for all weights that can, instead of what the planner chooses.
        memory: Bytes that stored gradients may take. If None, a quarter of what is free, and no
            more than `sfumato.privacy.engines.storage_plan.room` leaves them.

    Attributes:
        program: The model's contacts.
        slots: All slots.
        at: By a contact and the position of an argument, its slot and the number of its leaf.
        vectorised: The slots of parameters of modules that run under `torch.func.vmap`, by name.
        storage: The storage chosen for filters and matrices, by the names of the modules that own
            them.
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
        self.program = Operators(objective, book_keeping=False).program(x)
        self.slots: list[Slot] = []
        self.at: dict[tuple[Key, int], tuple[Slot, int]] = {}
        self.vectorised: dict[str, Whole] = {}
        self._parameters = objective.trainable
        self._kernels = storage is not None or (
            kernels.AVAILABLE and x.is_cuda and dtype in (torch.bfloat16, torch.float16)
        )
        self._planned = convolutions(self.program, objective) if self._kernels else {}
        if memory is None:
            memory = _free(x.device)
            if self._kernels:
                memory = min(memory, room(objective.model, x[:1], examples * objective.views))
        layers = list(self._planned.values())
        self.storage = plan(layers, examples, memory=memory)
        if storage is not None:
            chosen = {layer.name: storage for layer in layers if storage in layer.possible()}
            self.storage.update(chosen)
        uses = uses_of(self.program)
        for numbers in _sharing(uses):
            self._add({number: uses[number] for number in numbers})
        for name in self._parameters:
            if any(name.startswith(f"{module}.") for module in self.program.opaque):
                self.vectorised[name] = self._whole(name)
                self.slots.append(self.vectorised[name])

    def refresh(self) -> None:
        """Copy the parameters' current values to the addresses that the pass reads."""
        for slot in self.slots:
            slot.refresh()

    def _add(self, uses: dict[int, Uses]) -> None:
        """Add the slot of weights that are computed from the same parameters."""
        (number, own), *others = uses.items()
        slot = (None if others else self._slot(number, own)) or self._derived(uses)
        self.slots.append(slot)
        for leaf, found in enumerate(uses.values()):
            for contact, weight in found:
                self.at[contact.key, weight.position] = slot, leaf

    def _slot(self, number: int, uses: Uses) -> Slot | None:
        """The slot of one weight, or None for one that is differentiated by its derivation."""
        contact, weight = uses[0]
        layer = self._planned.get(number)
        if weight.name is not None:
            if layer is not None:
                return self._filters(weight.name, contact, layer)
            if self._kernels and len(uses) == 1 and contact.function is F.linear:
                return self._matrix(weight, contact) or self._whole(weight.name)
            return self._whole(weight.name)
        if self._is_reshaped(weight):
            return self._whole(weight.parameters[0], weight.shape)
        if (found := parametrisation(self.objective, weight)) is None:
            return None
        raw, step, names = found
        if layer is not None and isinstance(step, FilterStandardisation):
            return self._standardised(raw, step, names, contact, layer)
        value = static(step(raw), self.dtype)

        def read() -> list[Tensor]:
            return [step(raw)]

        if isinstance(step, LinearExpansion):
            # The weight is a linear expansion of fewer numbers: take the gradients of those.
            def pull(gradient: Tensor) -> tuple[Tensor, ...]:
                return (step.pullback_expanded(raw.detach(), gradient),)

            leaf = zeros(value, self.examples, *raw.shape)
            return Derived(names, read, [value], [leaf], pull, step.expand)
        return Derived(names, read, [value], [self._leaf(value)], partial(_pulled, step, raw))

    def _whole(self, name: str, shape: tuple[int, ...] | None = None) -> Whole:
        """The slot of a parameter, or of a parameter in another shape."""
        parameter = self._parameters[name]

        def read() -> Tensor:
            return parameter if shape is None else parameter.reshape(shape)

        value = static(read(), self.dtype)
        return Whole((name,), read, value, self._leaf(value))

    def _is_reshaped(self, weight: Weight) -> bool:
        """Tell whether a weight is a parameter in another shape, by trying random numbers."""
        derivation = self.program.derivations[weight.number]
        if derivation is None or len(weight.parameters) > 1:
            return False
        (name,) = weight.parameters
        like = self._parameters[name].detach()
        if like.numel() != torch.Size(weight.shape).numel():
            return False
        generator = torch.Generator().manual_seed(1)
        drawn = torch.randn(like.shape, generator=generator).to(like)
        # An absolute value or a bound leaves some numbers as they are: try both signs, and sizes.
        probes = [factor * drawn for factor in (1, -1, 1000, -1000)]
        return all(torch.equal(derivation(p).flatten(), p.flatten()) for p in probes)

    def _leaf(self, value: Tensor) -> Tensor:
        return value.detach().expand(self.examples, *value.shape).requires_grad_()

    def _matrix(self, weight: Weight, contact: Contact) -> Matrix | None:
        """The slot of a matrix on vectors if their output gradients are stored instead."""
        views = self.objective.views
        alone = weight.position == 1 and contact.place.leads and contact.place.each == 1
        if not alone or len(contact.input_shape) != 2:
            return None
        outputs, inputs = weight.shape
        if not by_outputs(inputs, outputs, views):
            return None
        assert weight.name is not None
        parameter = self._parameters[weight.name]
        value = static(parameter, self.dtype)
        leaf = zeros(value, self.examples * views, outputs)
        return Matrix((weight.name,), lambda: parameter, value, leaf, views)

    def _filters(self, name: str, contact: Contact, layer: Convolution) -> Filters:
        """The slot of filters, or of a matrix on several vectors, by the kernels."""
        parameter = self._parameters[name]
        value = static(parameter, self.dtype)
        return Filters(
            (name,), lambda: parameter, value, self.storage[layer.name], layer.at, self.examples,
            self._output(contact, layer, value), None, None,
        )  # fmt: skip

    def _standardised(
        self,
        raw: Tensor,
        step: FilterStandardisation,
        names: tuple[str, ...],
        contact: Contact,
        layer: Convolution,
    ) -> Filters:
        """The slot of standardised filters; with ghost norms, the gain has one of its own."""
        storage = self.storage[layer.name]
        ghost = storage == "ghost"
        read: Callable[[], Tensor] = partial(step.bare if ghost else step, raw)
        value = static(read(), self.dtype)
        slot = Filters(
            names[:1] if ghost else names, read, value, storage, layer.at, self.examples,
            self._output(contact, layer, value), step, raw,
        )  # fmt: skip
        if ghost and step.gain is not None:
            slot.gain = self._whole(names[1])
            self.slots.append(slot.gain)
        return slot

    def _output(self, contact: Contact, layer: Convolution, value: Tensor) -> tuple[int, ...]:
        """The shape of an operator's result for the physical batch, rows first."""
        if value.dim() == 2:
            return self.examples * layer.positions, value.shape[0]
        return self.examples * layer.at.views, *contact.output_shape[1:]

    def _derived(self, uses: dict[int, Uses]) -> Derived:
        """The slot of weights whose derivations are differentiated by PyTorch."""
        weights = {number: found[0][1] for number, found in uses.items()}
        names = tuple(sorted({name for w in weights.values() for name in w.parameters}))
        parameters = [self._parameters[name] for name in names]
        derivations = [self._derivation(weight) for weight in weights.values()]

        def derive(*values: Tensor) -> tuple[Tensor, ...]:
            given = dict(zip(names, values, strict=True))
            return tuple(d(*(given[name] for name in own)) for own, d in derivations)

        def read() -> list[Tensor]:
            with torch.no_grad():
                return list(derive(*parameters))

        def pull(*gradients: Tensor) -> tuple[Tensor, ...]:
            back = torch.func.vjp(derive, *(p.detach() for p in parameters))[1]
            found: tuple[Tensor, ...] = torch.func.vmap(back)(gradients)
            return found

        values = [static(value, self.dtype) for value in read()]
        return Derived(names, read, values, [self._leaf(value) for value in values], pull)

    def _derivation(self, weight: Weight) -> tuple[tuple[str, ...], Callable[..., Tensor]]:
        """The parameters behind a weight, and the weight as a function of them."""
        if weight.name is not None:
            return (weight.name,), lambda value: value
        found = self.program.derivations[weight.number]
        if found is None:
            behind = ", ".join(weight.parameters)
            raise NotCompiled(f"a weight is computed from {behind} in a way that is not seen")
        return found.names, found


def uses_of(program: Program) -> dict[int, Uses]:
    """The contacts of each weight, by its number."""
    found: dict[int, Uses] = defaultdict(list)
    for contact in program.contacts.values():
        for weight in contact.weights:
            found[weight.number].append((contact, weight))
    return found


def _sharing(uses: dict[int, Uses]) -> list[list[int]]:
    """Weights grouped so that no parameter is behind two groups."""
    groups: list[tuple[set[str], list[int]]] = []
    for number, found in uses.items():
        behind, numbers = set(found[0][1].parameters), [number]
        apart = []
        for names, others in groups:
            if names & behind:
                behind, numbers = names | behind, [*others, *numbers]
            else:
                apart.append((names, others))
        groups = [*apart, (behind, numbers)]
    return [numbers for _, numbers in groups]


def parametrisation(
    objective: Objective, weight: Weight
) -> tuple[Tensor, Any, tuple[str, ...]] | None:
    """The raw parameter, the closed form and the parameters of a parametrised weight.

    None where the weight is computed otherwise than by one parametrisation of closed form.
    """
    raw = next((name for name in weight.parameters if name.endswith(".original")), None)
    if raw is None:
        return None
    _, module = owner_of(objective.model, raw)
    tensor = raw.rpartition("parametrizations.")[2].partition(".")[0]
    if not parametrize.is_parametrized(module, tensor):
        return None
    chain: Any = module.parametrizations[tensor]  # type: ignore[index]
    step: Any = chain[0]
    if len(chain) != 1 or not isinstance(step, Reparametrisation):
        return None
    names = {id(p): name for name, p in objective.trainable.items()}
    own = tuple(names.get(id(p), "") for p in (chain.original, *chain.parameters()))
    same = tuple(getattr(module, tensor).shape) == weight.shape
    if set(own) != set(weight.parameters) or not same:
        return None
    return chain.original, step, tuple(dict.fromkeys(own))


def convolutions(program: Program, objective: Objective) -> dict[int, Convolution]:
    """The convolutions, and products with matrices, that the kernels can take, by their weights.

    Args:
        program: The model's contacts.
        objective: The model and its views.
    """
    found: dict[int, Convolution] = {}
    for uses in uses_of(program).values():
        contact, weight = uses[0]
        if len(uses) > 1 or weight.position != 1:
            continue
        if (at := _geometry(contact, weight, objective.views)) is None:
            continue
        if weight.name is None:
            known = parametrisation(objective, weight)
            if known is None or not isinstance(known[1], FilterStandardisation):
                continue
        name = weight.parameters[0].split(".parametrizations.weight")[0].removesuffix(".weight")
        outputs, inputs = weight.shape[:2]
        positions = torch.Size(contact.output_shape).numel() // (2 * outputs)
        positions = positions // contact.place.each if len(weight.shape) == 4 else positions
        if len(weight.shape) == 2:
            positions *= objective.views
        found[weight.number] = Convolution(name, at, inputs, outputs, positions)
    shared = [n for numbers in _sharing(uses_of(program)) if len(numbers) > 1 for n in numbers]
    return {number: layer for number, layer in found.items() if number not in shared}


def _geometry(contact: Contact, weight: Weight, views: int) -> Geometry | None:
    """The geometry of an ungrouped convolution, or of a product of a matrix and several vectors."""
    if contact.function is F.linear and len(weight.shape) == 2:
        several = len(contact.input_shape) > 2 or contact.place.each > 1
        if not several or padded(weight.shape[1]) != weight.shape[1]:
            return None
        return Geometry((1, 1), (1, 1), (0, 0), (1, 1), 1)
    if contact.function is not F.conv2d or len(contact.input_shape) != 4:
        return None
    args, kwargs = contact.given
    own = named(CONVOLUTION, args, kwargs)
    if own.get("groups", 1) != 1 or contact.place.dim != 0:
        return None
    settings = zero_padding(
        own.get("stride", 1), own.get("padding", 0), own.get("dilation", 1), weight.shape[2:]
    )
    if settings is None:
        return None
    stride, padding, dilation = settings
    kernel = weight.shape[2], weight.shape[3]
    return Geometry(kernel, stride, padding, dilation, views * contact.place.each)


def _pulled(step: Any, raw: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
    """Gradients of a parametrised weight as gradients of the parameters."""
    if isinstance(step, FilterStandardisation):
        # Filters are in channels_last memory format: iterate over them in that order.
        own, *rest = step.pullback(
            raw.detach().permute(0, 2, 3, 1), gradient.permute(0, 1, 3, 4, 2)
        )
        return own.permute(0, 1, 4, 2, 3), *rest
    found: tuple[Tensor, ...] = step.pullback(raw.detach(), gradient)
    return found


def _free(device: torch.device) -> int:
    """A quarter of the memory that is free."""
    if device.type != "cuda":
        return 1 << 30
    return int(torch.cuda.mem_get_info(device)[0]) // 4


def static(value: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy of a tensor, which later values are copied to, in channels_last if it has filters.

    Numbers that are not floating-point keep their type.
    """
    dtype = dtype if value.is_floating_point() else value.dtype
    copy = value.detach().to(dtype, copy=True)
    return (
        copy.contiguous(memory_format=torch.channels_last) if copy.dim() == 4 else copy.contiguous()
    )
