"""Per-example gradients in one pass over a model, operator by operator.

A model is run once on a few rows to find its contacts: the operators in which a trained parameter
meets the batch (see `contacts`). In every later pass these operators run by rules that tie
per-example leaves into the graph (see `operator_rules`). What depends on parameters alone, such as
a parametrised weight, is differentiated once: the gradient is taken of the weight and mapped to the
parameters by its own derivative. Modules with contacts that no rule knows run one example at a time
under `torch.func.vmap`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from sfumato.memory import out_of_memory
from sfumato.privacy.engines.book_keeping import conv_pays, product_pays
from sfumato.privacy.engines.collecting import run_with_leaves
from sfumato.privacy.engines.contact_rule import Met
from sfumato.privacy.engines.contacts import Contact, Weight, find_contacts, reached_parameters
from sfumato.privacy.engines.derivations import Derivation, derivation_of
from sfumato.privacy.engines.engine import Engine
from sfumato.privacy.engines.keyed_draws import DRAWINGS, KeyedDraws
from sfumato.privacy.engines.leaves import Leaves, NotPerOperator
from sfumato.privacy.engines.objective import Objective
from sfumato.privacy.engines.operator_rules import RULES, products_of
from sfumato.privacy.engines.paths import Path, kind_of
from sfumato.privacy.engines.recorded_calls import (
    OPENED,
    Key,
    Nth,
    Numbers,
    Opening,
    Recording,
    flat,
)
from sfumato.privacy.engines.recurrent_rules import LAYER_DRAWINGS
from sfumato.privacy.engines.results import Gradients
from sfumato.privacy.engines.vectorised import by_vmap


@dataclass
class Program:
    """The contacts of a model for one shape of inputs.

    Attributes:
        contacts: The contacts by key.
        deferred: For contacts some of whose weights' gradients are not materialised, by their keys,
            the positions of these weights.
        opaque: Modules that run under `torch.func.vmap`, by name.
        derivations: For weights that are no parameters themselves, by their numbers, the functions
            from parameters; None where they are not known.
    """

    contacts: dict[Key, Contact]
    deferred: dict[Key, frozenset[int]]
    opaque: dict[str, nn.Module]
    derivations: dict[int, Derivation | None]


class Operators(Engine):
    """Per-example gradients by a rule for each operator, in one forward and one backward pass.

    Args:
        objective: The model, its loss and its views.
        book_keeping: Store inputs and output gradients instead of weight gradients where that is
            cheaper, on a CPU; see `book_keeping`.
    """

    name = "operators"

    def __init__(self, objective: Objective, *, book_keeping: bool = True) -> None:
        super().__init__(objective)
        self.book_keeping = book_keeping
        self._programs: dict[object, Program] = {}

    def on(self, objective: Objective) -> Self:
        """The same engine, with the same contacts, for a copy of the model."""
        other = type(self)(objective, book_keeping=self.book_keeping)
        for key, program in self._programs.items():
            opaque = {name: objective.model.get_submodule(name) for name in program.opaque}
            other._programs[key] = replace(program, opaque=opaque)
        return other

    def paths(self) -> list[Path]:
        """The path of each module that owns trained parameters, by the last program."""
        program = next(reversed(self._programs.values()), None)
        model = self.objective.model
        found: dict[str, Path] = {}
        direct = {
            weight.name
            for contact in (program.contacts.values() if program else ())
            for weight in contact.weights
        }
        for name, parameter in self.objective.trainable.items():
            owner, module = owner_of(model, name)
            opaque = program is not None and _within(name, program.opaque)
            path = "torch.func" if opaque else "rule"
            if program and not opaque and name not in direct:
                path = "reparametrised"
            before = found.get(owner)
            count = parameter.numel() + (before.parameters if before else 0)
            path = before.path if before and before.path != "rule" else path
            found[owner] = Path(owner or "(whole model)", kind_of(module).__name__, path, count)
        return list(found.values())

    def keeps_books(self, x: Tensor) -> bool:
        """Tell whether the gradients of some operator are not materialised for such inputs."""
        try:
            return bool(self.program(x).deferred)
        except Exception as error:  # What is wrong is said where gradients are compared.
            if out_of_memory(error):
                raise
            return False

    def program(self, x: Tensor, names: tuple[str, ...] | None = None) -> Program:
        """The contacts of the model for inputs like these, found by running it once.

        Args:
            x: Inputs like those to come.
            names: Names of the parameters trained now; looked up if None.

        Raises:
            NotPerOperator: A parameter of the model itself meets the batch in an operator that has
                no rule.
        """
        names = tuple(self.objective.trainable) if names is None else names
        state = tuple(module.training for module in self.objective.model.modules())
        key = tuple(x.shape[1:]), x.is_floating_point(), x.device, names, state
        if key not in self._programs:
            self._programs[key] = self._found(x)
        return self._programs[key]

    def gradients(
        self,
        x: Tensor,
        y: Tensor,
        keys: Tensor | None = None,
        parameters: dict[str, nn.Parameter] | None = None,
    ) -> Gradients:
        """Per-example gradients in one pass, operator by operator.

        Args:
            x: `(examples * views, ...)` inputs.
            y: `(examples,)` targets.
            keys: Keys of the rows' random numbers (see `keyed_draws`); PyTorch's own generators if
                None.
            parameters: The parameters trained now; looked up if None.

        Raises:
            NotPerOperator: The model uses a parameter in a way that the rules cannot follow.
        """
        parameters = self.objective.trainable if parameters is None else parameters
        program = self.program(x, tuple(parameters))
        draws = None if keys is None else KeyedDraws(keys)
        trained = {id(p): p for p in parameters.values()}
        leaves = Leaves(y.shape[0], self.objective.views, trained, draws)
        taps = {module: by_vmap(name, module, leaves) for name, module in program.opaque.items()}
        names = {id(p): name for name, p in parameters.items()}
        deferred = program.deferred if _exact(x) else {}
        with ContactMode(program.contacts, leaves, names, deferred) as mode:
            return run_with_leaves(
                self.objective, x, y, parameters, leaves, taps, mode.forward_ended
            )

    def _found(self, x: Tensor) -> Program:
        model = self.objective.model
        opaque: dict[str, nn.Module] = {}
        while True:
            contacts, found, recording = find_contacts(model, x, RULES, set(opaque.values()))
            others = {name: calls for name, calls in found.items() if not _within(name, opaque)}
            more = dict(owner_of(model, name) for name in others)
            if not more:
                break
            if "" in more:
                name = next(iter(others))
                where = ", ".join(sorted(others[name])) or "an operator that is not seen"
                raise NotPerOperator(f"parameter '{name}' meets the batch in {where}")
            opaque.update(more)
        trained, deferred = self.objective.trainable, dict[Key, frozenset[int]]()
        if self.book_keeping and x.device.type == "cpu":
            deferred = _deferred(contacts, recording, trained, self.objective.views)
        ids = {id(p): name for name, p in trained.items()}
        derivations = {
            weight.number: derivation_of(weight.number, recording, ids)
            for contact in contacts
            for weight in contact.weights
            if weight.name is None
        }
        return Program({c.key: c for c in contacts}, deferred, opaque, derivations)


def _exact(x: Tensor) -> bool:
    """Tell whether deferred gradients are as precise as the pass."""
    wide = x.dtype in (torch.float32, torch.float64)
    return wide and not torch.is_autocast_enabled(x.device.type)


def owner_of(model: nn.Module, parameter: str) -> tuple[str, nn.Module]:
    """The name and the module that a parameter belongs to, which a list or dictionary is not."""
    name = parameter.split(".parametrizations.")[0] if ".parametrizations." in parameter else None
    if parameter.startswith("parametrizations."):
        name = ""
    if name is None:
        name = parameter.rpartition(".")[0]
    modules = dict(model.named_modules())
    while isinstance(modules[name], nn.ParameterList | nn.ParameterDict):
        name = name.rpartition(".")[0]
    return name, modules[name]


def _within(parameter: str, modules: Iterable[str]) -> bool:
    """Tell whether a parameter belongs to one of these modules, or to a part of it."""
    return any(parameter.startswith(f"{name}.") for name in modules)


def _deferred(
    contacts: Iterable[Contact],
    recording: Recording,
    parameters: dict[str, nn.Parameter],
    views: int,
) -> dict[Key, frozenset[int]]:
    """The positions of weights whose gradients are cheaper to defer, by the keys of contacts."""
    uses: dict[str, list[tuple[Contact, Weight]]] = {}
    for contact in contacts:
        for weight in contact.weights:
            for name in weight.parameters:
                uses.setdefault(name, []).append((contact, weight))
    found: dict[Key, frozenset[int]] = {}
    for name, own in uses.items():
        alone = name in parameters and all(weight.name == name for _, weight in own)
        if alone and _pays(parameters[name], own, recording, views):
            for contact, weight in own:
                found[contact.key] = found.get(contact.key, frozenset()) | {weight.position}
    return found


def _pays(
    weight: nn.Parameter, uses: list[tuple[Contact, Weight]], recording: Recording, views: int
) -> bool:
    """Tell whether deferring the gradients of a parameter is cheaper, in all of its uses."""
    contact, at = uses[0][0], uses[0][1].position
    if len(uses) == 1 and at == 1 and contact.function is F.conv2d and contact.place.leads:
        grouped = contact.input_shape[1] != weight.shape[1]
        length = views * contact.place.each * contact.output_shape[2] * contact.output_shape[3]
        return not grouped and conv_pays(weight, length)
    vectors, arrangements = 0, set()
    for contact, own in uses:
        args, kwargs = tree_map_only(Nth, lambda n: recording.tensors[n.number], contact.given)
        products = products_of(contact, contact.function, args, kwargs)
        product = next((p for p in products if p.at[1] == own.position), None)
        if product is None:
            return False
        sizes = product.equation.sizes(tuple(weight.shape))
        vectors += views * product.batch.numel() // (2 * sizes[0] * sizes[2])
        arrangements.add(product.equation.arrangement)
    return len(arrangements) == 1 and product_pays(sizes, vectors, len(uses))


class ContactMode(Opening):
    """The mode under which a model runs: contacts run by their rules.

    Args:
        contacts: The model's contacts.
        leaves: The leaves of the pass.
        names: Names of the trained parameters by identity.
        deferred: By the keys of contacts, positions of weights whose gradients are not
            materialised.

    Attributes:
        left: Keys of the contacts that have not occurred yet.
    """

    def __init__(
        self,
        contacts: dict[Key, Contact],
        leaves: Leaves,
        names: dict[int, str],
        deferred: Mapping[Key, frozenset[int]] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self.leaves, self.left = leaves, set(contacts)
        self._deferred = deferred
        self._names, self._numbers = names, Numbers(names)
        self._contacts = contacts
        self._alike = Counter(key[:2] for key in contacts)

    def forward_ended(self) -> None:
        """Count anew: operators within a checkpoint run again in the backward pass.

        Among its calls only those with parameters are known.

        Raises:
            NotPerOperator: A call was left out, so that others had its number.
        """
        if any(self._alike[key[:2]] > 1 for key in self.left):
            raise NotPerOperator("the model calls operators otherwise than it did at first")
        self._numbers = Numbers(self._names)
        self._contacts = {key: c for key, c in self._contacts.items() if key[1]}

    def ruled(self, contact: Contact, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run a contact by its rule."""
        met = Met(contact, self.leaves, self._deferred.get(contact.key, frozenset()))
        return RULES[func](met, func, args, kwargs)

    def plain(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operator in which no trained parameter meets the batch."""
        draws, drawing = self.leaves.draws, DRAWINGS.get(func) or LAYER_DRAWINGS.get(func)
        if draws is not None and drawing is not None:
            drawn = drawing(draws, func, args, kwargs)
            if drawn is not None:
                return drawn
        return func(*args, **kwargs)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in RULES:
            opened = func in OPENED
            return (self.opened if opened else self.plain)(func, args, kwargs)
        given = list(flat(args, kwargs))
        contact = self._contacts.get(self._numbers.key(func, given))
        if contact is None:
            return self.plain(func, args, kwargs)
        if not self._fits(contact, given):
            raise NotPerOperator("the model calls operators otherwise than it did at first")
        self.left.discard(contact.key)
        return self.ruled(contact, func, args, kwargs)

    def _fits(self, contact: Contact, given: list[Any]) -> bool:
        """Tell whether the rows of a call lie where its contact had them."""
        if contact.source is None:
            return True
        rows = given[contact.source] if contact.source < len(given) else None
        return (
            isinstance(rows, Tensor)
            and rows.dim() == len(contact.input_shape)
            and rows.shape[contact.place.dim] == self.leaves.rows * contact.place.each
            and all(weight.position < len(given) for weight in contact.weights)
            and all(self.is_weight(weight, given[weight.position]) for weight in contact.weights)
        )

    def is_weight(self, weight: Weight, given: Any) -> bool:
        """Tell whether an argument of a call is the weight that its contact had there."""
        if weight.name is not None:
            return True  # The name is part of the key.
        same = isinstance(given, Tensor) and given.shape == weight.shape
        return same and reached_parameters(given, self._names) == weight.reached
