"""The state that a model keeps between calls: snapshots, and passes that leave no trace."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from sfumato.privacy.numerics.equality import same
from sfumato.privacy.numerics.object_graph import ObjectGraph

PROBE_SEED = 20220408

_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)


@dataclass
class _Extra:
    """Extra state of a module, as `get_extra_state` returns it for the `state_dict`."""

    module: nn.Module
    value: Any
    seen: ObjectGraph


class Snapshot:
    """The state of modules and callables: all that could carry data from one call to the next.

    Parameters and buffers by value, attributes and everything they hold, classes, closures, extra
    state, and the hooks that are registered. Random number generators owned by a model are
    restored, but a draw from them does not count as a difference.

    Args:
        parts: Modules and callables.
        like: An earlier snapshot of the same parts, whose copies of unchanged tensors are shared.
    """

    def __init__(self, *parts: object, like: Snapshot | None = None) -> None:
        self._graph: ObjectGraph = ObjectGraph(None if like is None else like._graph)
        self._extra: dict[str, _Extra] = {}
        self._hooks: dict[str, tuple[dict[int, Any], dict[int, Any]]] = {}
        for place, part in enumerate(parts):
            start = f"part {place}" if place else ""
            for path, module in part.named_modules() if isinstance(part, nn.Module) else ():
                self._take(f"{start}.{path}".strip("."), module)
            self._graph.add(start, part)

    def _take(self, name: str, module: nn.Module) -> None:
        prefix = f"{name}." if name else ""
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            state = module.get_extra_state()
            self._extra[f"{prefix}get_extra_state()"] = _Extra(
                module, copy.deepcopy(state), _graph(state)
            )
        for kind in _HOOKS:
            hooks = getattr(module, kind)
            self._hooks[f"{prefix}{kind}"] = hooks, dict(hooks)

    def restore(self, now: Snapshot | None = None) -> None:
        """Restore this state of the modules, in the very same tensors, and remove later hooks.

        Args:
            now: A snapshot of the present state made with `like=self`, which saves comparisons.
        """
        self._graph.restore(None if now is None else now._graph)
        for extra in self._extra.values():
            if extra.seen.first_difference(_graph(extra.module.get_extra_state())) is not None:
                extra.module.set_extra_state(copy.deepcopy(extra.value))
        for hooks, before in self._hooks.values():
            for key in [key for key in hooks if key not in before]:
                del hooks[key]

    def same_parameters(self, other: Snapshot) -> bool:
        """Tell whether the parameters have the same values in both."""
        mine, theirs = self._graph.values, other._graph.values
        return all(
            name in theirs and same(mine[name], theirs[name]) for name in self._graph.parameters
        )

    def same_draws(self, other: Snapshot) -> bool:
        """Tell whether generators owned by the modules drew nothing between the two."""
        return self._graph.same_draws(other._graph)

    def first_difference(self, other: Snapshot) -> str | None:
        """The name of something that the two states do not share, or None."""
        if (found := self._graph.first_difference(other._graph)) is not None:
            return found
        for name in (*self._extra, *other._extra):
            a, b = self._extra.get(name), other._extra.get(name)
            if a is None or b is None or a.seen.first_difference(b.seen) is not None:
                return name
        for name in (*self._hooks, *other._hooks):
            before, after = (s._hooks.get(name, ({}, {}))[1] for s in (self, other))
            if list(before.values()) != list(after.values()):
                return name
        return None


def _graph(value: Any) -> ObjectGraph:
    graph = ObjectGraph()
    graph.add("", value)
    return graph


def hook_keys(model: nn.Module) -> tuple[int, ...]:
    """PyTorch's unique numbers of all hooks on a model's modules and parameters, and global ones.

    Two calls return the same if and only if no hook was added or removed between them.
    """
    every = nn.modules.module
    holders: list[dict[int, Any]] = [
        every._global_forward_hooks,
        every._global_forward_pre_hooks,
        every._global_backward_hooks,
        every._global_backward_pre_hooks,
    ]
    for module in model.modules():
        holders += [getattr(module, kind) for kind in _HOOKS]
        holders += [p._backward_hooks or {} for p in module._parameters.values() if p is not None]
    return tuple(key for hooks in holders if hooks for key in hooks)


_PLAIN = frozenset((bool, int, float, str, type(None)))


def plain_settings(model: nn.Module) -> tuple[object, ...]:
    """The numbers, words and flags among the attributes of a model's modules.

    A compiled pass has the settings that the model had when it was traced.
    """
    return tuple(v for m in model.modules() for v in vars(m).values() if type(v) in _PLAIN)


def _devices(model: nn.Module) -> list[int]:
    tensors = (*model.parameters(), *model.buffers())
    found = {t.device.index for t in tensors if t.device.type == "cuda"}
    return sorted(torch.cuda.current_device() if index is None else index for index in found)


def seed(model: nn.Module, value: int = PROBE_SEED) -> None:
    """Seed every random number generator that the model may draw from, and no other."""
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

    def restore(self) -> None:
        """Restore the generators to this state."""
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
def undisturbed(model: nn.Module, *others: object) -> Iterator[None]:
    """Restore the state of modules and callables and the global random states afterwards."""
    before, drawn = Snapshot(model, *others), RandomState(model)
    try:
        yield
    finally:
        before.restore()
        drawn.restore()


class Still(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode with constant random numbers, the same in a batch and for one example.

    Every draw gives a fixed value in its range: 1 for Bernoulli trials (dropout keeps everything),
    one half for uniform and other real numbers, the mean of the slopes of a randomised rectifier,
    the identity for permutations.
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
        if name in _RECTIFIERS:
            return _rectifier_operator(func, args, kwargs, drawn=False)
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


class EverySlope(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode in which randomised rectifiers draw a slope for every number.

    PyTorch draws for negative numbers only: a change of one example then moves the random numbers
    of those behind it, though nothing passes from one to another.
    """

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run an operation."""
        kwargs = kwargs or {}
        if func.overloadpacket.__name__ in _RECTIFIERS:
            return _rectifier_operator(func, args, kwargs, drawn=True)
        return func(*args, **kwargs)


def even_draws(model: nn.Module) -> AbstractContextManager[object]:
    """The mode for a model that draws more or fewer random numbers as its inputs are."""
    rectified = any(isinstance(module, nn.RReLU) for module in model.modules())
    return EverySlope() if rectified else nullcontext()  # type: ignore[no-untyped-call]


_RECTIFIERS = ("rrelu_with_noise", "rrelu_with_noise_")


def _rectifier_operator(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, drawn: bool
) -> Any:
    """A randomised rectifier, whose slopes are drawn for every number or are their mean."""
    own = dict(zip(("x", "noise", "lower", "upper", "training"), args, strict=False)) | kwargs
    if not own.get("training"):
        return func(*args, **kwargs)
    x, lower, upper = args[0], own.get("lower", 1 / 8), own.get("upper", 1 / 3)
    slopes = torch.full_like(x, (lower + upper) / 2)
    if drawn:
        # Where another mode holds random numbers still, one half is the mean.
        slopes.uniform_().mul_(upper - lower).add_(lower)
    slopes = slopes.masked_fill_(x > 0, 1.0)
    own["noise"].copy_(slopes)
    out = x * slopes
    return x.copy_(out) if func.overloadpacket.__name__ == _RECTIFIERS[1] else out


def copied(model: nn.Module) -> nn.Module:
    """A deep copy of the model, with computed tensors that it holds (old weight norms) detached."""
    memo: dict[int, object] = {}
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    return copy.deepcopy(model, memo)
