"""Kinds of tensors in the proof of isolation: how the numbers of a tensor depend on the batch.

The batch has a symbolic size, so a dimension belongs to the batch exactly if its size is a multiple
of that symbol: no other dimension can be mistaken for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch


class Refused(Exception):
    """An operator that no rule covers; the message is the reason."""


@dataclass(frozen=True)
class Shared:
    """A tensor that is the same for every batch: parameters, constants and shared random draws.

    Attributes:
        zero: All numbers are known to be zero.
    """

    zero: bool = False


@dataclass(frozen=True)
class Rows:
    """A tensor with one slice per example, which is the same function of that example everywhere.

    Along `dim` the index is `(o * batch + b) * inner + i` with `o < outer`, `b` the example and
    `i < inner`. Random numbers in it were drawn for that slice alone.
    """

    dim: int
    outer: int = 1
    inner: int = 1

    def at(self, dim: int) -> Rows:
        """The same structure in another dimension."""
        return replace(self, dim=dim)


@dataclass(frozen=True)
class Total:
    """A tensor that is a sum over examples of one function of each example."""


@dataclass(frozen=True)
class Unwritten:
    """Memory that was allocated and not written, so that its values are undefined."""


@dataclass(frozen=True)
class Mixed:
    """A tensor about which nothing was proved, with the first reason and the place."""

    reason: str


Value = Shared | Rows | Total | Unwritten | Mixed
Size = Any
"""An int or a `torch.SymInt`."""

EXAMPLE = Rows(0)
"""One row per example in the first dimension."""


def symbolic(number: object) -> bool:
    """Tell whether a number depends on the size of the batch, or on the data."""
    if isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool):
        return bool(sympy.sympify(number.node.expr).free_symbols)
    return False


def multiple(size: Size) -> int:
    """Factor by which a size is a multiple of the batch; 0 if it does not depend on the batch.

    Raises:
        Refused: The size depends on the batch otherwise, or on the data.
    """
    if not symbolic(size):
        return 0
    expression = sympy.expand(size.node.expr)
    symbols = expression.free_symbols
    if len(symbols) == 1:
        (symbol,) = symbols
        factor = sympy.cancel(expression / symbol)
        if str(symbol).startswith("s") and factor.is_Integer and factor > 0:
            return int(factor)
    raise Refused(f"a size of {expression} is no multiple of the batch")


def by_shape(shape: Sequence[Size]) -> Rows | None:
    """The rows of a tensor whose slices are all alike, or None if no dimension is the batch."""
    factors = [multiple(size) for size in shape]
    dims = [dim for dim, factor in enumerate(factors) if factor]
    if len(dims) > 1:
        raise Refused("two dimensions have the size of the batch, so that rows meet rows")
    return Rows(dims[0], 1, factors[dims[0]]) if dims else None


def checked(value: Value, shape: Sequence[Size]) -> Value:
    """Check that a tensor of this shape can have a value, and return the value.

    Raises:
        Refused: The shape depends on the batch where the value says that it does not.
    """
    if isinstance(value, Mixed | Unwritten):
        return value
    found = by_shape(shape)
    if isinstance(value, Rows):
        if found is None or found.dim != value.dim or found.inner != value.outer * value.inner:
            raise Refused("the batch is not where the rule of the operator expects it")
    elif found is not None:
        raise Refused("its shape depends on the number of rows, and its numbers are no rows")
    return value


def reshaped(rows: Rows, old: Sequence[Size], new: Sequence[Size]) -> Rows:
    """The rows of a tensor after a change of shape that keeps the order of its numbers."""
    found = by_shape(new)
    if found is None:
        raise Refused("a reshape hides the batch")
    before = prod(int(size) for size in old[: rows.dim]) * rows.outer
    after = prod(int(size) for size in old[rows.dim + 1 :]) * rows.inner
    left = prod(int(size) for size in new[: found.dim])
    right = prod(int(size) for size in new[found.dim + 1 :])
    if not left or not right or before % left or after % right:
        raise Refused("a reshape cuts across rows")
    return Rows(found.dim, before // left, after // right)


def aligned(values: Sequence[tuple[Value, Sequence[Size]]]) -> Value:
    """The result of an elementwise operator on tensors, each given with its shape.

    Raises:
        Refused: The rows of two tensors do not lie side by side, or a total meets rows.
    """
    dims = max((len(shape) for _, shape in values), default=0)
    rows = {v.at(v.dim + dims - len(shape)) for v, shape in values if isinstance(v, Rows)}
    if any(isinstance(v, Total) for v, _ in values):
        raise Refused("a sum over the batch is used in a way that is not linear")
    if len(rows) > 1:
        raise Refused("rows of one tensor meet other rows of another")
    if not rows:
        return Shared()
    (found,) = rows
    for value, shape in values:
        place = found.dim - dims + len(shape)
        if (
            isinstance(value, Shared)
            and place >= 0
            and (symbolic(shape[place]) or shape[place] > 1)
        ):
            raise Refused("a constant has a number for each row")
    return found
