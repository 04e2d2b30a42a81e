"""The forward pass that is compiled: a model's contacts run by rules that fill slots.

The model runs as it does in the pass by operators, under the same mode and with the same rules,
but on copies of its parameters in the precision of the pass, at fixed addresses. Convolutions,
products with matrices and group norms have rules of their own, which the kernels serve.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.privacy.engines import compiled_rules
from sfumato.privacy.engines.contact_rule import Met, Rule, named
from sfumato.privacy.engines.contacts import Contact, Weight
from sfumato.privacy.engines.convolution_rules import CONVOLUTION
from sfumato.privacy.engines.keyed_draws import KeyedDraws
from sfumato.privacy.engines.leaves import Leaves
from sfumato.privacy.engines.operator_rules import RULES
from sfumato.privacy.engines.operators import ContactMode
from sfumato.privacy.engines.paths import tapped
from sfumato.privacy.engines.recorded_calls import flat
from sfumato.privacy.engines.recurrent_rules import LAYERS, steps_of
from sfumato.privacy.engines.slots import NotCompiled, Slots, static
from sfumato.privacy.engines.stored_gradients import Derived, Filters, Matrix, Slot
from sfumato.privacy.engines.vectorised import by_vmap


class Forward:
    """A model's forward pass as a function of tensors alone.

    Args:
        slots: The slots of the model's weights.
    """

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self.with_input = [slot for slot in slots.slots if slot.needs_input]
        self._copies: dict[int, tuple[Tensor, Tensor]] = {}
        model, trained = slots.objective.model, slots.objective.trainable
        direct = dict(_values(slots))
        for name, parameter in trained.items():
            value = direct.get(name)
            self._copies[id(parameter)] = parameter, parameter if value is None else value
        self._others = []
        for tensor in (*model.parameters(), *model.buffers()):
            if id(tensor) not in self._copies:
                self._copies[id(tensor)] = tensor, static(tensor, slots.dtype)
                self._others.append(self._copies[id(tensor)])
        self._names = {id(p): name for name, p in trained.items()}

    def tensors(self) -> list[Tensor]:
        """All tensors that the pass reads, at fixed addresses, leaves among them."""
        every = [copy for _, copy in self._copies.values()]
        for slot in self.slots.slots:
            every += slot.leaves()
            every += slot.values if isinstance(slot, Derived) else [slot.value]
            if isinstance(slot, Filters):
                every += [t for t in (slot.directions, slot.factors) if t is not None]
        return list({id(t): t for t in every}.values())

    def refresh(self) -> None:
        """Copy the current values of parameters and buffers to these addresses."""
        self.slots.refresh()
        for tensor, copy in self._others:
            copy.copy_(tensor)

    def run(
        self, x: Tensor, keys: Tensor | None, given: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Outputs, and the inputs that slots need, in the order of `with_input`.

        Args:
            x: Inputs.
            keys: The rows' keys for random numbers, if the model draws any.
            given: The tensors in whose place `tensors` stand while the pass is traced.
        """
        model, program = self.slots.objective.model, self.slots.program
        now = dict(zip(map(id, self.tensors()), given, strict=True))
        swaps = {key: now[id(copy)] for key, (_, copy) in self._copies.items()}
        names = {id(t): self._names[key] for key, t in swaps.items() if key in self._names}
        leaves = SlotLeaves(self.slots, now, names, None if keys is None else KeyedDraws(keys))
        taps = {module: by_vmap(name, module, leaves) for name, module in program.opaque.items()}
        mode = _CompiledMode(program.contacts, leaves, names)
        with _swapped(model, swaps), tapped(taps), mode:
            outputs = model(x)
        if mode.left:
            raise NotCompiled("the model calls operators otherwise than it did at first")
        return outputs, [leaves.inputs[id(slot)] for slot in self.with_input]


def _values(slots: Slots) -> Iterator[tuple[str, Tensor]]:
    """The names of parameters that are weights themselves, and their values at fixed addresses."""
    for contact in slots.program.contacts.values():
        for weight in contact.weights:
            slot, leaf = slots.at[contact.key, weight.position]
            if weight.name is not None:
                yield weight.name, slot.values[leaf] if isinstance(slot, Derived) else slot.value
    for name, slot in slots.vectorised.items():
        yield name, slot.value


