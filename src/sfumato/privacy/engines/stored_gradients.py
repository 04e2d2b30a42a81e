"""Storage of each trained tensor's per-example gradients in the compiled pass.

A *slot* belongs to one tensor of a layer (a weight or a bias) that is made of one or several
parameters. It has leaves whose gradients the pass computes, and turns these gradients into squared
norms per example and into a weighted sum, both in the space of the parameters.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeGuard

import torch
from torch import Tensor

from sfumato.kernels import definitions
from sfumato.kernels.definitions import UNIT, Geometry, ghost_rounding, padded
from sfumato.nn.reparametrisation import FilterStandardisation
from sfumato.privacy.engines.storage_plan import Storage
from sfumato.privacy.numerics.rescaling import rescaled

Pullback = Callable[..., tuple[Tensor, ...]]


class Slot(Protocol):
    """Storage for the gradients of one trained tensor of a layer."""

    names: tuple[str, ...]
    """The parameters behind it."""

    @property
    def value(self) -> Tensor:
        """The tensor's value in the precision of the pass, at a fixed address."""
        ...

    @property
    def needs_input(self) -> bool:
        """Tell whether the layer's input is needed."""
        ...

    def leaves(self) -> list[Tensor]:
        """The leaves whose gradients `squared` and `summed` are given, in this order."""
        ...

    def refresh(self) -> None:
        """Copy the parameters' current values."""
        ...

    def squared(self, found: list[Tensor], x: Tensor | None) -> Sequence[Tensor]:
        """Squared norms `(examples,)`, one for each parameter behind the tensor."""
        ...

    def summed(self, found: list[Tensor], x: Tensor | None, weights: Tensor) -> list[Tensor]:
        """Weighted sums in float32, one for each parameter.

        Args:
            found: The gradients of the leaves.
            x: The layer's input, if the slot needs it.
            weights: `(examples, parameters)` in the order of `names`, or `(examples, 1)` for all.
        """
        ...


