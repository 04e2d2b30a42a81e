"""The paths by which the per-example gradients of modules are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.utils import parametrize

Tapped = Callable[..., Any]


@dataclass(frozen=True)
class Path:
    """The path by which the per-example gradients of one module are computed.

    Attributes:
        module: The module's name in the model.
        kind: The name of its class.
        path: `rule`, `reparametrised` or `torch.func`.
        parameters: The number of scalars in its trained parameters.
    """

    module: str
    kind: str
    path: str
    parameters: int


def kind_of(module: nn.Module) -> type[nn.Module]:
    """A module's class before parametrisation."""
    kind: type[nn.Module] = parametrize.type_before_parametrizations(module)
    return kind


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