@contextmanager
def _swapped(model: nn.Module, tensors: dict[int, Tensor]) -> Iterator[None]:
    """Put other tensors in the place of a model's parameters and buffers, given by identity.

    Recurrent layers also hold their weights in a list, which they renew when they see other ones,
    and arrange in memory on a GPU, which tensors without data do not allow.
    """
    stores: list[dict[str, Any]] = [
        store for m in model.modules() for store in (m._parameters, m._buffers)
    ]
    before = [dict(store) for store in stores]
    recurrent = [(m, dict(vars(m))) for m in model.modules() if isinstance(m, nn.RNNBase)]
    try:
        for module, _ in recurrent:
            vars(module)["flatten_parameters"] = lambda: None
        for store in stores:
            for key, tensor in store.items():
                store[key] = tensors.get(id(tensor), tensor)
        yield
    finally:
        for store, own in zip(stores, before, strict=True):
            store.update(own)
        for module, held in recurrent:
            vars(module).clear()
            vars(module).update(held)


class SlotLeaves(Leaves):
    """The leaves and values of slots in one trace of the pass.

    Args:
        slots: The slots.
        now: The tensors of this trace, by the identity of those at fixed addresses.
        names: The names of the parameters' tensors in this trace, by identity.
        draws: The random numbers of this trace.

    Attributes:
        inputs: The inputs that slots need, by the identity of the slot.
    """

    def __init__(
        self,
        slots: Slots,
        now: dict[int, Tensor],
        names: dict[int, str],
        draws: KeyedDraws | None = None,
    ) -> None:
        super().__init__(slots.examples, slots.objective.views, {}, draws)
        self.inputs: dict[int, Tensor] = {}
        self._slots, self._now, self._names = slots, now, names
        self._met: dict[int, tuple[Slot, int]] = {}

    def meet(self, contact: Contact, given: list[Any]) -> None:
        """Tell which slots the arguments of a contact have."""
        at = self._slots.at
        self._met = {
            id(given[weight.position]): at[contact.key, weight.position]
            for weight in contact.weights
        }

    def now(self, tensor: Tensor | None) -> Tensor | None:
        """The tensor of this trace in the place of one at a fixed address."""
        return None if tensor is None else self._now[id(tensor)]

    def slot(self, tensor: Tensor | None) -> Slot | None:
        """The slot of an argument, or None where it is not trained."""
        return self._met[id(tensor)][0] if id(tensor) in self._met else None

    def of(self, tensor: Tensor | None) -> Tensor | None:
        """The leaf that receives the gradients of an argument."""
        if tensor is None:
            return None
        if id(tensor) not in self._met:
            whole = self._slots.vectorised.get(self._names.get(id(tensor), ""))
            return None if whole is None else self.now(whole.leaf)
        slot, number = self._met[id(tensor)]
        leaf = self.now(slot.leaves()[number])
        if isinstance(slot, Derived) and slot.expand is not None and leaf is not None:
            return slot.expand(leaf)
        return leaf

    def needed(self, slot: Slot, x: Tensor) -> None:
        """Note the input that a slot needs, as a result of the pass without a gradient."""
        self.inputs[id(slot)] = x.detach()

    def value(self, tensor: Tensor) -> Tensor:
        """The value of an argument in the precision of the pass."""
        slot, number = self._met.get(id(tensor), (None, 0))
        if slot is None:
            return tensor
        value = self.now(slot.values[number] if isinstance(slot, Derived) else slot.value)
        assert value is not None
        return value


