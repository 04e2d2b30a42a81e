"""Per-example gradients of one physical batch: their norms and their weighted sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from sfumato.privacy.numerics.precision import full_precision, widest

Examples = slice | list[int]
"""Some of the examples of a batch; a slice takes them without a copy."""

_CHUNK = 256
"""Squares summed in float32 before float64 takes over: at most 256 roundings of 2^-24 each keep
the norm right to 8e-6 in any order of summation, within the clipping rules' margin of 1e-5."""


class PerExampleGradients(Protocol):
    """Per-example gradients as the mechanism uses them: norms, then a weighted sum."""

    @property
    def names(self) -> tuple[str, ...]:
        """Trainable parameters, in the order of every other sequence here."""
        ...

    @property
    def losses(self) -> Tensor:
        """Loss of each example."""
        ...

    @property
    def outputs(self) -> Tensor | None:
        """The model's outputs, one row per view."""
        ...

    def squared_norms(self) -> Tensor:
        """Squared norms `(examples, parameters)`."""
        ...

    def weighted_sum(self, weights: Tensor) -> list[Tensor]:
        """Sum over examples of `weights[example, parameter] * gradient`, in parameter order.

        One column of weights serves all parameters.
        """
        ...


class Deferred(Protocol):
    """Per-example gradients of one parameter that are materialised only on request."""

    def tensor(self) -> Tensor:
        """The gradients `(examples, *shape)`."""
        ...

    def squared_norms(self) -> Tensor:
        """Squared norms `(examples,)`, never too small."""
        ...

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """The weighted sum; an example of weight zero adds exactly nothing."""
        ...

    def some(self, examples: Examples) -> Deferred:
        """The gradients of some examples only."""
        ...

    def with_uses(self, others: Sequence[Deferred]) -> Deferred:
        """The sum of these gradients and those of other uses of the parameter."""
        ...


@dataclass
class Gradients:
    """Per-example gradients of one physical batch.

    Attributes:
        names: Trainable parameters, in the order of every other sequence here.
        shapes: Their shapes.
        parts: One `(examples, *shape)` tensor or `Deferred` per parameter, or None where the loss
            does not depend on the parameter.
        losses: Loss of each example.
        outputs: The model's outputs, one row per view.
    """

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    parts: Sequence[Tensor | Deferred | None]
    losses: Tensor
    outputs: Tensor | None
    _blocks: list[Tensor | Deferred | None] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._blocks = [_block(t) if isinstance(t, Tensor) else t for t in self.parts]

    def some(self, examples: Examples) -> Gradients:
        """The gradients of some examples only."""
        parts = [
            part if part is None else part[examples] if isinstance(part, Tensor)
            else part.some(examples)
            for part in self.parts
        ]  # fmt: skip
        views = self.outputs.shape[0] // max(1, len(self.losses)) if self.outputs is not None else 1
        outputs = None if self.outputs is None else rows_of(self.outputs, examples, views)
        return Gradients(self.names, self.shapes, parts, self.losses[examples], outputs)

    @cached_property
    def tensors(self) -> list[Tensor | None]:
        """Every part as a tensor."""
        return [t if t is None or isinstance(t, Tensor) else t.tensor() for t in self.parts]

    def squared_norms(self) -> Tensor:
        """Squared norms `(examples, parameters)`, in float64 where the device has it.

        Guarantee: The products in them are in float32 or wider, whatever autocast or TF32 says.
        """
        examples = self.losses.shape[0]
        zeros = torch.zeros(examples, device=self.losses.device, dtype=widest(self.losses.device))
        columns = []
        with full_precision(zeros.device):
            for block in self._blocks:
                if isinstance(block, Tensor):
                    columns.append(_squared_norms(block))
                elif block is None:
                    columns.append(zeros)
                else:
                    columns.append(block.squared_norms().to(zeros.dtype))
        return torch.stack(columns, 1) if columns else zeros.new_zeros(examples, 0)

    def weighted_sum(self, weights: Tensor) -> list[Tensor]:
        """Sum over examples of `weights[example, parameter] * gradient`, in parameter order.

        One column of weights serves all parameters.

        Guarantee: The sum is taken in float64, or in float32 where the device has nothing wider, so
        that the order of examples does not matter to 1e-11 of it. Where a weight is zero the
        example contributes exactly nothing, even if its gradient holds NaN or infinity.
        """
        weights = weights.expand(-1, len(self._blocks))
        sums = []
        with full_precision(weights.device):
            for i, (block, shape) in enumerate(zip(self._blocks, self.shapes, strict=True)):
                own = weights[:, i]
                if block is not None and not isinstance(block, Tensor):
                    sums.append(block.weighted_sum(own))
                    continue
                if block is None or block.shape[1] == 0:
                    wide = widest(weights.device)
                    sums.append(torch.zeros(shape, device=weights.device, dtype=wide))
                    continue
                total = _weighted(own, block)
                if not bool(torch.isfinite(total).all()):
                    # Zero times infinity is NaN.
                    total = _weighted(own, block.masked_fill((own == 0).view(1, -1, 1), 0))
                sums.append(_unblock(total, shape))
        return sums


