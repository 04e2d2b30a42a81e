"""What the compiled pass keeps of each trained tensor's per-example gradients.

A *slot* belongs to one tensor of a layer (a weight or a bias) that is made of one or several
parameters. It has leaves whose gradients the pass takes, and turns what it finds there into squared
norms per example and into a weighted sum, both in the space of the parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from sfumato.kernels.definitions import ROUNDING, Geometry
from sfumato.privacy.planning import Way

Pullback = Callable[[Tensor], tuple[Tensor, ...]]


class Slot(Protocol):
    """One trained tensor of a layer."""

    names: tuple[str, ...]
    """The parameters behind it."""
    value: Tensor
    """Its value in the precision of the pass, at a fixed address."""

    @property
    def asks(self) -> bool:
        """Whether the layer's input is needed."""
        ...

    def leaves(self) -> list[Tensor]:
        """The leaves whose gradients `squared` and `summed` are given, in this order."""
        ...

    def refresh(self) -> None:
        """Take the parameters' current values."""
        ...

    def squared(self, found: list[Tensor], x: Tensor | None) -> Sequence[Tensor]:
        """Squared norms `(examples,)`, one for each parameter behind the tensor."""
        ...

    def summed(self, found: list[Tensor], x: Tensor | None, weights: Tensor) -> list[Tensor]:
        """Weighted sums in float32, one for each parameter.

        Args:
            found: The gradients of the leaves.
            x: The layer's input, where the slot asked for it.
            weights: `(examples, parameters)` in the order of `names`, or `(examples, 1)` for all.
        """
        ...


