"""Rules for recurrent layers and cells: LSTM, GRU and the layers with one activation.

PyTorch runs such a layer in one fused function, which returns gradients summed over the batch. Its
rule runs the layer itself: one product with the input weights for all time steps, then the steps
(see `recurrent_gradients`). A cell is a layer of one step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.privacy.engines import recurrent_gradients
from sfumato.privacy.engines.contact_rule import Met, Rule, named
from sfumato.privacy.engines.keyed_draws import DRAWINGS, Drawing, KeyedDraws
from sfumato.privacy.engines.leaves import Leaves, NotPerOperator
from sfumato.privacy.engines.product_rules import Product, of_vectors
from sfumato.privacy.engines.products import LINEAR
from sfumato.privacy.engines.recorded_calls import flat
from sfumato.privacy.engines.row_place import Place

_LAYER = (
    "input", "hx", "params", "has_biases", "num_layers", "dropout", "train", "bidirectional",
    "batch_first",
)  # fmt: skip
"""Names of the arguments of a layer's function, for inputs of one length."""

_CELL = ("input", "hx", "w_ih", "w_hh", "b_ih", "b_hh")

_LSTM, _GRU = (torch.lstm, torch.lstm_cell), (torch.gru, torch.gru_cell)
_RECTIFIED = (torch.rnn_relu, torch.rnn_relu_cell)


@dataclass(frozen=True)
class _Weights:
    """The weights of one layer in one direction."""

    input: Tensor
    hidden: Tensor
    input_bias: Tensor | None = None
    hidden_bias: Tensor | None = None
    projection: Tensor | None = None


def layer(met: Met, function: Rule, args: Any, kwargs: dict[str, Any]) -> tuple[Tensor, ...]:
    """A recurrent layer: any number of layers and directions, on inputs of one length."""
    own, place = _of_one_length(args, kwargs), met.contact.place
    if met.contact.source != 0 or place.dim != (0 if own["batch_first"] else 1):
        raise NotPerOperator("the time steps of a recurrent layer are rows of the batch")
    return _run(met.leaves, place, function, own)


def dropping(
    draws: KeyedDraws, function: Any, args: Any, kwargs: dict[str, Any]
) -> tuple[Tensor, ...] | None:
    """Run frozen recurrent layers with dropout between them, drawn from the keys of the rows.

    None where nothing is dropped, or where the batch does not have the rows.
    """
    try:
        own = _of_one_length(args, kwargs)
    except NotPerOperator:
        return None
    dim = 0 if own["batch_first"] else 1
    each, rest = divmod(own["input"].shape[dim], draws.rows)
    drops = own["train"] and own["dropout"] and own["num_layers"] > 1
    if rest or not drops or any(t.requires_grad for t in own["params"]):
        return None
    return _run(Leaves(draws.rows, 1, {}, draws), Place(dim, each), function, own)


def cell(met: Met, function: Rule, args: Any, kwargs: dict[str, Any]) -> Any:
    """A recurrent cell: two products, and the activations of one step."""
    own, leaves, place = named(_CELL, args, kwargs), met.leaves, met.contact.place
    if met.contact.source != 0 or place.dim != 0 or own["input"].dim() != 2:
        raise NotPerOperator("a recurrent cell is called on something else than a batch")
    several = isinstance(own["hx"], list | tuple)
    given = [place.leading(t, leaves.rows) for t in (own["hx"] if several else (own["hx"],))]
    vectors = place.leading(own["input"], leaves.rows), given[0]
    of_input, of_hidden = (
        of_vectors(
            leaves, x.unsqueeze(1), product.weight, bias, deferred=product.at[1] in met.deferred
        )
        for x, product, bias in zip(
            vectors, cell_products(function, args, kwargs), (own.get("b_ih"), own.get("b_hh")),
            strict=True,
        )
    )  # fmt: skip
    states = _activated(function, of_input, of_hidden, [_like(t, of_input) for t in given])
    found = tuple(place.back(state, leaves.rows) for state in states)
    return found if several else found[0]


def cell_products(function: Any, args: Any, kwargs: dict[str, Any]) -> list[Product]:
    """The products of a recurrent cell: of its input, and of its hidden state."""
    own = named(_CELL, args, kwargs)
    hidden = own["hx"][0] if isinstance(own["hx"], list | tuple) else own["hx"]
    at = [id(t) for t in flat(args, kwargs)]
    return [
        Product(LINEAR, x, weight, (at.index(id(x)), at.index(id(weight))))
        for x, weight in ((own["input"], own["w_ih"]), (hidden, own["w_hh"]))
    ]


def _activated(function: Any, x: Tensor, own: Tensor, states: list[Tensor]) -> tuple[Tensor, ...]:
    """The states after one step, from the contributions of input and hidden state to the gates."""
    if function in _LSTM:
        i, f, g, o = (x + own).chunk(4, 1)
        cell = f.sigmoid() * states[1] + i.sigmoid() * g.tanh()
        return o.sigmoid() * cell.tanh(), cell
    if function in _GRU:
        (r, z, n), (own_r, own_z, own_n) = x.chunk(3, 1), own.chunk(3, 1)
        new = (n + (r + own_r).sigmoid() * own_n).tanh()
        return (torch.lerp(new, states[0], (z + own_z).sigmoid()),)
    return ((x + own).relu() if function in _RECTIFIED else (x + own).tanh(),)


