"""One release: its sum over the ranks of a process group, and what its rule learns from it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from sfumato.distributed.ranks import Ranks
from sfumato.privacy.accounting.accountants import Step
from sfumato.privacy.clipping import ClippingRule
from sfumato.privacy.draw_count import check_count
from sfumato.privacy.noise import GaussianNoise
from sfumato.privacy.numerics.randomness import Randomness
from sfumato.privacy.numerics.totals import Totals
from sfumato.privacy.sampling import PoissonSampler
from sfumato.privacy.statistics import BatchStatistics


@dataclass(frozen=True)
class Release:
    """The facts of one release that all ranks must have in common.

    Attributes:
        number: Number of the release, from 1, which its noise follows from.
        event: Its privacy event.
        rule: The clipping rule.
        parameters: The trained parameters, by name.
        randomness: Source of the noise.
        sampler: Source of the draw.
    """

    number: int
    event: Step
    rule: ClippingRule
    parameters: Mapping[str, nn.Parameter]
    randomness: Randomness
    sampler: PoissonSampler

    def add_over_ranks(
        self, sums: Totals, observed: Tensor | None, statistics: BatchStatistics, examples: int
    ) -> tuple[Tensor | None, BatchStatistics]:
        """Replace the sums of a rank by those of all ranks.

        Guarantee: Nothing is summed unless all ranks have these facts in common. So the noise that
        each rank adds to the sum is one noise. All ranks together have at most as many examples as
        the sampler.

        Args:
            sums: The clipped sums of this rank.
            observed: What the clipping rule observed on this rank.
            statistics: The statistics of this rank.
            examples: The number of examples on this rank.

        Returns:
            The observation and the statistics of all ranks together.
        """
        ranks = Ranks.current()
        if ranks.size == 1:
            return observed, statistics
        check_count(sum(ranks.agree(self._facts(), examples)), self.sampler)
        others = [] if observed is None else [observed]
        numbers, *rest = sums.add_over_ranks(ranks, statistics.numbers, *others)
        return (rest[0] if rest else None), BatchStatistics(numbers)

    def noisy_means(self, sums: Totals) -> Mapping[str, Tensor]:
        """The sum with the noise of this release, over the expected batch, by parameter."""
        return sums.noisy_means(
            self.parameters,
            GaussianNoise(self.rule.gradient_noise(self.event.noise_multiplier)),
            sensitivity=self.rule.sensitivity,
            stream=self.randomness.stream(self.number, "noise"),
            batch=self.sampler.batch,
        )

    def adapted(self, observed: Tensor | None) -> ClippingRule:
        """The rule after this release, from what it observed and noise of its own."""
        if observed is None:
            return self.rule
        stream = self.randomness.stream(self.number, "counts")
        noise = GaussianNoise(self.rule.observation_noise)
        noisy = noise.add(observed, sensitivity=1.0, stream=stream)
        return self.rule.after(noisy, self.sampler.batch)

    def _facts(self) -> dict[str, str]:
        layout = hashlib.sha256()
        for name, p in self.parameters.items():
            layout.update(f"{name} {p.dtype} {tuple(p.shape)} {p.stride()}\n".encode())
        return {
            "step": str(self.number),
            "number of training examples": str(self.sampler.examples),
            "sampling rate": repr(self.event.q),
            "noise multiplier": repr(self.event.noise_multiplier),
            "clipping rule": f"{self.rule.describe()}, C = {self.rule.sensitivity!r}",
            "list of trained parameters": layout.hexdigest()[:16],
            "key for random numbers": self.randomness.fingerprint,
        }