def zeros(like: Tensor, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
    """A leaf that takes no memory, for gradients of this shape."""
    return like.new_zeros((), dtype=dtype or like.dtype).expand(shape).requires_grad_()


def at_least_float32(t: Tensor) -> Tensor:
    """The tensor in float32, or in its own precision if that is wider."""
    return t.to(torch.promote_types(t.dtype, torch.float32))


@dataclass
class Whole:
    """Slot of a parameter that stores the gradient of every example.

    Attributes:
        leaf: Receives the gradients; an expanded view of `value`, through which small tensors are
            read.
    """

    names: tuple[str, ...]
    read: Callable[[], Tensor]
    value: Tensor
    leaf: Tensor

    @property
    def needs_input(self) -> bool:
        """Tell whether the layer's input is needed, which it is not."""
        return False

    def leaves(self) -> list[Tensor]:
        """The single leaf."""
        return [self.leaf]

    def refresh(self) -> None:
        """Copy the parameters' current values."""
        self.value.copy_(self.read())

    def squared(self, found: list[Tensor], x: Tensor | None) -> list[Tensor]:
        """Squared norms of each example's gradient."""
        wide = at_least_float32(found[0])
        return [wide.square().sum(tuple(range(1, wide.dim())))]

    def summed(self, found: list[Tensor], x: Tensor | None, weights: Tensor) -> list[Tensor]:
        """The weighted sum."""
        return [definitions.row_sum(found[0], weights[:, 0])]


@dataclass
class Derived:
    """Slot of weights that are computed from parameters: it stores the gradients of the weights.

    Attributes:
        reads: The weights' current values.
        values: The same in the precision of the pass, at fixed addresses.
        tied: The leaves, which receive the gradients.
        pullback: From gradients of the leaves' tensors to gradients of the parameters.
        expand: From a leaf to the tensor that the weight is, where these differ.
    """

    names: tuple[str, ...]
    reads: Callable[[], Sequence[Tensor]]
    values: Sequence[Tensor]
    tied: list[Tensor]
    pullback: Pullback
    expand: Callable[[Tensor], Tensor] | None = None

    @property
    def value(self) -> Tensor:
        """The first of the weights."""
        return self.values[0]

    @property
    def needs_input(self) -> bool:
        """Tell whether the layer's input is needed, which it is not."""
        return False

    def leaves(self) -> list[Tensor]:
        """One leaf per weight."""
        return self.tied

    def refresh(self) -> None:
        """Copy the weights' current values."""
        for value, now in zip(self.values, self.reads(), strict=True):
            value.copy_(now)

    def squared(self, found: list[Tensor], x: Tensor | None) -> list[Tensor]:
        """Squared norms of each example's gradient after the pullback."""
        parts = self.pullback(*(at_least_float32(t) for t in found))
        return [part.square().sum(tuple(range(1, part.dim()))) for part in parts]

    def summed(self, found: list[Tensor], x: Tensor | None, weights: Tensor) -> list[Tensor]:
        """Weighted sums, summed first and pulled back once for each column of weights."""
        parts = [
            self.pullback(*(definitions.row_sum(t, own).unsqueeze(0) for t in found))
            for own in weights.unbind(1)
        ]
        count = len(self.names)
        return [parts[k if len(parts) > 1 else 0][k].squeeze(0) for k in range(count)]


class Together:
    """Small tensors that are parameters themselves, with their gradients in one row per example.

    Args:
        slots: The slots of these tensors.

    Attributes:
        starts: Where each tensor begins in a row, and where the last one ends.
    """

    MOST = 4096
    """The largest number of entries of a small tensor."""

    def __init__(self, slots: Sequence[Whole]) -> None:
        self.slots = list(slots)
        self.names = tuple(name for slot in slots for name in slot.names)
        self._ends = list(itertools.accumulate((slot.value.numel() for slot in slots), initial=0))
        where = slots[0].value.device if slots else None
        self.starts = torch.tensor(self._ends, dtype=torch.int32, device=where)

    @classmethod
    def takes(cls, slot: Slot) -> TypeGuard[Whole]:
        """Tell whether a slot belongs to this group."""
        small = slot.value.numel() <= cls.MOST
        return isinstance(slot, Whole) and small

    @property
    def numbers(self) -> int:
        """The numbers of a row."""
        return self._ends[-1]

    def rows(self, found: Sequence[Tensor]) -> Tensor:
        """The gradients of all leaves, `(examples, numbers)`."""
        return torch.cat([gradient.reshape(len(gradient), -1) for gradient in found], 1)

    def squared(self, rows: Tensor) -> Sequence[Tensor]:
        """Squared norms `(examples,)`, one for each parameter."""
        norms: Tensor = torch.ops.sfumato.segment_norms(rows, self.starts)
        return norms.unbind(1)

    def summed(self, rows: Tensor, weights: Tensor) -> list[Tensor]:
        """Weighted sums in float32, one for each parameter, with weights in the order of `names`.

        One column of weights serves all parameters.
        """
        spans = list(itertools.pairwise(self._ends))
        if weights.shape[1] == 1:
            whole = torch.ops.sfumato.row_sum(rows, weights[:, 0])
            parts = [whole[a:b] for a, b in spans]
        else:
            columns = weights.unbind(1)
            parts = [
                torch.ops.sfumato.row_sum(rows[:, a:b], own)
                for (a, b), own in zip(spans, columns, strict=True)
            ]
        return [part.view(slot.value.shape) for part, slot in zip(parts, self.slots, strict=True)]


@dataclass
class Matrix:
    """Slot that stores a linear layer's output gradients: a ghost norm, and one product.

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
    def needs_input(self) -> bool:
        """Tell whether the layer's input is needed, which it is."""
        return True

    def leaves(self) -> list[Tensor]:
        """The single leaf."""
        return [self.leaf]

    def refresh(self) -> None:
        """Copy the parameters' current values."""
        self.value.copy_(self.read())

    def squared(self, found: list[Tensor], x: Tensor | None) -> list[Tensor]:
        """Squared norms: over pairs of views, products of their inputs and of their gradients."""
        assert x is not None
        a, b = (
            at_least_float32(t).view(-1, self.views, t.shape[1]) for t in (x.detach(), found[0])
        )
        if self.views == 1:
            return [a.square().sum((1, 2)) * b.square().sum((1, 2))]
        product = torch.bmm(a, a.transpose(1, 2)) * torch.bmm(b, b.transpose(1, 2))
        most = product.diagonal(dim1=1, dim2=2).clamp_min(0).sqrt().sum(1).square()
        rounding = ghost_rounding(a.shape[2], 1, b.shape[2], self.views, UNIT)
        return [product.sum((1, 2)).clamp_min(0) + rounding * most]

    def summed(self, found: list[Tensor], x: Tensor | None, weights: Tensor) -> list[Tensor]:
        """One product of weighted gradients and inputs, both without NaN where weights are zero."""
        assert x is not None
        a, b = rescaled(x.detach(), found[0], weights[:, 0], self.views)
        return [b.T @ a]


@dataclass
class Filters:
    """Slot that stores of the gradients of filters, or of a matrix, what the planner chose.

    A matrix that multiplies several vectors of each example is a filter of one position.

    With *ghost* norms the filters are those without the gain, which has a slot of its own, and the
    norm is an upper bound: the norm before the component along the filter is removed.

    Attributes:
        storage: See `sfumato.privacy.engines.storage_plan`.
        geometry: The convolution's geometry.
        step: The parametrisation of the filters, or None for plain ones.
        raw: The raw weight of that parametrisation.
        gain: The slot of the gain that standardised filters leave out under ghost norms.
        centred: The centred raw filters at a fixed address, `(out, kh, kw, in)`, in float32.
        directions: The same in the precision of the pass.
        factors: Factors of the parametrisation's derivative, at a fixed address; see
            `sfumato.kernels.definitions.FACTORS`.
    """

    names: tuple[str, ...]
    read: Callable[[], Tensor]
    value: Tensor
    storage: Storage
    geometry: Geometry
    examples: int
    output_shape: tuple[int, ...]
    step: FilterStandardisation | None
    raw: Tensor | None
    gain: Whole | None = field(init=False, default=None)
    centred: Tensor | None = field(init=False, default=None)
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
        if self.step is not None:
            self.centred = self.value.new_zeros(one, dtype=wide)
            self.directions = self.value.new_zeros(one)
            self.factors = self.value.new_zeros((4, out), dtype=wide)
        if self.storage == "ghost":
            self.ghost = zeros(self.value, self.examples, dtype=wide)
        else:
            count = 1 if self.step is None else 3
            self.statistics = zeros(self.value, self.examples, count, out, dtype=wide)
        if self.storage == "materialise":
            lain = (out, *self.geometry.kernel, padded(channels))
            self.gradient = zeros(self.value, self.examples, *lain)
        else:
            self.output = zeros(self.value, *self.output_shape)

    @property
    def needs_input(self) -> bool:
        """Tell whether the layer's input is needed: for a sum computed by one more product."""
        return self.output is not None

    @property
    def scales(self) -> Tensor | None:
        """Factors of each filter's gradient in ghost norms, `(out,)`, or None."""
        return self.factors[0] if self.storage == "ghost" and self.factors is not None else None

    def leaves(self) -> list[Tensor]:
        """Norms or statistics first, then gradients of the filters or of the output."""
        every = (self.ghost, self.statistics, self.gradient, self.output)
        return [leaf for leaf in every if leaf is not None]

    def refresh(self) -> None:
        """Copy the parameters' current values."""
        if self.step is None or self.raw is None:
            self.value.copy_(self.read())
            return
        gain = (
            None if self.storage == "ghost" or self.step.gain is None else self.step.gain.detach()
        )
        torch.ops.sfumato.write_standardised(
            self.raw.detach(), gain, self.value, self.centred, self.directions, self.factors,
            self.step.plain, self.step.eps,
        )  # fmt: skip

    def squared(self, found: list[Tensor], x: Tensor | None) -> Sequence[Tensor]:
        """Squared norms from the operators' statistics."""
        if self.storage == "ghost":
            return found[:1]
        if self.directions is None:
            return [found[0][:, 0].sum(1)]
        entries = self.directions[0].numel()
        rounding = torch.finfo(self.directions.dtype).eps / 2
        norms = torch.ops.sfumato.filter_norms(found[0], self.factors, entries, rounding)
        return list(norms.unbind(1)[: len(self.names)])

    def summed(self, found: list[Tensor], x: Tensor | None, weights: Tensor) -> list[Tensor]:
        """Weighted sums from the stored gradients, or by one more product."""
        parts = []
        for k in range(len(self.names) if weights.shape[1] > 1 else 1):
            total = self._total(found[1], x, weights[:, k])
            back = (total,)
            if self.step is not None:
                back = torch.ops.sfumato.filter_pullback(total, self.centred, self.factors)
            filters = back[0].permute(0, 3, 1, 2)
            parts.append((filters.reshape(self.value.shape), *back[1:]))
        return [parts[k if len(parts) > 1 else 0][k] for k in range(len(self.names))]

    def images(self, t: Tensor) -> Tensor:
        """Vectors `(examples * positions, channels)` as images in channels_last, images as such."""
        if t.dim() != 2:
            return t
        return t.view(self.examples, -1, 1, t.shape[1]).permute(0, 3, 1, 2)

    def _total(self, kept: Tensor, x: Tensor | None, weights: Tensor) -> Tensor:
        """The weighted sum of the gradients of the filters, `(out, kh, kw, in)`."""
        total: Tensor
        if self.storage == "materialise":
            total = torch.ops.sfumato.row_sum(kept, weights)
            return total[..., : self.value.shape[1]]
        assert x is not None
        at, own = self.geometry, weights.contiguous()
        total = torch.ops.sfumato.weighted_sum(
            self.images(x), self.images(kept), own, at.numbers, at.views
        )
        return total
