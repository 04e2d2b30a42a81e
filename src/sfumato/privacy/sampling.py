"""Exact Poisson sampling, split into physical batches of one fixed size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sfumato.errors import UserError


@dataclass(frozen=True)
class PhysicalBatch:
    """A fixed number of examples to process at once.

    Attributes:
        indices: Which examples, `(size,)`; the padding repeats the first drawn example.
        weights: One for a drawn example, zero for padding.
        start: Position of the first example within the draw.
    """

    indices: Tensor
    weights: Tensor
    start: int

    @property
    def drawn(self) -> int:
        """How many of the examples are not padding."""
        return int(self.weights.sum())


@dataclass(frozen=True)
class PoissonSampler:
    """Every example enters a step with probability `batch / examples`, independently.

    Guarantee: The draw is a product of Bernoulli trials with probability `rate`, exact to one part
    in 2^53. Nothing is truncated, shuffled or topped up, and an empty draw is an ordinary one; this
    is what the accountants' Poisson-subsampled events assume.
    """

    examples: int
    batch: float

    def __post_init__(self) -> None:
        if self.examples < 1:
            raise UserError("There are no training examples to sample from.")
        if not 0 < self.batch <= self.examples:
            raise UserError(
                f"The expected batch must lie between 0 and the number of training examples "
                f"({self.examples}), not {self.batch:g}."
            )

    @property
    def rate(self) -> float:
        """The sampling probability q."""
        return self.batch / self.examples

    def draw(self, generator: torch.Generator | None = None) -> Tensor:
        """Indices of one step's examples, in increasing order and on the CPU; possibly none."""
        device = "cpu" if generator is None else generator.device
        trials = torch.rand(self.examples, generator=generator, device=device, dtype=torch.float64)
        return (trials < self.rate).nonzero().squeeze(1).cpu()

    def batches(self, steps: int, generator: torch.Generator | None = None) -> PoissonBatches:
        """One draw for each step, as `torch.utils.data.DataLoader` takes its `batch_sampler`."""
        return PoissonBatches(self, steps, generator)


@dataclass(frozen=True)
class PoissonBatches:
    """The draws of so many steps; going over them again draws anew.

    Attributes:
        sampler: Whose draws.
        steps: How many.
        generator: Source of the randomness; the global one if None.
    """

    sampler: PoissonSampler
    steps: int
    generator: torch.Generator | None = None

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(self.steps):
            yield self.sampler.draw(self.generator).tolist()


def physical_batches(draw: Tensor, size: int, *, start: int = 0) -> Iterator[PhysicalBatch]:
    """Split a draw, from position `start` on, into padded batches of exactly `size` examples.

    Guarantee: Every example of the draw from `start` on has weight one in exactly one batch; an
    empty draw has no batches.
    """
    if size < 1:
        raise UserError(f"A physical batch holds at least one example, not {size}.")
    for a in range(start, draw.numel(), size):
        part = draw[a : a + size]
        weights = torch.zeros(size, device=draw.device)
        weights[: part.numel()] = 1
        padding = draw[:1].expand(size - part.numel())
        yield PhysicalBatch(torch.cat([part, padding]), weights, a)