def rows_of(t: Tensor, examples: Examples, views: int) -> Tensor:
    """The rows of some examples of `views` rows each."""
    return t.view(-1, views, *t.shape[1:])[examples].flatten(0, 1)


def _accumulation(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


_AT_ONCE = {"cpu": 1 << 17}
"""Numbers converted to float64 at once: on a CPU 1 MiB, which caches hold and threads can share."""

_AT_ONCE_ELSEWHERE = 1 << 22


def _weighted(weights: Tensor, block: Tensor) -> Tensor:
    """The weighted sum over the examples of a block `(taps, examples, rest)`, `(taps, rest)`."""
    wide = widest(block.device)
    weights = weights.to(wide)
    numbers = _AT_ONCE.get(block.device.type, _AT_ONCE_ELSEWHERE)
    taps, examples, rest = block.shape
    used: Tensor | slice = slice(None)
    if block.device.type == "cpu" and 2 * int(weights.count_nonzero()) <= examples:
        used = weights.nonzero().flatten()
    columns = max(1, numbers // max(1, examples))
    total = torch.empty(taps, rest, device=block.device, dtype=wide)
    for own, sums in zip(block, total, strict=True):
        for part, sum_ in zip(own.split(columns, 1), sums.split(columns), strict=True):
            torch.mv(part[used].to(wide).T, weights[used], out=sum_)
    return total


def _block(t: Tensor) -> Tensor:
    """View `(examples, *shape)` as `(taps, examples, rest)` without copying where possible."""
    if not t.shape[0]:
        return t.new_zeros(1, 0, 0)
    if t.dim() in (5, 6):
        taps = range(3, t.dim())
        each = pairwise(taps)
        evenly = all(t.stride(a) == t.shape[b] * t.stride(b) or t.shape[a] == 1 for a, b in each)
        if evenly and t.flatten(3)[..., 0].is_contiguous():
            return t.permute(*taps, 0, 1, 2).reshape(-1, t.shape[0], t.shape[1] * t.shape[2])
    return t.reshape(1, t.shape[0], -1)


def _unblock(total: Tensor, shape: torch.Size) -> Tensor:
    if total.shape[0] == 1:
        return total.view(shape)
    taps = len(shape) - 2
    taps_first = total.view(*shape[2:], *shape[:2])
    return taps_first.permute(taps, taps + 1, *range(taps)).contiguous()


def _squared_norms(block: Tensor) -> Tensor:
    """Squared norm per example, in two stages: short runs in float32, their sum in float64."""
    narrow, wide = _accumulation(block.dtype), widest(block.device)
    rest = block.shape[2]
    whole = rest - rest % _CHUNK
    total = torch.zeros(block.shape[1], device=block.device, dtype=wide)
    if whole:
        chunks = block[:, :, :whole].view(*block.shape[:2], -1, _CHUNK)
        norms = torch.linalg.vector_norm(chunks, dim=3, dtype=narrow)
        total += norms.to(wide).square().sum((0, 2))
    if rest > whole:
        norms = torch.linalg.vector_norm(block[:, :, whole:], dim=2, dtype=narrow)
        total += norms.to(wide).square().sum(0)
    return total


def no_gradients(x: Tensor, parameters: Mapping[str, Tensor]) -> Gradients:
    """The gradients of no examples."""
    return Gradients(
        tuple(parameters),
        tuple(p.shape for p in parameters.values()),
        [p.new_zeros(0, *p.shape) for p in parameters.values()],
        x.new_zeros(0),
        None,
    )
