"""What a model keeps between calls, and how to run it without leaving a trace."""

from __future__ import annotations

import copy
import pickle
import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

PROBE_SEED = 20220408

_TORCH_S_OWN = frozenset(vars(nn.Module()))

_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)

_DEPTH = 3
"""Objects within objects that are looked into."""


@dataclass
class _Slot:
    """One thing that a module holds: where, the object itself, and a copy of its value."""

    holder: dict[str, Any]
    key: str
    held: Any
    value: Any


@dataclass
class _Extra:
    """Extra state of a module, as `get_extra_state` returns it for the `state_dict`."""

    module: nn.Module
    value: Any
    comparable: Any


class Snapshot:
    """The state of modules: everything that could carry data from one call to the next.

    Parameters and buffers by value, tensors, arrays, numbers and text in plain attributes and in
    objects that these hold, extra state, and which hooks are registered.
    """

    def __init__(self, *models: nn.Module) -> None:
        self._slots: dict[str, _Slot] = {}
        self._extra: dict[str, _Extra] = {}
        self._hooks: dict[str, tuple[dict[int, Any], dict[int, Any]]] = {}
        for model in models:
            for path, module in model.named_modules():
                self._take(f"{path}." if path else "", module)

    def _take(self, prefix: str, module: nn.Module) -> None:
        own = {k: v for k, v in vars(module).items() if k not in _TORCH_S_OWN}
        if type(module).__module__.startswith("torch.nn.modules"):
            own = {k: v for k, v in own.items() if isinstance(v, Tensor)}
        for holder in (module._parameters, module._buffers):
            self._keep(prefix, holder, holder, 0)
        self._keep(prefix, vars(module), own, _DEPTH)
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            state = module.get_extra_state()
            name = f"{prefix}get_extra_state()"
            self._extra[name] = _Extra(module, copy.deepcopy(state), _comparable(state))
        for kind in _HOOKS:
            hooks = getattr(module, kind)
            self._hooks[f"{prefix}{kind}"] = hooks, dict(hooks)

    def _keep(self, prefix: str, holder: dict[str, Any], held: dict[str, Any], depth: int) -> None:
        for key, value in held.items():
            if _is_plain(value):
                self._slots[f"{prefix}{key}"] = _Slot(holder, key, value, _copied(value))
            elif depth and _is_object(value):
                self._keep(f"{prefix}{key}.", vars(value), vars(value), depth - 1)

    def put_back(self) -> None:
        """Give the modules this state again, in the very same tensors, without later hooks."""
        with torch.no_grad():
            for slot in self._slots.values():
                if isinstance(slot.held, Tensor | np.ndarray):
                    if not _same(slot.held, slot.value):
                        _overwrite(slot.held, slot.value)
                    slot.holder[slot.key] = slot.held
                elif not _same(slot.holder.get(slot.key), slot.value):
                    slot.holder[slot.key] = _copied(slot.value)
        for extra in self._extra.values():
            if not _same(_comparable(extra.module.get_extra_state()), extra.comparable):
                extra.module.set_extra_state(copy.deepcopy(extra.value))
        for hooks, before in self._hooks.values():
            for key in [key for key in hooks if key not in before]:
                del hooks[key]

    def same_parameters(self, other: Snapshot) -> bool:
        """Tell whether the parameters have the same values in both."""
        return all(
            name in other._slots and _same(slot.value, other._slots[name].value)
            for name, slot in self._slots.items()
            if isinstance(slot.held, nn.Parameter)
        )

    def first_difference(self, other: Snapshot) -> str | None:
        """The name of something that the two states do not share, or None."""
        for name in (*self._slots, *other._slots):
            mine, theirs = self._slots.get(name), other._slots.get(name)
            if mine is None or theirs is None or not _same(mine.value, theirs.value):
                return name
        for name in (*self._extra, *other._extra):
            a, b = self._extra.get(name), other._extra.get(name)
            if a is None or b is None or not _same(a.comparable, b.comparable):
                return name
        for name in (*self._hooks, *other._hooks):
            before, after = (s._hooks.get(name, ({}, {}))[1] for s in (self, other))
            if list(before.values()) != list(after.values()):
                return name
        return None


def hook_keys(model: nn.Module) -> tuple[int, ...]:
    """PyTorch's numbers, each given once, of all hooks on the model's modules and on all modules.

    Two calls return the same if and only if no hook was added or removed between them.
    """
    every = nn.modules.module
    holders: list[dict[int, Any]] = [
        every._global_forward_hooks,
        every._global_forward_pre_hooks,
        every._global_backward_hooks,
        every._global_backward_pre_hooks,
    ]
    holders += [getattr(module, kind) for module in model.modules() for kind in _HOOKS]
    return tuple(key for hooks in holders if hooks for key in hooks)


