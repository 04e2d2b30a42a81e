"""Everything that objects hold, however deep: values to compare and to restore."""

from __future__ import annotations

import functools
import random
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sfumato.privacy.numerics.equality import same

_MOST = 20_000
"""Most objects that are visited, those nearest to the start of the search first."""

_SCALARS = (type(None), int, float, complex, str, bytes, np.generic, torch.dtype, torch.device)

_PASSED_OVER = frozenset(
    {
        "builtins", "torch", "sfumato", "numpy", "logging", "threading", "_thread", "weakref",
        "_weakref", "queue", "_queue", "multiprocessing", "concurrent", "asyncio", "subprocess",
        "importlib", "tqdm",
    }
)  # fmt: skip
"""Packages whose objects keep nothing of the data by themselves, or belong to other threads."""

_TORCH_S_OWN = frozenset(vars(nn.Module()))

_ITSELF = "itself"

_Restore = Callable[[], None]


@dataclass(frozen=True)
class _Alias:
    """An object that was visited before, under another name."""

    name: str


@dataclass(frozen=True)
class _Composite:
    """The kind of an object that holds others, and their names."""

    kind: type
    names: tuple[str, ...]


class ObjectGraph:
    """Everything that can be reached from some objects, each visited once.

    Visits modules with their parameters, buffers and attributes, containers, objects of classes
    outside the packages above with `__dict__` or `__slots__`, these classes, and the closures,
    defaults and bound objects of functions. Random number generators are restored, but not
    compared: a draw moves them whatever the data are.

    Args:
        like: An earlier graph of the same objects, whose copies of unchanged tensors are shared.

    Attributes:
        values: A copy of each value by its name.
        parameters: The names of parameters.
    """

    def __init__(self, like: ObjectGraph | None = None) -> None:
        self._like = {} if like is None else like._tensors
        self._tensors: dict[str, tuple[Tensor, Tensor]] = {}
        self.values: dict[str, Any] = {}
        self.parameters: list[str] = []
        self._generators: dict[str, Any] = {}
        self._restores: list[_Restore] = []
        self._met: dict[int, tuple[str, Any]] = {}
        self._waiting: deque[tuple[str, Any]] = deque()

    def add(self, name: str, value: Any) -> None:
        """Add an object and everything it holds."""
        self._waiting.append((name, value))
        while self._waiting:
            self._visit(*self._waiting.popleft())

    def restore(self, now: ObjectGraph | None = None) -> None:
        """Restore the values of all objects, in the very same objects.

        Args:
            now: The graph of the present state, if it is known: a tensor whose copy it shares with
                this one has not changed.
        """
        with torch.no_grad():
            for restore in self._restores:
                restore()
            for name, (held, copy) in self._tensors.items():
                shared = now is not None and now.values.get(name) is copy
                if not shared and not same(held, copy):
                    _overwrite(held, copy)

    def same_draws(self, other: ObjectGraph) -> bool:
        """Tell whether no random number generator has moved between the two."""
        return same(list(self._generators.values()), list(other._generators.values()))

    def first_difference(self, other: ObjectGraph) -> str | None:
        """The name of a value that the two do not share, or None."""
        if list(self.values) != list(other.values):
            for name in (*self.values, *other.values):
                if name not in self.values or name not in other.values:
                    return name or _ITSELF
        pairs = ((name, value, other.values[name]) for name, value in self.values.items())
        found = (name or _ITSELF for name, mine, theirs in pairs if not same(mine, theirs))
        return next(found, None)

    def _visit(self, name: str, value: Any) -> None:
        while name in self.values:  # An attribute may have any name, also one like 'a.b'.
            name += "'"
        if isinstance(value, _SCALARS):
            self.values[name] = value
            return
        if isinstance(value, tuple) and all(isinstance(v, _SCALARS) for v in value):
            self.values[name] = tuple(value)
            return
        if id(value) in self._met:
            self.values[name] = _Alias(self._met[id(value)][0])
            return
        if len(self._met) >= _MOST:
            return
        self._met[id(value)] = name, value
        if isinstance(value, Tensor):
            self._tensor(name, value)
        elif isinstance(value, np.ndarray):
            self._array(name, value)
        elif (state := _generator_state(value)) is not None:
            read, write = state
            before = read()
            self.values[name], self._generators[name] = type(value), before
            self._restores.append(lambda: write(before))
        elif isinstance(value, list | tuple | deque | dict | set | frozenset | bytearray):
            self._container(name, value)
        elif isinstance(value, nn.Module):
            self._module(name, value)
        elif isinstance(value, type):
            self._class(name, value)
        else:
            self._object(name, value)

    def _tensor(self, name: str, value: Tensor) -> None:
        if isinstance(value, nn.Parameter):
            self.parameters.append(name)
        held, copy = self._like.get(name, (None, None))
        if held is not value or copy is None or not same(value, copy):
            copy = value.detach().clone()
        self.values[name], self._tensors[name] = copy, (value, copy)

    def _array(self, name: str, value: np.ndarray[Any, Any]) -> None:
        copy = value.copy()
        self._restores.append(lambda: None if same(value, copy) else np.copyto(value, copy))
        if value.dtype.hasobject:
            self._hold(name, value, [(f"[{i}]", v) for i, v in enumerate(value.ravel().tolist())])
        else:
            self.values[name] = copy

    def _container(self, name: str, value: Any) -> None:
        if isinstance(value, dict):
            base: Any = OrderedDict if isinstance(value, OrderedDict) else dict
            before = list(base.items(value))
            self._restores.append(lambda: _refill_dict(base, value, before))
            self._hold(name, value, [(_key(i, k), v) for i, (k, v) in enumerate(before)])
        elif isinstance(value, list | deque | tuple):
            held = list(value)
            kind: Any = list if isinstance(value, list) else deque
            if not isinstance(value, tuple):
                self._restores.append(lambda: _refill(kind, value, held))
            if type(value) is list and all(isinstance(v, _SCALARS) for v in held):
                self.values[name] = held
                return
            self._hold(name, value, [(f"[{i}]", v) for i, v in enumerate(held)])
        else:
            copy = self.values[name] = value.copy()
            if isinstance(value, set):
                self._restores.append(lambda: _refill_set(value, copy))
            elif isinstance(value, bytearray):
                self._restores.append(lambda: value.__setitem__(slice(None), copy))
        self._attributes(name, value)

    def _module(self, name: str, module: nn.Module) -> None:
        # A parameter that the model creates in its first call stays, and is trained.
        for holder, stays in ((module._parameters, True), (module._buffers, False)):
            self._dictionary(name, holder, additions_stay=stays)
        self._attributes(name, module)
        self._hold(name, module, [(f".{k}", m) for k, m in module._modules.items()])

    def _object(self, name: str, value: Any) -> None:
        held: list[tuple[str, Any]] = []
        if isinstance(value, types.FunctionType):
            if _package(value.__globals__.get("__name__")) not in _PASSED_OVER:
                held += [(f".{k}", getattr(value, k)) for k in ("__defaults__", "__kwdefaults__")]
                names = value.__code__.co_freevars
                held += [(f".{k}", c) for k, c in zip(names, value.__closure__ or (), strict=False)]
                self._dictionary(name, vars(value))
            elif hasattr(value, "__wrapped__"):
                held = [(".__wrapped__", value.__wrapped__)]
        elif isinstance(value, types.CellType):
            self._cell(name, value)
            return
        elif isinstance(value, types.MethodType):
            held = [("", value.__self__), (".__func__", value.__func__)]
        elif isinstance(value, types.BuiltinMethodType):
            held = [("", value.__self__)]
        elif isinstance(value, functools.partial):
            held = [(".func", value.func), (".args", value.args), (".keywords", value.keywords)]
            self._dictionary(name, vars(value))
        elif isinstance(value, staticmethod | classmethod):
            held = [(".__func__", value.__func__)]
        elif isinstance(value, property):
            held = [(".fget", value.fget)]
        elif _package(type(value).__module__) not in _PASSED_OVER:
            self._attributes(name, value)
        self._hold(name, value, held)

    def _cell(self, name: str, cell: types.CellType) -> None:
        try:
            before = cell.cell_contents
        except ValueError:  # The cell is still empty.
            return

        def restore() -> None:
            cell.cell_contents = before

        self._restores.append(restore)
        self._hold(name, cell, [("", before)])

    def _attributes(self, name: str, value: Any) -> None:
        """Attributes in `__dict__` and `__slots__`, and those of the class."""
        if isinstance(own := getattr(value, "__dict__", None), dict):
            left_out = _TORCH_S_OWN if isinstance(value, nn.Module) else frozenset()
            self._dictionary(name, own, left_out)
        for kind in type(value).__mro__:
            if _package(kind.__module__) in _PASSED_OVER or kind.__module__ == "collections":
                continue
            self._waiting.append((f"{kind.__module__}.{kind.__qualname__}", kind))
            for key, slot in vars(kind).items():
                if isinstance(slot, types.MemberDescriptorType):
                    self._slot(f"{name}.{key}", value, slot)

    def _slot(self, name: str, value: Any, slot: types.MemberDescriptorType) -> None:
        absent = object()

        def read() -> Any:
            try:
                return slot.__get__(value)
            except AttributeError:
                return absent

        def restore() -> None:
            if (now := read()) is not before and before is not absent:
                slot.__set__(value, before)
            elif now is not before:
                slot.__delete__(value)

        before = read()
        self._restores.append(restore)
        if before is not absent:
            self._waiting.append((name, before))

    def _class(self, name: str, kind: type) -> None:
        self.values[name] = kind
        if _package(kind.__module__) in _PASSED_OVER:
            return
        skipped = types.MemberDescriptorType | types.GetSetDescriptorType

        def own() -> dict[str, Any]:
            return {
                k: v
                for k, v in vars(kind).items()
                if not k.startswith("__") and k != "_abc_impl" and not isinstance(v, skipped)
            }

        def restore() -> None:
            now = own()
            for key in now.keys() - before.keys():
                type.__delattr__(kind, key)
            for key, value in before.items():
                if now.get(key) is not value or key not in now:
                    type.__setattr__(kind, key, value)

        before = own()
        self._restores.append(restore)
        self._waiting.extend((f"{name}.{k}", v) for k, v in before.items())

    def _dictionary(
        self, name: str, held: Any, left_out: Iterable[str] = (), *, additions_stay: bool = False
    ) -> None:
        """Add the named entries of a dictionary that may hold other entries too."""
        before = {k: v for k, v in held.items() if k not in left_out}

        def restore() -> None:
            added = [k for k in list(held.keys()) if k not in before and k not in left_out]
            for key in () if additions_stay else added:
                del held[key]
            for key, value in before.items():
                if key not in held or held[key] is not value:
                    held[key] = value

        self._restores.append(restore)
        self._waiting.extend((f"{name}.{k}" if name else str(k), v) for k, v in before.items())

    def _hold(self, name: str, value: Any, held: list[tuple[str, Any]]) -> None:
        self.values[name] = _Composite(type(value), tuple(key for key, _ in held))
        for key, inner in held:
            full = f"{name}{key}" if key else f"{name}()"
            self._waiting.append((full.removeprefix("."), inner))