def zeros(like: Tensor, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
    """A leaf that takes no memory, for gradients of this shape."""
    return like.new_zeros((), dtype=dtype or like.dtype).expand(shape).requires_grad_()


def at_least_float32(t: Tensor) -> Tensor:
    """The tensor in float32, or in its own precision if that is wider."""
    return t.to(torch.promote_types(t.dtype, torch.float32))


def _column(weights: Tensor, k: int, like: Tensor) -> Tensor:
    """The weights of one parameter, shaped to multiply per-example gradients."""
    own = weights[:, k if weights.shape[1] > 1 else 0]
    return own.view(-1, *(1,) * (like.dim() - 1)).to(like.dtype)


@dataclass
class Whole:
    """Keeps the gradient of every example.

    Attributes:
        leaf: Receives it, an expanded view of `value` (small tensors are read through it) or of a
            zero.
        pullback: From gradients of what the leaf stands for to gradients of the parameters; None
            if they are the same.
    """

    names: tuple[str, ...]
    read: Callable[[], Tensor]
    value: Tensor
    leaf: Tensor
    pullback: Pullback | None

    @property
    def asks(self) -> bool:
        """No."""
        return False

    def leaves(self) -> list[Tensor]:
        """The one leaf."""
        return [self.leaf]

    def refresh(self) -> None:
        """Take the parameters' current values."""
        self.value.copy_(self.read())

    def squared(self, found: list[Tensor], x: Tensor | None) -> list[Tensor]:
        """Norms of what the pullback gives for each example."""
        wide = at_least_float32(found[0])
        back = (wide,) if self.pullback is None else self.pullback(wide)
        return [part.square().sum(tuple(range(1, part.dim()))) for part in back]

    def summed(self, found: list[Tensor], x: Tensor | None, weights: Tensor) -> list[Tensor]:
        """Sum first, pull back once."""
        wide = at_least_float32(found[0])
        sums = []
        for k in range(len(self.names) if weights.shape[1] > 1 else 1):
            column = _column(weights, k, wide)
            sums.append(torch.where(column == 0, 0.0, wide * column).sum(0))
        return _pulled(self.pullback, sums, len(self.names))


def _pulled(pullback: Pullback | None, sums: list[Tensor], count: int) -> list[Tensor]:
    """Each parameter's part of the pullback of its own sum; one sum serves all."""
    if pullback is None:
        return sums
    parts = [pullback(total.unsqueeze(0)) for total in sums]
    return [parts[k if len(parts) > 1 else 0][k].squeeze(0) for k in range(count)]


@dataclass
class Matrix:
    """Keeps of a linear layer's gradients those of its outputs: a ghost norm, and one product.

    Attributes:
        leaf: Receives the gradients of the outputs, `(rows, out)`.
        views: Rows per example.
    """

    names: tuple[str, ...]
    read: Callable[[], Tensor]
    value: Tensor
    leaf: Tensor
    views: int

    @property
    def asks(self) -> bool:
        """Yes."""
        return True

    def leaves(self) -> list[Tensor]:
        """The one leaf."""
        return [self.leaf]

    def refresh(self) -> None:
        """Take the parameters' current values."""
        self.value.copy_(self.read())

    def squared(self, found: list[Tensor], x: Tensor | None) -> list[Tensor]:
        """The sum over pairs of views of the products of their inputs and of their gradients."""
        assert x is not None
        a, b = (
            at_least_float32(t).view(-1, self.views, t.shape[1]) for t in (x.detach(), found[0])
        )
        if self.views == 1:
            return [a.square().sum((1, 2)) * b.square().sum((1, 2))]
        product = torch.bmm(a, a.transpose(1, 2)) * torch.bmm(b, b.transpose(1, 2))
        most = product.diagonal(dim1=1, dim2=2).clamp_min(0).sqrt().sum(1).square()
        return [product.sum((1, 2)).clamp_min(0) + ROUNDING * most]

    def summed(self, found: list[Tensor], x: Tensor | None, weights: Tensor) -> list[Tensor]:
        """One product of weighted gradients and inputs, both without NaN where weights are zero."""
        assert x is not None
        rows = weights[:, :1].repeat_interleave(self.views, 0)
        a, b = (at_least_float32(t) for t in (x.detach(), found[0]))
        a = torch.where(rows == 0, 0.0, a)
        b = torch.where(rows == 0, 0.0, b * rows.to(b.dtype))
        return [b.T @ a]


class FilterStep(Protocol):
    """A parametrisation whose norms follow from statistics of each filter's gradient."""

    def direction(self, raw: Tensor) -> Tensor:
        """What to multiply gradients by, shaped as the raw weight."""
        ...

    def squared_norms(self, raw: Tensor, statistics: Tensor, rounding: float) -> tuple[Tensor, ...]:
        """Squared norms of each parameter's gradients, `(examples,)`."""
        ...

    def scales(self, raw: Tensor) -> Tensor:
        """What the gradient of each bare filter, without its mean, is at most multiplied by."""
        ...


@dataclass
class Filters:
    """Keeps of a convolution's filter gradients what the planner says.

    With *ghost* norms the filters are those without a gain, which is a tensor of its own then, and
    the norm is an upper bound: that of the gradient before the part along the filter is taken out.

    Attributes:
        way: See `sfumato.privacy.planning`.
        geometry: How the convolution walks.
        step: The parametrisation of the filters, or None for plain ones.
        raw: The raw weight of that parametrisation.
        directions: The step's direction at a fixed address, `(out, kh, kw, in)`.
        factors: The step's scales at a fixed address, `(out,)`.
    """

    names: tuple[str, ...]
    read: Callable[[], Tensor]
    value: Tensor
    way: Way
    geometry: Geometry
    examples: int
    output_shape: tuple[int, ...]
    pullback: Pullback | None
    step: FilterStep | None
    raw: Tensor | None
    directions: Tensor | None = field(init=False, default=None)
    factors: Tensor | None = field(init=False, default=None)
    gradient: Tensor | None = field(init=False, default=None)
    statistics: Tensor | None = field(init=False, default=None)
    ghost: Tensor | None = field(init=False, default=None)
    output: Tensor | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        out, channels = self.value.shape[:2]
        one = (out, *self.geometry.kernel, channels)
        wide = torch.promote_types(self.value.dtype, torch.float32)
        if self.way == "ghost":
            self.ghost = zeros(self.value, self.examples, dtype=wide)
            if self.step is not None:
                self.factors = self.value.new_zeros(out, dtype=wide)
        else:
            count = 1 if self.step is None else 3
            self.statistics = zeros(self.value, self.examples, count, out, dtype=wide)
            if self.step is not None:
                self.directions = self.value.new_zeros(one)
        if self.way == "materialise":
            self.gradient = zeros(self.value, self.examples, *one)
        else:
            self.output = zeros(self.value, *self.output_shape)

    @property
    def asks(self) -> bool:
        """Where the sum is one more product."""
        return self.output is not None

    def leaves(self) -> list[Tensor]:
        """Norms or statistics first, then gradients of the filters or of the output."""
        every = (self.ghost, self.statistics, self.gradient, self.output)
        return [leaf for leaf in every if leaf is not None]

    def refresh(self) -> None:
        """Take the parameters' current values."""
        self.value.copy_(self.read())
        if self.step is None or self.raw is None:
            return
        if self.directions is not None:
            self.directions.copy_(self.step.direction(self.raw.detach()).permute(0, 2, 3, 1))
        if self.factors is not None:
            self.factors.copy_(self.step.scales(self.raw.detach()))

    def squared(self, found: list[Tensor], x: Tensor | None) -> Sequence[Tensor]:
        """Norms from what the operators have found."""
        if self.way == "ghost":
            return found[:1]
        if self.step is None or self.raw is None or self.directions is None:
            return [found[0][:, 0].sum(1)]
        rounding = torch.finfo(self.directions.dtype).eps / 2
        return self.step.squared_norms(self.raw.detach(), found[0], rounding)

    def summed(self, found: list[Tensor], x: Tensor | None, weights: Tensor) -> list[Tensor]:
        """From the gradients if they were kept, else by one more product."""
        sums = []
        for k in range(len(self.names) if weights.shape[1] > 1 else 1):
            if self.way == "materialise":
                wide = at_least_float32(found[1])
                column = _column(weights, k, wide)
                total = torch.where(column == 0, 0.0, wide * column).sum(0)
            else:
                assert x is not None
                total = torch.ops.sfumato.weighted_sum(
                    x, found[1], weights[:, k if weights.shape[1] > 1 else 0].contiguous(),
                    self.geometry.numbers, self.geometry.views,
                )  # fmt: skip
            sums.append(total.permute(0, 3, 1, 2))
        return _pulled(self.pullback, sums, len(self.names))