_PLAIN = (Tensor, np.ndarray, np.generic, int, float, complex, str, bytes, set, frozenset)


def _is_plain(value: object) -> bool:
    if isinstance(value, _PLAIN):
        return True
    return isinstance(value, list | tuple | dict | deque) and not _holds_modules(value)


def _holds_modules(value: Any) -> bool:
    return any(isinstance(leaf, nn.Module) for leaf in tree_flatten(value)[0])


def _is_object(value: object) -> bool:
    """Tell whether this is an object of somebody's own class, with attributes to look at."""
    if isinstance(value, nn.Module | type | ModuleType) or not hasattr(value, "__dict__"):
        return False
    own = type(value).__module__
    return own != "builtins" and not own.startswith(("torch", "functools"))


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray | set):
        return value.copy()
    return tree_map(_copied, value) if isinstance(value, list | tuple | dict | deque) else value


def _overwrite(held: Any, value: Any) -> None:
    if isinstance(held, Tensor):
        if held.shape != value.shape:
            held.data = value.clone()
        else:
            held.copy_(value)
    else:
        held[...] = value


def _comparable(state: Any) -> Any:
    """Extra state as something to compare: itself, or its pickled bytes."""
    leaves = tree_flatten(state)[0]
    if all(leaf is None or isinstance(leaf, _PLAIN) for leaf in leaves):
        return _copied(state)
    try:
        return pickle.dumps(state)
    except Exception:
        return None


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
    if isinstance(a, list | tuple | dict | deque) and type(a) is type(b):
        (leaves_a, spec_a), (leaves_b, spec_b) = tree_flatten(a), tree_flatten(b)
        return spec_a == spec_b and all(map(_same, leaves_a, leaves_b))
    if type(a) is not type(b):
        return False
    if not isinstance(a, _PLAIN):
        return True  # Functions and the like, which may be made anew for each call.
    return bool(a == b or (a != a and b != b))


def _devices(model: nn.Module) -> list[int]:
    tensors = (*model.parameters(), *model.buffers())
    found = {t.device.index for t in tensors if t.device.type == "cuda"}
    return sorted(torch.cuda.current_device() if index is None else index for index in found)


def seed(model: nn.Module, value: int = PROBE_SEED) -> None:
    """Start every random number generator that the model may draw from, and no other, anew."""
    random.seed(value)
    np.random.seed(value % 2**32)
    torch.default_generator.manual_seed(value)
    for index in _devices(model):
        torch.cuda.default_generators[index].manual_seed(value)


class RandomState:
    """The state of every random number generator that the model may draw from."""

    def __init__(self, model: nn.Module) -> None:
        self._python, self._numpy = random.getstate(), np.random.get_state()
        self._torch = torch.get_rng_state()
        self._cuda = {index: torch.cuda.get_rng_state(index) for index in _devices(model)}

    def put_back(self) -> None:
        """Have the generators go on from here."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        torch.set_rng_state(self._torch)
        for index, state in self._cuda.items():
            torch.cuda.set_rng_state(state, index)

    def same(self, other: RandomState) -> bool:
        """Tell whether nothing was drawn between the two."""
        pairs = zip(self._numpy, other._numpy, strict=True)
        return (
            self._python == other._python
            and all(np.array_equal(a, b) for a, b in pairs)
            and torch.equal(self._torch, other._torch)
            and all(torch.equal(state, other._cuda[i]) for i, state in self._cuda.items())
        )


@contextmanager
def undisturbed(model: nn.Module, *others: nn.Module) -> Iterator[None]:
    """Put the state of modules and the global random states back afterwards."""
    before, drawn = Snapshot(model, *others), RandomState(model)
    try:
        yield
    finally:
        before.put_back()
        drawn.put_back()


class Still(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Holds PyTorch's random numbers still, so that a batch and its examples alone see the same.

    Every draw gives a fixed value in its range: 1 for Bernoulli trials (dropout keeps everything),
    one half for uniform and other real numbers, the identity for permutations.
    """

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run an operation; overwrite what it drew."""
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name == "native_dropout":
            kept = 1 / (1 - args[1]) if args[2] is not False and args[1] < 1 else 1.0
            return args[0] * kept, torch.ones_like(args[0], dtype=torch.bool)
        out = func(*args, **kwargs)
        if torch.Tag.nondeterministic_seeded not in func.tags or not isinstance(out, Tensor):
            return out
        if name == "randperm":
            out.copy_(torch.arange(out.numel(), device=out.device))
        elif name.startswith("bernoulli"):
            out.fill_(1)
        elif out.is_floating_point():
            out.fill_(0.5)
        return out
