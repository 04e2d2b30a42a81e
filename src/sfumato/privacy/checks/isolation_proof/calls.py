"""One call of an ATen operator as the rules of the proof see it, and the table of rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from sfumato.privacy.checks.isolation_proof.values import Refused, Rows, Shared, Size, Total, Value


@dataclass(frozen=True)
class Call:
    """An operator, its arguments by name, and the tensors that it returned.

    Attributes:
        operator: The operator.
        arguments: Every argument by the name in the operator's schema, defaults included.
        outputs: The tensors that it returned, or None for an output that is not there.
        value_of: The value of a tensor.
    """

    operator: torch._ops.OpOverload
    arguments: dict[str, Any]
    outputs: tuple[Tensor | None, ...]
    value_of: Callable[[Tensor], Value]

    @property
    def name(self) -> str:
        """The name of the operator without its overload."""
        return str(self.operator.overloadpacket.__name__)

    def get(self, name: str, default: Any = None) -> Any:
        """An argument, or the default where the operator has no such argument or it is None."""
        found = self.arguments.get(name)
        return default if found is None else found

    def of(self, name: str) -> Value:
        """The value of a tensor argument; one that is not given is shared."""
        tensor = self.arguments.get(name)
        return self.value_of(tensor) if isinstance(tensor, Tensor) else Shared()

    def shape(self, name: str) -> Sequence[Size]:
        """The shape of a tensor argument."""
        shape: Sequence[Size] = self.arguments[name].shape
        return shape

    def ndim(self, name: str) -> int:
        """The number of dimensions of a tensor argument."""
        return len(self.shape(name))

    def dim(self, name: str, of: str = "self", *, extra: int = 0) -> int:
        """An argument that names a dimension of a tensor, as a number from 0."""
        return int(self.get(name, 0)) % max(1, self.ndim(of) + extra)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor among the arguments, those in lists included."""
        found = {}
        for name, argument in self.arguments.items():
            for index, leaf in enumerate(tree_leaves(argument)):
                if isinstance(leaf, Tensor):
                    found[name if leaf is argument else f"{name}[{index}]"] = leaf
        return found

    def values(self, *names: str) -> list[Value]:
        """The values of some tensor arguments; of all of them if none is named."""
        if names:
            return [self.of(name) for name in names]
        return [self.value_of(tensor) for tensor in self.tensors().values()]

    def rows(self, *names: str) -> Rows:
        """The rows that all of these arguments share, in the same dimension.

        Raises:
            Refused: One of them is given and is no such rows.
        """
        given = names or tuple(self.tensors())
        found = {self.value_of(t) for name, t in self.tensors().items() if name in given}
        if len(found) == 1:
            (value,) = found
            if isinstance(value, Rows):
                return value
        raise Refused("its arguments do not have their rows in the same dimension")

    def require_shared(self, *names: str) -> None:
        """Refuse unless all of these arguments are independent of the batch."""
        for name in names:
            if not isinstance(self.of(name), Shared):
                raise Refused(f"its argument '{name}' depends on the batch")

    def every(self, value: Value) -> list[Value]:
        """The same value for every output."""
        return [value] * len(self.outputs)


def apart(rows: Rows, dims: Iterable[int], what: str) -> Rows:
    """The rows, unless the batch is among these dimensions."""
    if rows.dim in tuple(dims):
        raise Refused(f"{what} along the batch")
    return rows


def is_zero(value: Value) -> bool:
    """Tell whether a value is known to be zero."""
    return isinstance(value, Shared) and value.zero


def linear(values: Iterable[Value]) -> Value:
    """The value of a sum of such values: a total, or zero.

    Raises:
        Refused: One of them is neither.
    """
    every = list(values)
    if all(isinstance(v, Total) or is_zero(v) for v in every):
        return Total() if any(isinstance(v, Total) for v in every) else Shared(zero=True)
    raise Refused("a sum over the batch meets something that is no such sum")


Function = Callable[[Call], Value | list[Value]]
F = TypeVar("F", bound=Function)


@dataclass(frozen=True)
class Rule:
    """Rule by which the values of an operator's outputs follow from those of its inputs.

    Attributes:
        function: Returns one value for all outputs, or one for each.
        sizes: Arguments that are sizes of tensors, and may depend on the size of the batch.
        overwrites: Whether the numbers of `self` are not read.
    """

    function: Function
    sizes: frozenset[str] = frozenset()
    overwrites: bool = False


RULES: dict[str, Rule] = {}


def rule(*names: str, sizes: Iterable[str] = (), overwrites: bool = False) -> Callable[[F], F]:
    """Add the decorated function to the rules, for operators of these names."""

    def add(function: F) -> F:
        for name in names:
            RULES[name] = Rule(function, frozenset(sizes), overwrites)
        return function

    return add
