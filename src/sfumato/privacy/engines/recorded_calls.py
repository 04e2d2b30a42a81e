"""The calls of PyTorch in one run of a model, with the tensors that occur in them."""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from sfumato.privacy.engines.row_place import Place
from sfumato.privacy.numerics.model_state import seed

OPENED = (F.multi_head_attention_forward, torch.autograd.grad)
"""Functions in Python that call operators themselves, or run a checkpoint again."""


Key = tuple[Callable[..., Any], tuple[str, ...], int]


class Numbers:
    """Numbers of calls among those of the same function with the same parameters.

    Args:
        names: Names of the trained parameters by identity.
    """

    def __init__(self, names: dict[int, str]) -> None:
        self._names = names
        self._calls: Counter[Any] = Counter()

    def key(self, function: Callable[..., Any], given: Iterable[Any]) -> Key:
        """The key of the next call of a function with these arguments."""
        own = tuple(name for t in given if (name := self._names.get(id(t))) is not None)
        self._calls[function, own] += 1
        return function, own, self._calls[function, own]


@dataclass(frozen=True)
class Nth:
    """A tensor of a recording, by its number."""

    number: int


Given = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass
class Call:
    """A recorded call: the function, its tensors by index, and whether its number counts."""

    function: Callable[..., Any]
    inputs: list[tuple[int, int]]
    outputs: list[int]
    number: int | None
    given: Given = field(compare=False)


@dataclass
class Recording:
    """All calls of one run, with the tensors that occur in them."""

    calls: list[Call] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    index: dict[int, int] = field(default_factory=dict)
    results: list[Tensor] = field(default_factory=list)

    def of(self, tensor: Tensor) -> int:
        """The index of a tensor, which is kept, so that no other has its identity."""
        if id(tensor) not in self.index:
            self.index[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
            self.shapes.append(tuple(tensor.shape))
        return self.index[id(tensor)]


def flat(args: Iterable[Any], kwargs: dict[str, Any]) -> Iterator[Any]:
    """Arguments in order, with one level of lists and tuples opened.

    A list of one tensor several times counts as one: there may be as many as the batch has rows.
    """
    for value in (*args, *kwargs.values()):
        if isinstance(value, list | tuple):
            alike = len(value) > 1 and isinstance(value[0], Tensor)
            alike = alike and all(t is value[0] for t in value)
            yield from value[:1] if alike else value
        else:
            yield value


class Opening(TorchFunctionMode):
    """A mode that also sees the calls inside functions that are written in Python."""

    def opened(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a function under this mode."""
        with self:
            return _without_dispatch(function)(*args, **kwargs)


@cache
def _without_dispatch(function: Any) -> Callable[..., Any]:
    """The same function, which does not hand itself to a mode first."""
    no = {name: (lambda *_: False) for name in function.__globals__ if "has_torch_function" in name}
    copy = types.FunctionType(
        function.__code__, {**function.__globals__, **no}, function.__name__,
        function.__defaults__, function.__closure__,
    )  # fmt: skip
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


@dataclass(frozen=True)
class Change:
    """Other values in the last row of the result of a call.

    Attributes:
        place: The place of rows in the result.
        like: The position of an argument, the dimension of its rows and its values without a
            change, where indices that belong to the last row are those that changed in it; None
            where each row has one index.
    """

    place: Place
    like: tuple[int, int, Tensor] | None = None

    def of(self, result: Any, given: list[Any]) -> Any:
        """The result of the call with these arguments, changed if it is a tensor of numbers."""
        if not isinstance(result, Tensor) or not result.is_floating_point():
            return result
        other = result.clone()
        rows = other.movedim(self.place.dim, 0)
        if self.like is None:
            rows[-1] += 1
            return other
        at, dim, before = self.like
        if given[at].shape == before.shape:
            moved = (given[at] != before).movedim(dim, 0).reshape(len(rows), -1).any(1)
            index = torch.arange(len(rows), device=rows.device)
            last = index // self.place.each == 2, index % 3 == 2
            # What is changed in place later is compared with other values here.
            if any(bool((moved <= own).all()) for own in last):
                rows[moved] += 1
        return other


class _Recorder(Opening):
    def __init__(
        self, counted: Container[Any], names: dict[int, str], changed: dict[int, Change]
    ) -> None:
        super().__init__()
        self.counted, self.numbers, self.found = counted, Numbers(names), Recording()
        self._changed = changed

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in OPENED:
            return self.opened(func, args, kwargs)
        given = list(flat(args, kwargs))
        inputs = [(k, self.found.of(t)) for k, t in enumerate(given) if isinstance(t, Tensor)]
        template = tree_map_only(Tensor, lambda t: Nth(self.found.of(t)), (tuple(args), kwargs))
        number = self.numbers.key(func, given)[2] if func in self.counted else None
        result = func(*args, **kwargs)
        change = self._changed.get(len(self.found.calls))
        if change is not None and not any(result is t for t in given):
            result = change.of(result, given)
        outputs = [t for t in flat((result,), {}) if isinstance(t, Tensor)]
        if func is Tensor.__setitem__:
            outputs = [args[0]]
        if outputs:
            own = [self.found.of(t) for t in outputs]
            self.found.calls.append(Call(func, inputs, own, number, template))
        return result


def recorded(
    model: nn.Module,
    x: Tensor,
    counted: Container[Any],
    opaque: Container[nn.Module],
    names: dict[int, str],
    *,
    changed: dict[int, Change] | None = None,
) -> Recording:
    """The calls of a run of a model.

    Args:
        model: The model.
        x: Its input.
        counted: Functions whose calls are numbered.
        opaque: Modules whose own calls are not looked at.
        names: Names of the trained parameters by identity.
        changed: Changes of the results of some calls, by their numbers.
    """
    recorder = _Recorder(counted, names, changed or {})
    recorder.found.of(x)
    seed(model)
    with torch.enable_grad(), _closed([m for m in model.modules() if m in opaque]), recorder:
        result = model(x)
    recorder.found.results = [t for t in flat((result,), {}) if isinstance(t, Tensor)]
    return recorder.found


@contextmanager
def _closed(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Run some modules outside of every mode."""

    def forward(module: nn.Module) -> Callable[..., Any]:
        own = module.forward

        def run(*args: Any, **kwargs: Any) -> Any:
            with torch._C.DisableTorchFunction():
                return own(*args, **kwargs)

        return run

    before = {module: module.__dict__.get("forward") for module in modules}
    for module in before:
        module.__dict__["forward"] = forward(module)
    try:
        yield
    finally:
        for module, own in before.items():
            del module.__dict__["forward"]
            if own is not None:
                module.__dict__["forward"] = own
