"""Count of the examples accumulated since the last release: at most those of one draw."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sfumato.distributed.ranks import Ranks
from sfumato.errors import UserError
from sfumato.privacy.engines.keyed_draws import RowSeeds
from sfumato.privacy.numerics.randomness import Randomness
from sfumato.privacy.sampling import PhysicalBatch, PoissonSampler
from sfumato.privacy.statistics import BatchStatistics


@dataclass(frozen=True)
class DrawCount:
    """Count of accumulated examples, and their indices where physical batches state them.

    Guarantee: No more examples than the sampler has enter one release, and none whose index is
    known enters twice: repeated, an example would add several times the sensitivity.

    Attributes:
        sampler: The sampler that they were drawn by; None before the first batch.
        examples: Their number, as far as it is known without waiting for a device.
        complete: Whether that is all of them: weights on an accelerator are not read before a
            release.
        seen: One flag for each example of the sampler, or None if no index is known.
    """

    sampler: PoissonSampler | None = None
    examples: int = 0
    complete: bool = True
    seen: Tensor | None = None

    def after(
        self, sampler: PoissonSampler, y: Tensor, weights: Tensor | PhysicalBatch | None
    ) -> DrawCount:
        """The count with one more physical batch.

        Raises:
            UserError: There are too many examples, or one comes twice or in part.
            RuntimeError: The sampler differs from that of the batches before.
        """
        if self.sampler is not None and self.sampler != sampler:
            raise RuntimeError("the sampler was changed between accumulate and release")
        own = weights.weights if isinstance(weights, PhysicalBatch) else weights
        if own is not None:
            _check_weights(own, y)
        known, seen = True, self.seen
        if isinstance(weights, PhysicalBatch):
            more = weights.drawn
            if weights.indices.device.type == weights.weights.device.type == "cpu":
                drawn = weights.indices[weights.weights > 0]
                more, seen = len(drawn), _marked(seen, drawn, sampler.examples)
        elif weights is None:
            more = y.shape[0]
        else:
            known = weights.device.type == "cpu"
            more = int((weights > 0).sum()) if known else 0
        total = self.examples + more
        check_count(total, sampler)
        return DrawCount(sampler, total, self.complete and known, seen)

    def after_units(self, sampler: PoissonSampler, units: Tensor, goes_on: int | None) -> DrawCount:
        """The count with the units of one more physical batch.

        Args:
            sampler: The sampler, whose examples are units.
            units: Numbers of the units, each once.
            goes_on: The last unit so far, of which the batch may have more images.

        Raises:
            As `after`.
        """
        if len(units) and goes_on == int(units[0]):
            units = units[1:]
        ones = torch.ones(len(units))
        return self.after(sampler, units, PhysicalBatch(units, ones, 0, len(units)))

    def seeds(
        self, randomness: Randomness, released: int, weights: Tensor | PhysicalBatch | None
    ) -> RowSeeds:
        """Seeds of the random numbers that a model draws for the next batch.

        Args:
            randomness: Source of the seed.
            released: Number of releases so far.
            weights: The physical batch, if the examples' indices are known; they are counted
                otherwise, on each rank apart.
        """
        batch = weights if isinstance(weights, PhysicalBatch) else None
        rank = "" if batch is not None else Ranks.current().rank or ""
        seed = randomness.generator(released + 1, f"rows{rank}").initial_seed()
        return (
            RowSeeds(seed, first=self.examples) if batch is None else RowSeeds(seed, batch.indices)
        )

    def check(self, sampler: PoissonSampler, statistics: BatchStatistics) -> int:
        """Refuse a release of too many examples.

        Args:
            sampler: The sampler of the release.
            statistics: The statistics of the step, which are read only if the count is not
                complete.

        Returns:
            The number of examples.
        """
        if self.sampler is not None and self.sampler != sampler:
            raise RuntimeError("the sampler was changed between accumulate and release")
        examples = self.examples if self.complete else statistics.examples
        check_count(examples, sampler)
        return examples


def check_count(examples: int, sampler: PoissonSampler) -> None:
    """Refuse more examples than the sampler has."""
    if examples > sampler.examples:
        raise UserError(
            f"{examples} examples were accumulated for one release, and the sampler has "
            f"{sampler.examples}: some were accumulated more than once. Call release() after each "
            "draw, and discard() to drop what was accumulated."
        )


def _marked(seen: Tensor | None, indices: Tensor, examples: int) -> Tensor:
    """The flags with these indices set.

    Raises:
        UserError: An index is set already, occurs twice, or is not an index of the sampler.
    """
    if indices.numel() and not 0 <= int(indices.min()) <= int(indices.max()) < examples:
        raise UserError(f"A physical batch has an index outside the sampler's {examples} examples.")
    counts = torch.bincount(indices, minlength=examples)
    marked = counts.bool()
    again = bool((counts > 1).any()) or (seen is not None and bool((seen & marked).any()))
    if again:
        raise UserError(
            "An example was accumulated twice for one release: it would count twice at the noise "
            "of one. Accumulate each physical batch of a draw once, then call release()."
        )
    return marked if seen is None else seen | marked


def _check_weights(weights: Tensor, y: Tensor) -> None:
    """Refuse weights other than one or zero for each example.

    Values are checked only where that takes no waiting for a device.
    """
    if weights.shape != y.shape[:1]:
        raise ValueError(f"{y.shape[0]} examples have {tuple(weights.shape)} weights")
    if weights.device.type == "cpu" and not bool(((weights == 0) | (weights == 1)).all()):
        raise UserError(
            "Weights must be one for an example that was drawn and zero for padding: an example "
            "that counts in part, or twice, has no place in the mechanism."
        )
