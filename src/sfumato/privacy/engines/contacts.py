"""The contacts of a model: operators in which a trained parameter meets the batch.

A model is run on two and on three rows while every call of PyTorch is recorded. A tensor whose
shape grows with the rows belongs to the batch, and so does what is computed from it. A tensor that
is computed from parameters alone is a *weight*. A call in which a weight meets the batch is a
contact, wherever in the code it happens and whichever module owns the parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from sfumato.privacy.engines.leaves import NotPerOperator
from sfumato.privacy.engines.recorded_calls import Change, Given, Key, Recording, recorded
from sfumato.privacy.engines.row_place import Place, locate
from sfumato.privacy.numerics.model_state import undisturbed


@dataclass(frozen=True)
class Weight:
    """An argument of a contact that is computed from parameters alone.

    Attributes:
        position: Its position among the arguments.
        name: The parameter's name, or None for a tensor that is computed from parameters.
        number: Its number among the tensors of the recording.
        parameters: The parameters behind it.
        reached: Those of them that it has a gradient with respect to.
        shape: Its shape.
    """

    position: int
    name: str | None
    number: int
    parameters: tuple[str, ...]
    reached: frozenset[str]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Contact:
    """A call in which weights meet the batch.

    Attributes:
        function: The function that is called.
        number: Its number among the calls of this function with the same parameters.
        source: The position of its first argument that belongs to the batch, or None.
        place: The place of rows in that argument, or in the result.
        output: The place of rows in its result.
        weights: The arguments that are weights.
        parameters: The parameters behind the weights.
        input_shape: The shape of that argument for two rows, or of the result.
        output_shape: The shape of the result for two rows.
        call: Its number among all calls.
        given: Positional and named arguments, each tensor as its number (`Nth`).
    """

    function: Callable[..., Any]
    number: int
    source: int | None
    place: Place
    output: Place
    weights: tuple[Weight, ...]
    parameters: tuple[str, ...]
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    call: int
    given: Given = field(default=((), {}), compare=False)

    @property
    def key(self) -> Key:
        """The function, the parameters among its arguments, and the number."""
        return self.function, tuple(w.name for w in self.weights if w.name), self.number


def find_contacts(
    model: nn.Module, x: Tensor, counted: Container[Any], opaque: Container[nn.Module] = ()
) -> tuple[list[Contact], dict[str, set[str]], Recording]:
    """All contacts of a model.

    Args:
        model: The model.
        x: An input of one row or more; its values are not used.
        counted: Functions whose calls are numbered.
        opaque: Modules whose own calls are not looked at.

    Returns:
        The contacts that have a number, and for every parameter of another contact, or of none,
        the names of the functions that it meets the batch in; and the calls for two rows.

    Raises:
        NotPerOperator: The calls depend on the number of rows.
    """
    names = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
    with undisturbed(model):
        # A model may create constants in its first call.
        model(_inputs(x, 2))
        two, three = (recorded(model, _inputs(x, rows), counted, opaque, names) for rows in (2, 3))
        contacts, others = _classified(names, two, three)
        if any(c.place.each > 1 or c.output.each > 1 for c in contacts):
            # A learned query is the same in every row: its rows are told apart by the change too.
            # So are those of a weight of zeros, whose products are the same in every row.
            changes = {c.call: found for c in contacts if (found := _change(c, three)) is not None}
            inputs = _inputs(x, 3, change=True)
            changed = recorded(model, inputs, counted, opaque, names, changed=changes)
            _check_same_calls(three, changed)
            contacts = [_ordered(contact, three, changed) for contact in contacts]
    return contacts, others, two


def _inputs(x: Tensor, rows: int, *, change: bool = False) -> Tensor:
    """Rows of pseudo-random numbers; with `change`, the last is another one."""
    shape = (rows, *x.shape[1:])
    if not x.is_floating_point():
        made = x.new_zeros(shape)
        if change:
            made[-1] = 1
        return made
    generator = torch.Generator().manual_seed(1)
    made = torch.rand(shape, generator=generator).to(x)
    if change:
        made[-1] = torch.rand(shape[1:], generator=generator).to(x) - 1
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
        made = made.contiguous(memory_format=torch.channels_last)
    return made


def _classified(
    names: dict[int, str], two: Recording, three: Recording
) -> tuple[list[Contact], dict[str, set[str]]]:
    """The contacts of two runs that made the same calls."""
    _check_same_calls(two, three)
    places = [
        locate(a, b) if len(a) == len(b) and a != b else None
        for a, b in zip(two.shapes, three.shapes, strict=True)
    ]
    batch = [place is not None for place in places]
    batch[0] = True
    behind: dict[int, frozenset[str]] = {}
    for t, tensor in enumerate(two.tensors):
        if id(tensor) in names:
            behind[t] = frozenset([names[id(tensor)]])
    made: set[int] = set()
    contacts: list[Contact] = []
    others: dict[str, set[str]] = {name: set() for name in names.values()}
    for k, call in enumerate(two.calls):
        for _, t in call.inputs:
            if t not in behind and not batch[t] and t not in made:
                behind[t] = reached_parameters(two.tensors[t], names)
        made.update(call.outputs)
        weights = [(at, t) for at, t in call.inputs if behind.get(t) and not batch[t]]
        rows = [(at, t) for at, t in call.inputs if places[t] is not None]
        grown = next((t for t in call.outputs if places[t] is not None), None)
        if not weights:
            continue
        roots = frozenset().union(*(behind[t] for _, t in weights))
        if grown is None and not rows:
            for t in call.outputs:
                behind[t] = behind.get(t, frozenset()) | roots
            continue
        for t in call.outputs:
            batch[t] = True
        results = [two.tensors[t] for t in call.outputs]
        if not any(t.is_floating_point() or t.is_complex() for t in results):
            continue  # Truth values and indices have no gradient.
        if call.number is None or grown is None:
            for name in roots:
                others[name].add(getattr(call.function, "__name__", str(call.function)))
            continue
        at, source = rows[0] if rows else (None, grown)
        place, output = places[source], places[grown]
        assert place is not None and output is not None
        own = tuple(_weight(two, names, at, t, behind[t]) for at, t in weights)
        behind_it = tuple(sorted(roots))
        shapes = two.shapes[source], two.shapes[grown]
        found = Contact(
            call.function, call.number, at, place, output, own, behind_it, *shapes, k, call.given
        )
        contacts.append(found)
    touched = {name for contact in contacts for name in contact.parameters}
    used = touched.union(*(reached_parameters(t, names) for t in two.results))
    return contacts, {
        name: found for name, found in others.items() if found or name in used - touched
    }


def _weight(
    run: Recording, names: dict[int, str], at: int, t: int, behind: frozenset[str]
) -> Weight:
    tensor = run.tensors[t]
    reached = reached_parameters(tensor, names)
    return Weight(at, names.get(id(tensor)), t, tuple(sorted(behind)), reached, run.shapes[t])


def _check_same_calls(first: Recording, second: Recording) -> None:
    """Raise `NotPerOperator` unless two runs made the same calls on the same tensors."""
    if first.calls != second.calls:
        raise NotPerOperator("the model calls other operators for other inputs")


def reached_parameters(tensor: Tensor, names: dict[int, str]) -> frozenset[str]:
    """The parameters that a tensor has a gradient with respect to."""
    found, left, seen = set(), [tensor.grad_fn], set()
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if (name := names.get(id(getattr(node, "variable", None)))) is not None:
            found.add(name)
        left += [following for following, _ in node.next_functions]
    return frozenset(found)


def _ordered(contact: Contact, run: Recording, changed: Recording) -> Contact:
    """The contact with the order of indices that belong to one row, seen by changing a row."""
    a, b = run.calls[contact.call], changed.calls[contact.call]
    at = next(k for k, t in enumerate(a.outputs) if _grown(run.shapes[t], contact.output))
    output = _order(contact.output, run.tensors[a.outputs[at]], changed.tensors[b.outputs[at]])
    if contact.source is None:
        return replace(contact, place=output, output=output)
    before, after = dict(a.inputs)[contact.source], dict(b.inputs)[contact.source]
    place = _order(contact.place, run.tensors[before], changed.tensors[after])
    return replace(contact, place=place, output=output)


def _change(contact: Contact, run: Recording) -> Change | None:
    """Other values in the last row of a contact's result, wherever its indices lie."""
    place, output = contact.place, contact.output
    if output.each == 1:
        return Change(output)
    if contact.source is None or place.each != output.each:
        return None
    before = run.tensors[dict(run.calls[contact.call].inputs)[contact.source]]
    return Change(output, (contact.source, place.dim, before.detach()))


def _grown(shape: tuple[int, ...], place: Place) -> bool:
    return len(shape) > place.dim and shape[place.dim] == 3 * place.each


def _order(place: Place, first: Tensor, second: Tensor) -> Place:
    """The place, interleaved if a change of the last of three rows shows it."""
    if place.each == 1:
        return place
    if first.shape != second.shape:
        raise NotPerOperator("the shape of a tensor depends on the values in the batch")
    moved = (first != second).movedim(place.dim, 0).reshape(3 * place.each, -1).any(1)
    index = torch.arange(3 * place.each, device=moved.device)
    if bool((moved <= (index // place.each == 2)).all()):
        return place
    if not bool((moved <= (index % 3 == 2)).all()):
        raise NotPerOperator("a row of the batch lies scattered in a tensor")
    return replace(place, interleaved=True)
