"""Weights as functions of the parameters that they are computed from.

A parametrised weight, a table of position biases or a slice of a larger matrix is computed from
parameters by a few operators before it meets the batch. These operators are recorded with all
others, and can be run again on other values of the parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.utils._pytree import tree_map_only

from sfumato.privacy.engines.recorded_calls import Call, Nth, Recording, flat


@dataclass(frozen=True)
class Derivation:
    """A weight as a function of parameters.

    Attributes:
        names: The parameters, in the order of the arguments.
    """

    names: tuple[str, ...]
    _functions: tuple[Callable[..., Any], ...]
    _calls: tuple[Call, ...]
    _known: dict[int, Tensor]
    _arguments: tuple[int, ...]
    _result: int

    def __call__(self, *parameters: Tensor) -> Tensor:
        """The weight for these values of the parameters."""
        known = {**self._known, **dict(zip(self._arguments, parameters, strict=True))}

        def value(nth: Nth) -> Tensor:
            return known[nth.number]

        for function, call in zip(self._functions, self._calls, strict=True):
            args, kwargs = tree_map_only(Nth, value, call.given)
            results = [t for t in flat((function(*args, **kwargs),), {}) if _is_tensor(t)]
            known.update(zip(call.outputs, results, strict=True))
        return known[self._result]


def derivation_of(number: int, recording: Recording, names: dict[int, str]) -> Derivation | None:
    """The derivation of a tensor of a recording.

    Args:
        number: The tensor's number.
        recording: All calls of a run.
        names: Names of the trained parameters by identity.

    Returns:
        None where an operator changes a tensor in place, has a gradient of its own (a
        `torch.autograd.Function`), or was not recorded.
    """
    source: dict[int, int] = {}
    changed: set[int] = set()
    for k, call in enumerate(recording.calls):
        changed.update(t for t in call.outputs if t in source)
        source.update(dict.fromkeys(call.outputs, k))
    needed: set[int] = set()
    known: dict[int, Tensor] = {}
    arguments: dict[int, str] = {}
    left = [number]
    while left:
        t = left.pop()
        tensor = recording.tensors[t]
        if id(tensor) in names:
            arguments[t] = names[id(tensor)]
        elif isinstance(tensor.grad_fn, BackwardCFunction):
            return None
        elif t not in source:
            if tensor.requires_grad:
                return None
            known[t] = tensor
        elif source[t] not in needed:
            call = recording.calls[source[t]]
            inputs = [k for _, k in call.inputs]
            if changed.intersection(call.outputs) or set(call.outputs) & set(inputs):
                return None
            needed.add(source[t])
            left += inputs
    calls = tuple(recording.calls[k] for k in sorted(needed))
    functions = tuple(call.function for call in calls)  # Dynamo 2.11 traces no `call.function()`.
    return Derivation(tuple(arguments.values()), functions, calls, known, tuple(arguments), number)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)
