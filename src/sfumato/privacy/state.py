"""What a model keeps between calls, and how to run it without leaving a trace."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

PROBE_SEED = 20220408

_TORCH_S_OWN = frozenset(vars(nn.Module()))


@dataclass
class _Slot:
    """One thing that a module holds: where, the object itself, and a copy of its value."""

    holder: dict[str, Any]
    key: str
    held: Any
    value: Any


class Snapshot:
    """The state of a model: parameters, buffers, and tensors and numbers in plain attributes."""

    def __init__(self, model: nn.Module) -> None:
        self._slots: dict[str, _Slot] = {}
        for path, module in model.named_modules():
            own = {k: v for k, v in vars(module).items() if k not in _TORCH_S_OWN}
            if type(module).__module__.startswith("torch.nn.modules"):
                own = {k: v for k, v in own.items() if isinstance(v, Tensor)}
            for holder, held in (
                (module._parameters, module._parameters),
                (module._buffers, module._buffers),
                (vars(module), own),
            ):
                for key, value in held.items():
                    if _is_plain(value):
                        name = f"{path}.{key}" if path else key
                        self._slots[name] = _Slot(holder, key, value, _copied(value))

    def put_back(self) -> None:
        """Give the model this state again, in the very same tensors."""
        with torch.no_grad():
            for slot in self._slots.values():
                if isinstance(slot.held, Tensor):
                    if not _same(slot.held, slot.value):
                        slot.held.copy_(slot.value)
                    slot.holder[slot.key] = slot.held
                elif not _same(slot.holder.get(slot.key), slot.value):
                    slot.holder[slot.key] = _copied(slot.value)

    def first_difference(self, other: Snapshot) -> str | None:
        """The name of something that the two states do not share, or None."""
        for name in (*self._slots, *other._slots):
            mine, theirs = self._slots.get(name), other._slots.get(name)
            if mine is None or theirs is None or not _same(mine.value, theirs.value):
                return name
        return None


def _is_plain(value: object) -> bool:
    if isinstance(value, Tensor | int | float):
        return True
    if isinstance(value, list | tuple | dict):
        return all(isinstance(leaf, Tensor | int | float) for leaf in tree_flatten(value)[0])
    return False


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    return tree_map(_copied, value) if isinstance(value, list | tuple | dict) else value


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())
    if isinstance(a, list | tuple | dict) and type(a) is type(b):
        (leaves_a, spec_a), (leaves_b, spec_b) = tree_flatten(a), tree_flatten(b)
        return spec_a == spec_b and all(map(_same, leaves_a, leaves_b))
    same: bool = type(a) is type(b) and (a == b or (a != a and b != b))
    return same


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


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Put the model's state and the global random states back afterwards."""
    before, python, numpy = Snapshot(model), random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=_devices(model)):
        try:
            yield
        finally:
            before.put_back()
            random.setstate(python)
            np.random.set_state(numpy)


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
