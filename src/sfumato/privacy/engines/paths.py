"""Assignment of modules to the paths by which their per-example gradients are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.utils import parametrize

from sfumato.privacy.engines.layer_rules import RULES

Tapped = Callable[..., Any]


@dataclass(frozen=True)
class Path:
    """The path by which the gradients of one module are computed."""

    module: str
    kind: str
    way: str
    parameters: int


def kind_of(module: nn.Module) -> type[nn.Module]:
    """A module's class before parametrisation."""
    kind: type[nn.Module] = parametrize.type_before_parametrizations(module)
    return kind


def size_of(module: nn.Module) -> int:
    """The number of trainable parameters in a module."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def _owns(module: nn.Module) -> bool:
    """Tell whether a module has trainable parameters of its own, or in a list or dictionary."""
    lists = (nn.ParameterList, nn.ParameterDict)
    own = [*module._parameters.values()]
    own += [
        p for child in module.children() if isinstance(child, lists) for p in child.parameters()
    ]
    return any(p.requires_grad for p in own if p is not None)


def assign(model: nn.Module) -> list[tuple[str, nn.Module, str]]:
    """The name, the module and the path of each module with trainable parameters."""
    assigned: dict[nn.Module, tuple[str, str]] = {}

    def walk(name: str, module: nn.Module) -> None:
        if module in assigned or not size_of(module):
            return
        known = kind_of(module) in RULES and "forward" not in module.__dict__
        if known:
            plain = "weight" in module._parameters and not parametrize.is_parametrized(module)
            assigned[module] = name, "rule" if plain else "reparametrised"
        elif _owns(module) or parametrize.is_parametrized(module):
            assigned[module] = name, "torch.func"
        else:
            for child_name, child in module.named_children():
                walk(f"{name}.{child_name}" if name else child_name, child)

    walk("", model)
    return [(name, module, path) for module, (name, path) in assigned.items()]


@contextmanager
def tapped(taps: dict[nn.Module, Tapped]) -> Iterator[None]:
    """Replace the forward methods of modules for one pass."""
    before = {module: module.__dict__.get("forward") for module in taps}
    for module, forward in taps.items():
        module.__dict__["forward"] = forward
    try:
        yield
    finally:
        for module, forward_before in before.items():
            if forward_before is None:
                del module.__dict__["forward"]
            else:
                module.__dict__["forward"] = forward_before
