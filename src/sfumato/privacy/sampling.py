"""Exact Poisson sampling, split into physical batches of one fixed size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sfumato.distributed.ranks import Ranks
from sfumato.errors import UserError, check_number
from sfumato.privacy.numerics.randomness import Keystream, Randomness


@dataclass(frozen=True)
class PhysicalBatch:
    """A fixed number of examples to process at once.

    Attributes:
        indices: Indices of the examples, `(size,)`; the padding repeats the first drawn example.
        weights: One for a drawn example, zero for padding.
        start: Position of the first example within the draw.
        drawn: Number of examples that are not padding; they come first.
    """

    indices: Tensor
    weights: Tensor
    start: int
    drawn: int


@dataclass(frozen=True)
class PoissonSampler:
    """Poisson sampling: each example enters a step with probability `batch / examples`.

    Guarantee: The draw is a product of independent Bernoulli trials with probability `rate`, exact
    to 2^-64, from a key stream that nobody can predict. Nothing is truncated, shuffled or topped
    up, and an empty draw is an ordinary one; this is what the accountants' Poisson-subsampled
    events assume. In a process group all ranks draw the same examples and share them out.
    """

    examples: int
    batch: float

    def __post_init__(self) -> None:
        check_number(self.examples, "The number of examples")
        check_number(self.batch, "The expected batch")
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

    def draw(self, stream: Keystream | None = None) -> Tensor:
        """Indices of one step's examples, in increasing order and on the CPU; possibly none.

        In a process group they are those of this rank: each example drawn is on one rank. All ranks
        call this together.

        Args:
            stream: Source of the randomness; a new key from the operating system if None.

        Raises:
            UserError: The stream can be predicted, or ranks have different ones.
        """
        ranks = Ranks.current()
        if stream is None:
            stream = Randomness.shared().stream(0, "sample")
        elif not isinstance(stream, Keystream):
            raise UserError(
                f"Examples are drawn from a key stream, such as Randomness.fresh().stream(step, "
                f"'sample'), not from a {type(stream).__name__}, whose numbers can be foretold."
            )
        elif ranks.size > 1:
            ranks.agree({"key stream to draw from": stream.fingerprint})
        whole = self.whole_draw(stream)
        return whole if ranks.size == 1 else whole[ranks.share(len(whole))]

    def whole_draw(self, stream: Keystream) -> Tensor:
        """Indices of one step's examples on all ranks together."""
        return stream.trials(self.examples, self.rate).nonzero().squeeze(1)

    def batches(
        self,
        steps: int,
        randomness: Randomness | None = None,
        *,
        images: Callable[[Tensor, Keystream], Tensor] | None = None,
    ) -> PoissonBatches:
        """One draw for each step, as `torch.utils.data.DataLoader` takes its `batch_sampler`.

        Args:
            steps: Number of draws.
            randomness: Source of the draws; a new key from the operating system if None.
            images: From the units drawn and a source of random numbers to indices of their images,
                where units are drawn.
        """
        return PoissonBatches(self, steps, randomness, images=images)


class PoissonBatches:
    """The draws of a number of steps, or this rank's shares of them; each iteration draws anew.

    Args:
        sampler: The sampler.
        steps: Number of draws in one pass.
        randomness: Source of the draws; a new key from the operating system for each if None.
        images: As for `PoissonSampler.batches`.

    Guarantee: Copies of the object, in this process or another, draw independently, unless the
    randomness has a seed.
    """

    def __init__(
        self,
        sampler: PoissonSampler,
        steps: int,
        randomness: Randomness | None = None,
        *,
        images: Callable[[Tensor, Keystream], Tensor] | None = None,
    ) -> None:
        self.sampler, self.steps, self._images = sampler, steps, images
        self._randomness, self._drawn = randomness, 0

    def __getstate__(self) -> dict[str, Any]:
        seeded = self._randomness is not None and self._randomness.seeded
        return self.__dict__ | ({} if seeded else {"_randomness": None})

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(self.steps):
            self._drawn += 1
            key = Randomness.shared() if self._randomness is None else self._randomness
            draw = self.sampler.draw(key.stream(self._drawn, "sample"))
            if self._images is not None:
                draw = self._images(draw, key.stream(self._drawn, "images"))
            yield draw.tolist()


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
        yield PhysicalBatch(torch.cat([part, padding]), weights, a, part.numel())