class _CompiledMode(ContactMode):
    """The mode of the compiled pass: some operators have rules of their own."""

    def is_weight(self, weight: Weight, given: Any) -> bool:
        """Tell whether an argument is a weight: calls are in order, since none depends on data."""
        return True

    def plain(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operator in which no trained parameter meets the batch."""
        if func is F.mish and not any((*args[1:], *kwargs.values())):
            return compiled_rules.mish(args[0])
        if func is F.group_norm:
            own = named(_GROUP_NORM, args, kwargs)
            given = own["input"], own.get("weight"), own.get("bias"), None, None
            return compiled_rules.group_norm(*given, own["num_groups"], own.get("eps", 1e-5), 1)
        return super().plain(func, args, kwargs)

    def ruled(self, contact: Contact, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run a contact by its rule."""
        assert isinstance(self.leaves, SlotLeaves)
        self.leaves.meet(contact, list(flat(args, kwargs)))
        met = Met(contact, self.leaves)
        return _OWN.get(func, RULES[func])(met, func, args, kwargs)


_GROUP_NORM = ("input", "num_groups", "weight", "bias", "eps")


def _leaves(met: Met) -> SlotLeaves:
    assert isinstance(met.leaves, SlotLeaves)
    return met.leaves


def _filters(met: Met, slot: Filters, bias: Tensor | None) -> compiled_rules.FilterLeaves:
    """The tensors of this trace that belong to a slot of filters."""
    leaves = _leaves(met)
    factors = leaves.now(slot.factors) if slot.storage == "ghost" else None
    weight = leaves.now(slot.value)
    assert weight is not None
    within = slot.gain is None and bias is not None
    return compiled_rules.FilterLeaves(
        weight,
        leaves.value(bias) if within and bias is not None else None,
        leaves.of(bias) if within else None,
        slot.geometry,
        leaves.now(slot.directions) if slot.storage != "ghost" else None,
        None if factors is None else factors[0],
        leaves.now(slot.gradient),
        leaves.now(slot.statistics),
        leaves.now(slot.ghost),
        leaves.now(slot.output),
    )


def _convolution(met: Met, function: Rule, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """A convolution whose filters' gradients the kernels compute."""
    own, leaves = named(CONVOLUTION, args, kwargs), _leaves(met)
    slot, bias = leaves.slot(own["weight"]), own.get("bias")
    if not isinstance(slot, Filters):
        y: Tensor = RULES[function](met, function, args, kwargs)
        return y
    x = met.contact.place.leading(own["input"], leaves.rows)
    if slot.needs_input:
        leaves.needed(slot, x)
    y = compiled_rules.filters(_filters(met, slot, bias), x)
    if slot.gain is not None:
        y = y * _per_channel(leaves.now(slot.gain.leaf), y)
        if bias is not None:
            shift = leaves.of(bias)
            y = y + _per_channel(leaves.value(bias).unsqueeze(0) if shift is None else shift, y)
    return met.contact.output.back(y, leaves.rows)


def _per_channel(leaf: Tensor | None, y: Tensor) -> Tensor:
    """A leaf `(examples, channels)`, arranged to broadcast over `(rows, channels, H, W)`."""
    assert leaf is not None
    own = leaf[:, :, None, None]
    return own if len(own) == 1 else own.repeat_interleave(y.shape[0] // len(own), 0)


def _linear(met: Met, function: Rule, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """A product with a matrix whose gradients, or whose output gradients, are stored."""
    own, leaves = named(("input", "weight", "bias"), args, kwargs), _leaves(met)
    slot, bias = leaves.slot(own["weight"]), own.get("bias")
    if not isinstance(slot, Filters | Matrix):
        y: Tensor = RULES[function](met, function, args, kwargs)
        return y
    leading = met.contact.place.leading(own["input"], leaves.rows)
    x = leading.reshape(-1, leading.shape[-1])
    if slot.needs_input:
        leaves.needed(slot, x)
    if isinstance(slot, Matrix):
        value, leaf = leaves.now(slot.value), leaves.now(slot.leaf)
        assert value is not None and leaf is not None
        shift = None if bias is None else leaves.value(bias)
        y = compiled_rules.linear(x, value, shift, leaves.of(bias), leaf, slot.views)
    else:
        y = compiled_rules.projection(_filters(met, slot, bias), x, leaves.examples)
    return met.contact.output.back(y.view(*leading.shape[:-1], y.shape[-1]), leaves.rows)


def _group_norm(met: Met, function: Rule, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """A group norm with sums over spatial positions alone."""
    own, leaves = named(_GROUP_NORM, args, kwargs), met.leaves
    weight, bias = own.get("weight"), own.get("bias")
    if not met.contact.place.leads:
        y: Tensor = RULES[function](met, function, args, kwargs)
        return y
    return compiled_rules.group_norm(
        own["input"],
        None if weight is None else leaves.value(weight),
        None if bias is None else leaves.value(bias),
        leaves.of(weight), leaves.of(bias), own["num_groups"], own.get("eps", 1e-5), met.copies,
    )  # fmt: skip


_MOST_STEPS = 32
"""Time steps of a recurrent layer. The graph has operators of its own for each of them: tracing
takes 0.07 s a step on one core, and generating the code of 28 steps 70 s on two."""


def _recurrent(met: Met, function: Rule, args: Any, kwargs: dict[str, Any]) -> Any:
    """A recurrent layer with few time steps."""
    if (steps := steps_of(args, kwargs)) > _MOST_STEPS:
        raise NotCompiled(f"a recurrent layer with {steps} time steps takes too long to compile")
    return RULES[function](met, function, args, kwargs)


_OWN: dict[Any, Rule] = {
    F.conv2d: _convolution,
    F.linear: _linear,
    F.group_norm: _group_norm,
    **dict.fromkeys(LAYERS, _recurrent),
}
"""Rules of the compiled pass; other operators have those of the pass by operators."""
