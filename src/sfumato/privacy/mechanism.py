"""DP-SGD's mechanism as one object: clip each example, add noise, divide by the expected batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sfumato.errors import UserError
from sfumato.privacy.accounting import AccountantName, Step, merge
from sfumato.privacy.accounting import epsilon as account
from sfumato.privacy.clipping import ClippingRule
from sfumato.privacy.gradients import Gradients, Loss, PerExample, cross_entropy
from sfumato.privacy.noise import GaussianNoise
from sfumato.privacy.precision import widest
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
    Poisson-subsampled Gaussian mechanisms under adding or removing one example. Events are recorded
    as they happen, so changing the noise or the sampler later does not rewrite them. An example
    adds at most the rule's sensitivity to a sum, in floating point too; one whose gradient is not
    finite adds nothing.
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
        if noise.multiplier and clipping.sensitivity == float("inf"):
            raise UserError(
                "Noise cannot be scaled to gradients that are not clipped: choose a clipping rule, "
                "or no noise for a run without privacy."
            )
        self.sampler, self.clipping, self.noise = sampler, clipping, noise
        self.per_example = PerExample(model, loss=loss, views=views, check=check)
        self._history: list[Step] = []
        self._sums: dict[str, Tensor] | None = None
        self._statistics = BatchStatistics()

    @property
    def step_event(self) -> Step:
        """The privacy event of one release."""
        return Step(q=self.sampler.rate, noise_multiplier=self.noise.multiplier)

    @property
    def history(self) -> list[Step]:
        """Everything released so far, each release as it was, equal ones counted together."""
        return list(merge(self._history))

    @history.setter
    def history(self, steps: Sequence[Step]) -> None:
        """Go on after what an interrupted run has released."""
        self._history = list(steps)

    @property
    def released(self) -> int:
        """The number of releases so far."""
        return sum(step.count for step in self._history)

    @released.setter
    def released(self, count: int) -> None:
        """Go on after `count` releases of this same event."""
        event = self.step_event
        self._history = [Step(event.q, event.noise_multiplier, count)] if count else []

    def epsilon(self, *, delta: float, accountant: AccountantName = "pld") -> float:
        """Privacy spent so far."""
        return account(self.history, delta=delta, accountant=accountant)

    def accumulate(self, x: Tensor, y: Tensor, weights: Tensor | None = None) -> None:
        """Add a physical batch to the sum; nothing is added if this raises.

        Args:
            x: `(examples * views, ...)` inputs, the views of an example beside each other.
            y: `(examples,)` targets.
            weights: One for an example that was drawn, zero for padding.
        """
        if weights is not None and weights.shape != y.shape[:1]:
            raise ValueError(f"{y.shape[0]} examples have {tuple(weights.shape)} weights")
        self._add(self.per_example(x, y), y, weights)

    def _add(self, gradients: Gradients, y: Tensor, weights: Tensor | None) -> None:
        drawn = torch.ones(y.shape[0], dtype=torch.bool, device=y.device)
        if weights is not None:
            drawn = weights.to(y.device) > 0
        squared = gradients.squared_norms()
        clip = self.clipping.weights(squared)
        sums = gradients.weighted_sum(clip * drawn.unsqueeze(1))
        statistics = self._count(gradients.outputs, gradients.losses, y, drawn, clip, squared)
        if self._sums is None:
            self._sums = self._zeros()
        for name, part in zip(gradients.names, sums, strict=True):
            self._sums[name] += part
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
        sums = self._zeros() if self._sums is None else self._sums
        parameters = self.per_example.trainable
        if parameters.keys() != sums.keys():
            raise RuntimeError("parameters were frozen or unfrozen between accumulate and release")
        event = self.step_event
        if before is not None:
            before(event)
        self._history = list(merge([*self._history, event]))
        sensitivity = self.clipping.sensitivity
        for name, parameter in parameters.items():
            noisy = self.noise.add(sums[name], sensitivity=sensitivity, generator=generator)
            parameter.grad = (noisy / self.sampler.batch).to(parameter.dtype)
        statistics = self._statistics
        self.discard()
        return statistics

    def discard(self) -> None:
        """Forget what has been accumulated since the last release."""
        self._sums, self._statistics = None, BatchStatistics()

    def _zeros(self) -> dict[str, Tensor]:
        return {
            name: torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32))
            for name, p in self.per_example.trainable.items()
        }

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
        right = torch.zeros_like(drawn)
        if first_view.dim() == 2 and y.dim() == 1:
            right = first_view.argmax(1) == y
        wide = widest(outputs.device)
        numbers = torch.stack(
            [
                drawn.sum().to(wide),
                torch.where(counted & losses.isfinite(), losses.to(wide), 0).sum(),
                (right & counted).sum().to(wide),
                ((clip < 1).any(1) & counted).sum().to(wide),
                (drawn & ~finite).sum().to(wide),
            ]
        ).tolist()
        examples, loss, correct, clipped, not_finite = numbers
        return BatchStatistics(int(examples), loss, int(correct), int(clipped), int(not_finite))