def _overwrite(held: Tensor, value: Tensor) -> None:
    if held.is_nested or held.shape != value.shape or held.layout != value.layout:
        held.data = value.clone()
    else:
        held.copy_(value)


def _generator_state(value: Any) -> tuple[Callable[[], Any], Callable[[Any], Any]] | None:
    """Reader and writer of the state of a random number generator; None for anything else."""
    if isinstance(value, torch.Generator):
        return lambda: value.get_state().clone(), value.set_state
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return value.getstate, value.setstate
    if isinstance(value, np.random.RandomState):
        return value.get_state, value.set_state
    if isinstance(value, np.random.Generator):
        value = value.bit_generator
    if isinstance(value, np.random.BitGenerator):
        bits: Any = value
        return lambda: bits.state, lambda state: setattr(bits, "state", state)
    return None


def _refill_dict(base: Any, held: Any, before: list[tuple[Any, Any]]) -> None:
    now = list(base.items(held))
    if len(now) != len(before) or any(
        a is not c or b is not d for (a, b), (c, d) in zip(now, before, strict=True)
    ):
        base.clear(held)
        for key, value in before:
            base.__setitem__(held, key, value)


def _refill(base: Any, held: Any, before: list[Any]) -> None:
    if len(held) != len(before) or any(a is not b for a, b in zip(held, before, strict=True)):
        base.clear(held)
        base.extend(held, before)


def _refill_set(held: set[Any], before: set[Any]) -> None:
    if held != before:
        set.clear(held)
        set.update(held, before)


def _key(place: int, key: Any) -> str:
    """The name of an entry: its key, if that says more than a memory address, else its position."""
    plain = isinstance(key, _SCALARS) or (
        isinstance(key, tuple) and all(isinstance(k, _SCALARS) for k in key)
    )
    return f"[{key!r}]" if plain else f"[entry {place}]"


def _package(module: object) -> str:
    return str(module).partition(".")[0]
