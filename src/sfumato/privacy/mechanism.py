"""DP-SGD's mechanism as one object: clip each example, add noise, divide by the expected batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from sfumato.distributed.ranks import sharing_errors
from sfumato.errors import UserError
from sfumato.privacy import statement_chapters
from sfumato.privacy.accounting.accountants import AccountantName, Step
from sfumato.privacy.accounting.budget import check_delta, noise_multiplier_for
from sfumato.privacy.audit.canaries import Canaries
from sfumato.privacy.checks.batches import check_inputs
from sfumato.privacy.checks.refusals import refuse_parts, refuse_without_noise
from sfumato.privacy.checks.spot_check import SpotCheck
from sfumato.privacy.clipping import ClippingRule, Flat, Unclipped
from sfumato.privacy.draws.clipped_sum import ClippedSum, Contribution
from sfumato.privacy.draws.over_ranks import Release
from sfumato.privacy.draws.releases import Releases
from sfumato.privacy.engines.ordinary_backward import Ordinary
from sfumato.privacy.engines.results import PerExampleGradients
from sfumato.privacy.guarantee import Guarantee, current_versions
from sfumato.privacy.loader import poisson_loader
from sfumato.privacy.noise import GaussianNoise
from sfumato.privacy.numerics.randomness import Randomness
from sfumato.privacy.numerics.totals import Totals
from sfumato.privacy.per_example import Loss, PerExample, cross_entropy, with_images
from sfumato.privacy.sampling import PhysicalBatch, PoissonSampler
from sfumato.privacy.statistics import BatchStatistics
from sfumato.privacy.units.image_units import UnitBatch, unit_targets


class PrivateGradients(Releases):
    """Accumulates clipped per-example gradients and releases their noisy mean.

    Args:
        model: The model whose trainable parameters receive `.grad`.
        sampler: Source of the draws; its rate and expected batch are used.
        clipping: The clipping rule; its sensitivity scales the noise.
        noise: The noise multiplier of a whole release. Gradients get all of it, or a little more if
            the rule has something of its own to release.
        loss: From outputs and targets to one loss per row.
        views: Rows per example, averaged before clipping.
        images: Images of a unit of privacy that run beside each other, for units of several
            images (`units` of `accumulate`); a unit with more takes several passes.
        check: Compare the model with the reference, one example at a time, before the first batch,
            and with itself now and then on real examples (`sfumato.privacy.checks.spot_check`).
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
        images: int = 1,
        check: bool = True,
        randomness: Randomness | None = None,
        precision: torch.dtype | Literal["auto"] | None = "auto",
    ) -> None:
        refuse_parts(sampler, clipping, noise)
        super().__init__(sampler, noise)
        self.randomness = Randomness.shared() if randomness is None else randomness
        self._noises, self._unit = 0, "example" if images == 1 else "unit"
        self.views, self.images = views, images
        per_example = PerExample(model, loss=loss, views=views, check=check, precision=precision)
        self.per_example = with_images(per_example, images, views)
        self.spot_check = SpotCheck()
        self.clipping = clipping
        self.clipping.gradient_noise(noise.multiplier)
        self._sum = ClippedSum()

    @classmethod
    def for_budget(
        cls, model: nn.Module, *,
        examples: int, batch: float, epsilon: float, delta: float, steps: int,
        clipping: ClippingRule | None = None, accountant: AccountantName = "pld",
        loss: Loss = cross_entropy, views: int = 1, images: int = 1, check: bool = True,
        randomness: Randomness | None = None,
        precision: torch.dtype | Literal["auto"] | None = "auto",
    ) -> Self:  # fmt: skip
        """The mechanism with the least noise that keeps so many steps within a privacy budget.

        Args:
            model: The model whose trainable parameters receive `.grad`.
            examples: Number of training examples N.
            batch: Expected number of examples in a step.
            epsilon, delta: The budget; delta is below one in the number of examples.
            steps: Number of releases.
            clipping: The clipping rule; `Flat(1.0)` if None.
            accountant: `pld` or `rdp`.
            loss, views, images, check, randomness, precision: As for the class itself.
        """
        check_delta(delta, examples)
        sampler = PoissonSampler(examples, batch)
        sigma = noise_multiplier_for(
            epsilon=epsilon, delta=delta, q=sampler.rate, steps=steps, accountant=accountant
        )
        return cls(
            model, sampler=sampler, clipping=clipping or Flat(1.0), noise=GaussianNoise(sigma),
            loss=loss, views=views, images=images, check=check, randomness=randomness,
            precision=precision,
        )  # fmt: skip

    def __getstate__(self) -> dict[str, Any]:
        """State for copies and files, without the key, sums and examples.

        A copy has a key of its own unless there is a seed: equal noise would cancel between two.
        """
        state = self.__dict__ | {"_sum": ClippedSum(), "spot_check": SpotCheck()}
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

    def statement(self, *, delta: float, data: str, unit: str | None = None) -> str:
        """The privacy statement of `guarantee`, which has the same arguments, as Markdown."""
        return statement_chapters.statement(self.guarantee(delta=delta, data=data, unit=unit))

    def guarantee(self, *, delta: float, data: str, unit: str | None = None) -> Guarantee:
        """The guarantee of what has been released so far, with the conditions of it.

        Args:
            delta: As in (epsilon, delta).
            data: What to call the examples.
            unit: What to call one unit of privacy, such as `patient`; `example` if None, or `unit`
                if images were accumulated with their units.

        Raises:
            UserError: If the model, with the weights of now, mixes the examples of the last batch.
        """
        check_delta(delta, self.sampler.examples)
        checked = self.spot_check.at_end(self.per_example)
        rule, unit = self.clipping, unit or self._unit
        clip = getattr(rule, "clip", rule.sensitivity)
        return Guarantee.accounted(
            steps=self.history, delta=delta, data=data, own_loop=True,
            unit=unit, taken=self.released, views=self.views, seeded=self.randomness.seeded,
            examples=self.sampler.examples, batch=float(self.sampler.batch), rate=self.sampler.rate,
            clipping=rule.describe(unit), clip=clip if clip < math.inf else None,
            images_per_unit=1 if self._unit == "example" else 0, validation=None,
            checked=self.per_example.check, checked_at_end=checked, versions=current_versions(),
        )  # fmt: skip

    def accumulate(
        self, x: Tensor, y: Tensor, weights: Tensor | PhysicalBatch | None = None, *,
        units: Tensor | None = None, there: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Add a physical batch to the sum; nothing is added if this raises.

        Args:
            x: `(examples * views, ...)` inputs, the views of an example beside each other.
            y: `(examples,)` targets; `(examples, images)` for units of several images.
            weights: The physical batch that x and y belong to, or its weights alone: one for an
                example that was drawn, zero for padding. Every row was drawn if None.
            units: The number of each image's unit, where units of any size are given image by
                image: those of a unit beside each other, if need be in several calls.
            there: `(examples, images)` mask of the images that are not padding, which repeats the
                inputs of another image of its unit; all if None.

        Raises:
            UserError: More examples than the sampler has, or one of them known to come twice.
        """
        self._sum.check_kind(by_unit=self.images > 1 or units is not None)
        if units is not None:
            if there is not None:
                raise UserError("Beside `units`, padding has `weights` of zero: leave out `there`.")
            return self._accumulate_units(x, y, weights, units)
        targets = unit_targets(y, there, self.images)
        draw = self._sum.draw.after(self.sampler, y, weights)
        self.per_example.seeds = self._sum.draw.seeds(self.randomness, self.released, weights)
        own = weights.weights if isinstance(weights, PhysicalBatch) else weights
        self._add(self._gradients(x, targets), y, own)
        self._sum.draw, self._sum.by_unit = draw, self.images > 1

    def _add(self, gradients: PerExampleGradients, y: Tensor, weights: Tensor | None) -> None:
        drawn = torch.ones(y.shape[0], dtype=torch.bool, device=y.device)
        if weights is not None:
            drawn = weights.to(y.device) > 0
        parameters, rule = self._trained()
        self._sum.add(Contribution.of(gradients, y, drawn, rule), parameters, rule)

    def _accumulate_units(
        self, x: Tensor, y: Tensor, weights: Tensor | PhysicalBatch | None, units: Tensor
    ) -> None:
        batch = UnitBatch.of(x, y, units, weights, images=self.images, views=self.views)
        last = self._sum.last
        draw = self._sum.draw.after_units(self.sampler, batch.units, last.unit if last else None)
        known = batch.numbered(last.images if last else 0)
        self.per_example.seeds = draw.seeds(self.randomness, self.released, known)
        gradients = self._gradients(batch.x, batch.targets)
        self._sum.add_units(batch, gradients, *self._trained())
        self._sum.draw, self._sum.by_unit, self._unit = draw, True, "unit"

    def _trained(self) -> tuple[dict[str, nn.Parameter], ClippingRule]:
        """The parameters trained after the pass, which may have added some, and their rule."""
        parameters = self.per_example.trainable
        refuse_without_noise(parameters)
        self._sum.check_parameters(parameters)
        return parameters, self._same_rule(parameters)

    def accumulate_canaries(self, canaries: Canaries, draw: Tensor) -> Tensor:
        """Add the canaries that are in a draw, or in a rank's share of it, as examples are added.

        The sampler counts canaries as its last examples; others in the draw are passed over.

        Returns:
            The sum of what was accumulated before in the coordinates of each canary.
        """
        batch, gradients = canaries.batch(draw, self.per_example.trainable)
        self._sum.close(*self._trained())
        after = self._sum.draw.after(self.sampler, batch.indices, batch)
        before = canaries.read(self._sum.totals or {})
        self._add(gradients, gradients.losses, None)
        self._sum.draw = after
        return before

    @sharing_errors()
    def backward(
        self, x: Tensor, y: Tensor, *, physical_batch: int | None = None,
        units: Tensor | None = None, there: Tensor | None = None,
    ) -> BatchStatistics:  # fmt: skip
        """Put the noisy mean gradient of one whole draw into `.grad`, as `loss.backward()` would.

        Args:
            x: `(examples * views, ...)` inputs of one draw, or of a rank's share; possibly none.
            y: `(examples,)` targets.
            physical_batch: Most examples at once; if None all, or half of a size not yet checked.
            units, there: As for `accumulate`; with `units` a physical batch counts images.

        Raises:
            UserError: Something has been accumulated since the last release, or as `accumulate`.
        """
        if not self._sum.empty:
            raise UserError(
                "backward() takes a whole draw, and other examples were accumulated before it: "
                "call release() or discard() first."
            )
        rows = self.per_example.views if units is None else self.views
        check_inputs(x, y, rows)
        size = physical_batch or len(y) or 1
        if physical_batch is None and units is None and len(y):
            size = self.per_example.at_once(x, unit_targets(y, there, self.images))
        try:
            for a in range(0, len(y), size):
                part = slice(a, a + size)
                own, here = (None if t is None else t[part] for t in (units, there))
                self.accumulate(x[a * rows : (a + size) * rows], y[part], units=own, there=here)
        except BaseException:
            self.discard()
            raise
        return self.release()

    def loader(
        self,
        loader: DataLoader[Any],
        *,
        steps: int | None = None,
        units: Tensor | None = None,
        per_unit: int | None = None,
    ) -> DataLoader[Any]:
        """The same loader with draws of this mechanism's sampler as its batches.

        Args:
            loader: A loader of the training examples; its batch size and order are not used.
            steps: Number of draws in one pass; as many as the loader has batches if None.
            units: The unit of each image, if units are drawn: any whole numbers. A batch then ends
                with the numbers of its images' units, which `accumulate` and `backward` take.
            per_unit: Most images of a unit in a draw, chosen at random; all if None.

        Raises:
            UserError: The loader's data set is another than the sampler's, or has no length.
        """
        return poisson_loader(loader, self.sampler, steps, units=units, per_unit=per_unit)

    def _gradients(self, x: Tensor, y: Tensor) -> PerExampleGradients:
        """Per-example gradients, or an ordinary backward pass where nobody asks for single ones."""
        bare = isinstance(self._rule, Unclipped) and self.per_example.precision_for(x) is None
        if bare and len(y):
            return Ordinary(self.per_example.objective, x, y)
        return self.spot_check.gradients(self.per_example, x, y)

    def check(self, x: Tensor, y: Tensor, *, there: Tensor | None = None) -> None:
        """Check on these examples, with the weights of now, that none reaches another.

        Nothing is added to the sum, and model and random states are left as they were. Targets and
        mask are those of `accumulate`.

        Raises:
            UserError: If one does.
        """
        self.spot_check.check(self.per_example, x, unit_targets(y, there, self.images))

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
        event, rule = self.step_event, self._same_rule(parameters)
        self._sum.close(parameters, rule)
        self._sum.check_parameters(parameters)
        sums = Totals(parameters) if self._sum.totals is None else self._sum.totals
        examples = self._sum.draw.check(self.sampler, self._sum.statistics)
        # The number of a release never comes again, even if the history is set back.
        number = max(self._noises, self.released) + 1
        observed, statistics = self._sum.observed, self._sum.statistics
        if observed is None:
            observed = rule.observe_nothing(len(parameters), sums.home)
        release = Release(number, event, rule, parameters, self.randomness, self.sampler)
        try:
            if before is not None:
                before(event)
            part, observed, statistics = release.add_over_ranks(
                sums, observed, statistics, examples
            )
        except BaseException:
            self.discard()
            raise
        self._noises = number
        self.count(event)
        for name, mean in release.noisy_means(part, sums).items():
            parameters[name].grad = mean
        for parameter in others:
            parameter.grad = None
        self._rule = release.adapted(observed)
        self.discard()
        return statistics

    def halve_images(self) -> None:
        """Run half as many images of a unit at once, if memory does not suffice for more."""
        self.images //= 2
        self.per_example = with_images(self.per_example, self.images, self.views)

    def discard(self) -> None:
        """Drop everything accumulated since the last release."""
        self._sum = ClippedSum()

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
        self._sum.check_rule(rule)
        return rule
