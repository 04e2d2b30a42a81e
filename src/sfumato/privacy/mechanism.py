"""DP-SGD's mechanism as one object: clip each example, add noise, divide by the expected batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sfumato.privacy.accounting import Step
from sfumato.privacy.accounting import epsilon as account
from sfumato.privacy.clipping import ClippingRule
from sfumato.privacy.gradients import Loss, PerExample, cross_entropy
from sfumato.privacy.noise import GaussianNoise
from sfumato.privacy.sampling import PoissonSampler


@dataclass
class BatchStatistics:
    """What happened in a step, computed on private examples without noise: not for release."""

    examples: int = 0
    loss: float = 0.0
    correct: int = 0
    clipped: int = 0
    not_finite: int = 0

    def __iadd__(self, other: BatchStatistics) -> BatchStatistics:
        self.examples += other.examples
        self.loss += other.loss
        self.correct += other.correct
        self.clipped += other.clipped
        self.not_finite += other.not_finite
        return self


class PrivateGradients:
    """Accumulates clipped per-example gradients and releases their noisy mean.

    Args:
        model: The model whose trainable parameters receive `.grad`.
        sampler: Where the batches come from; its rate and expected batch are used, never retyped.
        clipping: The clipping rule; its sensitivity scales the noise.
        noise: The Gaussian noise added to each released sum.
        loss: From outputs and targets to one loss per row.
        views: Rows per example, averaged before clipping.
        check: Check the model against the slow reference before the first batch.

    Guarantee: If every call of `release` follows the accumulation of one draw of `sampler`, each
    drawn example once, then the sequence of gradients released is the composition of `history`:
    Poisson-subsampled Gaussian mechanisms under adding or removing one example. An example adds at
    most the rule's sensitivity to a sum, in floating point too; one whose gradient is not finite
    adds nothing.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        sampler: PoissonSampler,
        clipping: ClippingRule,
        noise: GaussianNoise,
        loss: Loss = cross_entropy,
        views: int = 1,
        check: bool = True,
    ) -> None:
        self.sampler, self.clipping, self.noise = sampler, clipping, noise
        self.per_example = PerExample(model, loss=loss, views=views, check=check)
        self.released = 0
        self._sums: list[Tensor] | None = None
        self._statistics = BatchStatistics()

    @property
    def step_event(self) -> Step:
        """The privacy event of one release."""
        return Step(q=self.sampler.rate, noise_multiplier=self.noise.multiplier)

    @property
    def history(self) -> list[Step]:
        """Everything released so far."""
        step = self.step_event
        return [Step(step.q, step.noise_multiplier, self.released)] if self.released else []

    def epsilon(self, *, delta: float, accountant: str = "pld") -> float:
        """Privacy spent so far."""
        return account(self.history, delta=delta, accountant=accountant)

    def accumulate(self, x: Tensor, y: Tensor, weights: Tensor | None = None) -> None:
        """Add a physical batch to the sum; nothing is added if this raises.

        Args:
            x: `(examples * views, ...)` inputs, the views of an example beside each other.
            y: `(examples,)` targets.
            weights: One for an example that was drawn, zero for padding.
        """
        gradients = self.per_example(x, y)
        drawn = (
            y.new_ones(y.shape, dtype=torch.bool) if weights is None else weights.to(y.device) > 0
        )
        squared = gradients.squared_norms()
        clip = self.clipping.weights(squared)
        sums = gradients.weighted_sum(clip * drawn.unsqueeze(1))
        statistics = self._count(gradients.outputs, gradients.losses, y, drawn, clip, squared)
        if self._sums is None:
            self._sums = sums
        else:
            for total, part in zip(self._sums, sums, strict=True):
                total += part
        self._statistics += statistics

    def release(
        self,
        *,
        generator: torch.Generator | None = None,
        before: Callable[[Step], None] | None = None,
    ) -> BatchStatistics:
        """Put the noisy mean gradient into `.grad` and start a new sum.

        Args:
            generator: Source of the noise; the global one if None.
            before: Called with the event of this release before anything is released, so that a
                ledger can be on disk first.
        """
        parameters = list(self.per_example.trainable.values())
        if self._sums is None:
            self._sums = [torch.zeros_like(p, dtype=_accumulation(p)) for p in parameters]
        if before is not None:
            before(self.step_event)
        self.released += 1
        sensitivity = self.clipping.sensitivity
        for parameter, total in zip(parameters, self._sums, strict=True):
            noisy = self.noise.add(total, sensitivity=sensitivity, generator=generator)
            parameter.grad = (noisy / self.sampler.batch).to(parameter.dtype)
        statistics, self._statistics, self._sums = self._statistics, BatchStatistics(), None
        return statistics

    def discard(self) -> None:
        """Forget what has been accumulated since the last release."""
        self._sums, self._statistics = None, BatchStatistics()

    def _count(
        self,
        outputs: Tensor | None,
        losses: Tensor,
        y: Tensor,
        drawn: Tensor,
        clip: Tensor,
        squared: Tensor,
    ) -> BatchStatistics:
        if outputs is None:
            return BatchStatistics()
        finite = torch.isfinite(squared.sum(1))
        counted = drawn & finite
        first_view = outputs[:: self.per_example.views]
        right = first_view.argmax(1) == y if first_view.dim() == 2 and y.dim() == 1 else ~drawn
        numbers = torch.stack(
            [
                drawn.sum().double(),
                torch.where(counted, losses, 0).sum().double(),
                (right & counted).sum().double(),
                ((clip < 1).any(1) & counted).sum().double(),
                (drawn & ~finite).sum().double(),
            ]
        ).tolist()
        examples, loss, correct, clipped, not_finite = numbers
        return BatchStatistics(int(examples), loss, int(correct), int(clipped), int(not_finite))


def _accumulation(parameter: nn.Parameter) -> torch.dtype:
    return torch.promote_types(parameter.dtype, torch.float32)