def steps_of(args: Any, kwargs: dict[str, Any]) -> int:
    """The number of time steps of a recurrent layer, in all its layers and directions."""
    own = _of_one_length(args, kwargs)
    layers: int = own["num_layers"] * (2 if own["bidirectional"] else 1)
    steps: int = own["input"].shape[1 if own["batch_first"] else 0]
    return layers * steps


def _of_one_length(args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a layer's function by name."""
    own = named(_LAYER, args, kwargs)
    if set(own) != set(_LAYER) or not isinstance(own["has_biases"], bool):
        raise NotPerOperator("a recurrent layer runs on a packed sequence")
    return own


def _run(leaves: Leaves, place: Place, function: Any, own: dict[str, Any]) -> tuple[Tensor, ...]:
    """Outputs and final states, in the memory format of PyTorch's function: steps first."""
    several, second = isinstance(own["hx"], list | tuple), replace(place, dim=1)
    given = [second.leading(t, leaves.rows) for t in (own["hx"] if several else (own["hx"],))]
    x, ends = place.leading(own["input"], leaves.rows), list[list[Tensor]]()
    weights, directions = _weights(own), 2 if own["bidirectional"] else 1
    for at in range(own["num_layers"]):
        if at and own["train"] and own["dropout"]:
            x = _dropout(leaves.draws, x, own["dropout"])
        outputs = []
        for reverse in range(directions):
            states, used = [t[:, len(ends)] for t in given], next(weights)
            steps = x.flip(1) if reverse else x
            out, *states = _steps(leaves, function, steps, states, used)
            outputs.append(out.flip(0) if reverse else out)
            ends.append(states)
        out = torch.cat(outputs, 2) if directions > 1 else outputs[0]
        x = out.transpose(0, 1)
    y = second.back(x, leaves.rows)
    final = [
        second.back(torch.stack(t).transpose(0, 1), leaves.rows) for t in zip(*ends, strict=True)
    ]
    return y.transpose(0, 1) if own["batch_first"] else y, *final


def _weights(own: dict[str, Any]) -> Iterator[_Weights]:
    """The weights of each layer and direction, in order."""
    every = own["params"]
    number = len(every) // (own["num_layers"] * (2 if own["bidirectional"] else 1))
    for start in range(0, len(every), number):
        weight, hidden, *others = every[start : start + number]
        biases = [others.pop(0), others.pop(0)] if own["has_biases"] else [None, None]
        yield _Weights(weight, hidden, *biases, *others)


def _dropout(draws: KeyedDraws | None, x: Tensor, p: float) -> Tensor:
    """Dropout between layers, on `(sequences, steps, width)`."""
    given = (x, p, True)
    drawn = None if draws is None else DRAWINGS[F.dropout](draws, F.dropout, given, {})
    return F.dropout(*given) if drawn is None else drawn


def _steps(
    leaves: Leaves, function: Any, x: Tensor, states: Sequence[Tensor], used: _Weights
) -> list[Tensor]:
    """One layer in one direction: hidden states of all steps, then the final states.

    Args:
        leaves: The leaves of the pass.
        function: PyTorch's function for the layer, or for its cell.
        x: Inputs `(sequences, steps, width)`.
        states: Initial states.
        used: The weights.
    """
    gates = _gates(leaves, x, used)
    hidden, *cell = (_like(t, gates) for t in states)
    values = [
        None if t is None else _like(leaves.value(t), gates)
        for t in (used.hidden, used.hidden_bias, used.projection)
    ]
    own = [leaves.of(t) for t in (used.hidden, used.hidden_bias, used.projection)]
    if function in _LSTM:
        hs, last = recurrent_gradients.lstm(gates, hidden, *cell, *values, *own, leaves.examples)
        return [hs, hs[-1], last]
    if function in _GRU:
        hs = recurrent_gradients.gru(gates, hidden, *values[:2], *own[:2], leaves.examples)
    else:
        rectified = function in _RECTIFIED
        hs = recurrent_gradients.elman(
            gates, hidden, *values[:2], *own[:2], leaves.examples, rectified
        )
    return [hs, hs[-1]]


def _gates(leaves: Leaves, x: Tensor, used: _Weights) -> Tensor:
    """The contributions of the inputs of all steps to the gates, by one product."""
    flat = x.reshape(-1, 1, x.shape[2])
    y = of_vectors(leaves, flat, used.input, used.input_bias)
    return y.view(*x.shape[:2], -1)


def _like(t: Tensor, gates: Tensor) -> Tensor:
    """A tensor in the precision of the gates, which `torch.autocast` may have chosen."""
    return t.to(gates.dtype)


LAYERS = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
"""PyTorch's functions of recurrent layers."""

CELLS = (torch.lstm_cell, torch.gru_cell, torch.rnn_tanh_cell, torch.rnn_relu_cell)
"""PyTorch's functions of recurrent cells."""

RECURRENT: dict[Any, Rule] = {
    **dict.fromkeys(LAYERS, layer),
    **dict.fromkeys(CELLS, cell),
}
"""The rules of recurrent layers and cells."""

LAYER_DRAWINGS: dict[Any, Drawing] = dict.fromkeys(LAYERS, dropping)
"""Functions of frozen recurrent layers, with dropout between them."""
