"""DP-SGD's mechanism as one object: clip each example, add noise, divide by the expected batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from sfumato.distributed.ranks import sharing_errors
from sfumato.errors import UserError
from sfumato.privacy import chapters
from sfumato.privacy.accounting.accountants import AccountantName, Step, merge
from sfumato.privacy.accounting.accountants import epsilon as account
from sfumato.privacy.accounting.budget import check_delta, noise_multiplier_for
from sfumato.privacy.audit.canaries import Canaries
from sfumato.privacy.checks.refusals import refuse_parts, refuse_without_noise
from sfumato.privacy.checks.spot_check import SpotCheck
from sfumato.privacy.clipping import SMALLEST_WEIGHT, ClippingRule, Flat, Unclipped
from sfumato.privacy.draw_count import DrawCount
from sfumato.privacy.engines.ordinary_backward import Ordinary
from sfumato.privacy.engines.results import PerExampleGradients
from sfumato.privacy.guarantee import Guarantee, current_versions
from sfumato.privacy.loader import poisson_loader
from sfumato.privacy.noise import GaussianNoise
from sfumato.privacy.numerics.randomness import Randomness
from sfumato.privacy.numerics.totals import Totals
from sfumato.privacy.over_ranks import Release
from sfumato.privacy.per_example import Loss, PerExample, cross_entropy
from sfumato.privacy.sampling import PhysicalBatch, PoissonSampler
from sfumato.privacy.statistics import BatchStatistics


class PrivateGradients:
    """Accumulates clipped per-example gradients and releases their noisy mean.

    Args:
        model: The model whose trainable parameters receive `.grad`.
        sampler: Source of the draws; its rate and expected batch are used.
        clipping: The clipping rule; its sensitivity scales the noise.
        noise: The noise multiplier of a whole release. Gradients get all of it, or a little more if
            the rule has something of its own to release.
        loss: From outputs and targets to one loss per row.
        views: Rows per example, averaged before clipping.
        check: Check the model against the slow reference before the first batch, and now and then
            on real examples (`sfumato.privacy.checks.spot_check`).
        randomness: Source of the noise: a new key from the operating system if None, which all
            ranks share. A key serves one mechanism: two would have the same noise. With
            `Randomness.from_seed` releases can be repeated, and are not private.
        precision: Precision of the compiled pass. `auto` is bfloat16 on a GPU that computes in it,
            for a model in float32; None computes as the model does, and compiles nothing.

    Guarantee: If every call of `release` follows the accumulation of one draw of `sampler`, each
    drawn example once, then the sequence of gradients released is the composition of `history`:
    Poisson-subsampled Gaussian mechanisms under adding or removing one example. Events are recorded
    as they happen, so changing the noise or the sampler later does not rewrite them. What is added
    for an example has at most the rule's sensitivity, in floating point too; one whose gradient is
    not finite adds nothing. Physical batches are added up in float64, so that an example cannot
    change how the sum of the others is rounded by more than the clipping rules' head-room. Noise
    comes from a cipher, never from PyTorch's generators, and no two releases have the same. In a
    process group all ranks release together: the sums of their examples, with one noise.
    """

    _rule: ClippingRule
    _bound_to: tuple[str, ...] | None

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
        randomness: Randomness | None = None,
        precision: torch.dtype | Literal["auto"] | None = "auto",
    ) -> None:
        refuse_parts(sampler, clipping, noise)
        self.sampler, self.noise = sampler, noise
        self.randomness = Randomness.shared() if randomness is None else randomness
        self._noises = 0
        self.per_example = PerExample(
            model, loss=loss, views=views, check=check, precision=precision
        )
        self.spot_check = SpotCheck()
        self.clipping = clipping
        self.clipping.gradient_noise(noise.multiplier)
        self._history: list[Step] = []
        self._sums: Totals | None = None
        self._summed_with: tuple[ClippingRule, float] | None = None
        self._draw = DrawCount()
        self._observed: Tensor | None = None
        self._statistics = BatchStatistics()

    @classmethod
    def for_budget(
        cls,
        model: nn.Module,
        *,
        examples: int,
        batch: float,
        epsilon: float,
        delta: float,
        steps: int,
        clipping: ClippingRule | None = None,
        accountant: AccountantName = "pld",
        **more: Any,
    ) -> Self:
        """The mechanism with the least noise that keeps so many steps within a privacy budget.

        Args:
            model: The model whose trainable parameters receive `.grad`.
            examples: Number of training examples N.
            batch: Expected number of examples in a step.
            epsilon, delta: The budget; delta is below one in the number of examples.
            steps: Number of releases.
            clipping: The clipping rule; `Flat(1.0)` if None.
            accountant: `pld` or `rdp`.
            **more: As for the class itself.
        """
        check_delta(delta, examples)
        sampler = PoissonSampler(examples, batch)
        sigma = noise_multiplier_for(
            epsilon=epsilon, delta=delta, q=sampler.rate, steps=steps, accountant=accountant
        )
        more |= {"clipping": clipping or Flat(1.0), "noise": GaussianNoise(sigma)}
        return cls(model, sampler=sampler, **more)

    def __getstate__(self) -> dict[str, Any]:
        """State for copies and files, without the key, sums and examples.

        A copy has a key of its own unless there is a seed: equal noise would cancel between two.
        """
        state = self.__dict__ | {"_sums": None, "_observed": None, "_summed_with": None}
        state |= {"_statistics": BatchStatistics(), "_draw": DrawCount(), "spot_check": SpotCheck()}
        return state if self.randomness.seeded else state | {"randomness": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.randomness = self.randomness or Randomness.fresh()

    @property
    def clipping(self) -> ClippingRule:
        """The rule as it is now, for the parameters trained now; one that adapts changes."""
        return self._bound(self.per_example.trainable)

    @clipping.setter
    def clipping(self, rule: ClippingRule) -> None:
        """Clip by another rule from the next step on."""
        self._rule, self._bound_to = rule, None

    @property
    def step_event(self) -> Step:
        """The privacy event of one release."""
        return Step(q=self.sampler.rate, noise_multiplier=self.noise.multiplier)

    @property
    def history(self) -> list[Step]:
        """Everything released so far, equal releases counted together."""
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
        self._history = [replace(self.step_event, count=count)] if count else []

    def epsilon(self, *, delta: float, accountant: AccountantName = "pld") -> float:
        """Privacy spent so far; delta must be below one in the number of examples."""
        check_delta(delta, self.sampler.examples)
        return account(self.history, delta=delta, accountant=accountant)

    def statement(self, *, delta: float, data: str) -> str:
        """The privacy statement of `guarantee`, which has the same arguments, as Markdown."""
        return chapters.statement(self.guarantee(delta=delta, data=data))

    def guarantee(self, *, delta: float, data: str) -> Guarantee:
        """The guarantee of what has been released so far, with the conditions of it.

        Args:
            delta: As in (epsilon, delta).
            data: What to call the examples.

        Raises:
            UserError: If the model, with the weights of now, mixes the examples of the last batch.
        """
        check_delta(delta, self.sampler.examples)
        checked = self.spot_check.at_end(self.per_example)
        rule = self.clipping
        clip = getattr(rule, "clip", rule.sensitivity)
        return Guarantee.accounted(
            steps=self.history, delta=delta, data=data, unit="example", own_loop=True,
            examples=self.sampler.examples, batch=float(self.sampler.batch), rate=self.sampler.rate,
            taken=self.released, clipping=rule.describe(), clip=clip if clip < math.inf else None,
            views=self.per_example.views, seeded=self.randomness.seeded, validation=None,
            checked=self.per_example.check, checked_at_end=checked, versions=current_versions(),
        )  # fmt: skip

    def accumulate(
        self, x: Tensor, y: Tensor, weights: Tensor | PhysicalBatch | None = None
    ) -> None:
        """Add a physical batch to the sum; nothing is added if this raises.

        Args:
            x: `(examples * views, ...)` inputs, the views of an example beside each other.
            y: `(examples,)` targets.
            weights: The physical batch that x and y belong to, or its weights alone: one for an
                example that was drawn, zero for padding. Every row was drawn if None.

        Raises:
            UserError: More examples than the sampler has, or one of them known to come twice.
        """
        draw = self._draw.after(self.sampler, y, weights)
        self.per_example.seeds = self._draw.seeds(self.randomness, self.released, weights)
        own = weights.weights if isinstance(weights, PhysicalBatch) else weights
        self._add(self._gradients(x, y), y, own)
        self._draw = draw

    def accumulate_canaries(self, canaries: Canaries, draw: Tensor) -> Tensor:
        """Add the canaries that are in a draw, or in a rank's share of it, as examples are added.

        The sampler counts canaries as its last examples; others in the draw are passed over.

        Returns:
            The sum of what was accumulated before in the coordinates of each canary.
        """
        batch, gradients = canaries.batch(draw, self.per_example.trainable)
        after = self._draw.after(self.sampler, batch.indices, batch)
        before = canaries.read(self._sums or {})
        self._add(gradients, gradients.losses, None)
        self._draw = after
        return before

    @sharing_errors()
    def backward(
        self, x: Tensor, y: Tensor, *, physical_batch: int | None = None
    ) -> BatchStatistics:
        """Put the noisy mean gradient of one whole draw into `.grad`, as `loss.backward()` would.

        Args:
            x: `(examples * views, ...)` inputs of one draw, or of a rank's share; possibly none.
            y: `(examples,)` targets.
            physical_batch: Most examples at once; if None all, or half of a size not yet checked.

        Raises:
            UserError: Something has been accumulated since the last release, or as `accumulate`.
        """
        if self._sums is not None:
            raise UserError(
                "backward() takes a whole draw, and other examples were accumulated before it: "
                "call release() or discard() first."
            )
        size, views = physical_batch or self.per_example.at_once(x, y), self.per_example.views
        try:
            for a in range(0, len(y), size):
                self.accumulate(x[a * views : (a + size) * views], y[a : a + size])
        except BaseException:
            self.discard()
            raise
        return self.release()

    def loader(self, loader: DataLoader[Any], *, steps: int | None = None) -> DataLoader[Any]:
        """The same loader with draws of this mechanism's sampler as its batches.

        Args:
            loader: A loader of the training examples; its batch size and order are not used.
            steps: Number of draws in one pass; as many as the loader has batches if None.

        Raises:
            UserError: The loader's data set is another than the sampler's, or has no length.
        """
        return poisson_loader(loader, self.sampler, steps)

    def _gradients(self, x: Tensor, y: Tensor) -> PerExampleGradients:
        """Per-example gradients, or an ordinary backward pass where nobody asks for single ones."""
        bare = isinstance(self._rule, Unclipped) and self.per_example.precision_for(x) is None
        if bare and len(y):
            return Ordinary(self.per_example.objective, x, y)
        return self.spot_check.gradients(self.per_example, x, y)

    def check(self, x: Tensor, y: Tensor) -> None:
        """Check on these examples, with the weights of now, that none reaches another.

        Nothing is added to the sum, and model and random states are left as they were.

        Raises:
            UserError: If one does.
        """
        self.spot_check.check(self.per_example, x, y)

    def _add(self, gradients: PerExampleGradients, y: Tensor, weights: Tensor | None) -> None:
        drawn = torch.ones(y.shape[0], dtype=torch.bool, device=y.device)
        if weights is not None:
            drawn = weights.to(y.device) > 0
        parameters = self.per_example.trainable
        refuse_without_noise(parameters)
        if self._sums is not None:
            self._sums.check_fits(parameters)
        squared = gradients.squared_norms()
        rule = self._same_rule(parameters)
        scales = rule.weights(squared)
        scales = torch.where(scales < SMALLEST_WEIGHT, 0.0, scales)
        if rule.uniform:
            scales = scales[:, :1]
        sums = gradients.weighted_sum(scales * drawn.unsqueeze(1))
        observed = rule.observe(squared, drawn)
        statistics = BatchStatistics.of(
            gradients, y, drawn=drawn, clipped=rule.clipped(squared), squared=squared
        )
        if observed is not None and self._observed is not None:
            observed = self._observed + observed
        statistics = self._statistics + statistics
        totals = Totals(parameters) if self._sums is None else self._sums
        totals.add(gradients.names, sums)
        self._sums, self._summed_with = totals, (rule, rule.sensitivity)
        self._statistics, self._observed = statistics, observed

    @sharing_errors()
    def release(self, *, before: Callable[[Step], None] | None = None) -> BatchStatistics:
        """Put the noisy mean gradient into `.grad` and start a new sum.

        Guarantee: Afterwards no parameter has any other gradient: what an earlier backward pass
        left in one that is not trained now, an optimizer would apply without noise. Every number
        of every parameter that is trained now has noise, or this raises.

        Args:
            before: Called with the event of this release before anything is released, so that a
                ledger can be on disk first. If it raises, what was accumulated is forgotten.
        """
        parameters, others = self.per_example.objective.parameters()
        refuse_without_noise(parameters)
        sums = Totals(parameters) if self._sums is None else self._sums
        sums.check_fits(parameters)
        examples = self._draw.check(self.sampler, self._statistics)
        event, rule = self.step_event, self._same_rule(parameters)
        noise = GaussianNoise(rule.gradient_noise(event.noise_multiplier))
        # The number of a release never comes again, even if the history is set back.
        number = max(self._noises, self.released) + 1
        observed, statistics = self._observed, self._statistics
        if observed is None:
            observed = rule.observe_nothing(len(parameters), sums.home)
        release = Release(number, event, rule, parameters, self.randomness, self.sampler)
        try:
            if before is not None:
                before(event)
            observed, statistics = release.add_over_ranks(sums, observed, statistics, examples)
        except BaseException:
            self.discard()
            raise
        self._noises = number
        self._history = list(merge([*self._history, event]))
        means = sums.noisy_means(
            parameters,
            noise,
            sensitivity=rule.sensitivity,
            stream=self.randomness.stream(self._noises, "noise"),
            batch=self.sampler.batch,
        )
        for name, parameter in parameters.items():
            parameter.grad = means[name]
        for parameter in others:
            parameter.grad = None
        self._rule = release.adapted(observed)
        self.discard()
        return statistics

    def discard(self) -> None:
        """Drop everything accumulated since the last release."""
        self._sums, self._observed, self._statistics = None, None, BatchStatistics()
        self._summed_with, self._draw = None, DrawCount()

    def _bound(self, parameters: dict[str, nn.Parameter]) -> ClippingRule:
        """The rule as it is now, for these parameters, which are those trained now."""
        names = tuple(parameters)
        if names != self._bound_to:
            self._rule = self._rule.bind(names, [p.shape for p in parameters.values()])
            self._bound_to = names
        return self._rule

    def _same_rule(self, parameters: dict[str, nn.Parameter]) -> ClippingRule:
        """The rule that the sum was begun with: noise is scaled to the sensitivity of one rule."""
        rule = self._bound(parameters)
        if self._summed_with not in (None, (rule, rule.sensitivity)):
            raise RuntimeError("the clipping rule was changed between accumulate and release")
        return rule
