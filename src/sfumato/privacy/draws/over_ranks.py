"""One release: its sum over the ranks of a process group, and what its rule learns from it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sfumato.distributed.ranks import Ranks
from sfumato.kernels.chacha20 import WORDS
from sfumato.privacy.accounting.accountants import Step
from sfumato.privacy.clipping import ClippingRule
from sfumato.privacy.draws.draw_count import check_count
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
    ) -> tuple[Tensor, Tensor | None, BatchStatistics]:
        """This rank's part of the sum over all ranks.

        Guarantee: Nothing is summed unless all ranks have these facts in common. All ranks together
        have at most as many examples as the sampler. A coordinate without noise is on one rank.

        Args:
            sums: The clipped sums of this rank.
            observed: What the clipping rule observed on this rank.
            statistics: The statistics of this rank.
            examples: The number of examples on this rank.

        Returns:
            The part; the observation and the statistics of all ranks together.
        """
        ranks, vector = Ranks.current(), sums.vector()
        if ranks.size == 1:
            return vector, observed, statistics
        check_count(sum(ranks.agree(self._facts(), examples)), self.sampler)
        others = [t for t in (statistics.numbers, observed) if t is not None]
        parts = ranks.parts(vector, multiple=WORDS)
        # All ranks add the others, each for itself, which needs no further exchange.
        small = torch.cat([t.to(vector).reshape(-1) for t in others])
        own = ranks.own_total(torch.cat([parts, small.expand(ranks.size, -1)], 1))
        part, *rest = torch.split(own, [parts.shape[1], *(t.numel() for t in others)])
        numbers, *found = (a.view_as(t) for a, t in zip(rest, others, strict=True))
        return part, (found[0] if found else None), BatchStatistics(numbers)

    def noisy_means(self, part: Tensor, sums: Totals) -> Mapping[str, Tensor]:
        """The sum with the noise of this release, over the expected batch, by parameter.

        Guarantee: The noise of a coordinate follows from the key, the release and its position in
        the sum. So it is the same on any number of ranks, each of which draws that of its part, and
        no coordinate has it twice or not at all.

        Args:
            part: This rank's part of the sum.
            sums: The sums of this rank, in whose order the parts are.
        """
        ranks = Ranks.current()
        stream = self.randomness.stream(self.number, "noise")
        stream.skip(ranks.rank * len(part))
        noise = GaussianNoise(self.rule.gradient_noise(self.event.noise_multiplier))
        # Rounded here, there is half as much to keep and to send.
        narrow = all(p.dtype == torch.float32 for p in self.parameters.values())
        means = noise.means(
            part, self.sampler.batch, sensitivity=self.rule.sensitivity, stream=stream,
            dtype=torch.float32 if narrow else torch.float64,
        )  # fmt: skip
        if ranks.size > 1:
            count = sum(p.numel() for p in self.parameters.values())
            means = ranks.gather(means).flatten()[:count]
        return sums.split(means, self.parameters)

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
