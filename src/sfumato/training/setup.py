"""Resolution of a recipe and its data to the numbers of a run: batch, steps, noise, views."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from sfumato import models
from sfumato.data import Dataset, Views
from sfumato.data import augment as augmentations
from sfumato.errors import UserError
from sfumato.privacy.accounting import budget
from sfumato.privacy.accounting.accountants import AccountantName, Step
from sfumato.privacy.accounting.noise_schedule import NoiseSchedule, decaying
from sfumato.privacy.accounting.selection import Selection
from sfumato.privacy.adaptive import AdaptiveQuantile
from sfumato.privacy.checks.refusals import mixing_layers
from sfumato.privacy.clipping import (
    Automatic,
    ClippingRule,
    Flat,
    GroupWise,
    Normalised,
    Unclipped,
)
from sfumato.privacy.noise import GaussianNoise
from sfumato.privacy.numerics.randomness import Randomness
from sfumato.privacy.sampling import PoissonSampler
from sfumato.privacy.statement import delta_warning, epsilon_warning
from sfumato.recipe import Recipe
from sfumato.settings import Augment, Privacy, Training
from sfumato.training import phases, schedules
from sfumato.training.balance import check_balance
from sfumato.training.class_weights import check_class_weights
from sfumato.training.initial import parameters
from sfumato.training.initial.drawn_statistics import fit_whitening
from sfumato.training.initial.start import Donor


@dataclass(frozen=True)
class Plan:
    """The numbers of a run.

    Attributes:
        sampler: Poisson sampling at the recipe's expected batch.
        clipping: The clipping rule.
        noise: The noise, calibrated to the budget where the recipe leaves it open.
        steps: Steps to take: as requested, or fewer where the budget ends earlier.
        asked: Steps requested.
        before: Steps that the run's start took on the same images, counted in the budget.
        schedule: The noise over the steps, if it varies; `noise` is then that of the first step.
        clip_decay: The clipping norm of the first step over that of the last.
        selection: The choice of the best of several such runs, counted in the budget.
    """

    sampler: PoissonSampler
    clipping: ClippingRule
    noise: GaussianNoise
    steps: int
    asked: int
    before: tuple[Step, ...] = ()
    schedule: NoiseSchedule | None = None
    clip_decay: float = 1.0
    selection: Selection | None = None

    @property
    def event(self) -> Step:
        """The privacy event of the first step."""
        return Step(q=self.sampler.rate, noise_multiplier=self.noise.multiplier)

    def noise_at(self, step: int) -> GaussianNoise:
        """The noise of step `step` (from 1)."""
        return GaussianNoise(self.schedule.at(step)) if self.schedule else self.noise

    def effective_noise(self, step: int) -> float:
        """The noise of step `step` on the mean gradient, in units of C: sigma / B."""
        return self.noise_at(step).multiplier / self.sampler.batch

    def clipping_at(self, step: int, now: ClippingRule, clip: float) -> ClippingRule:
        """The rule of step `step` (from 1), given the rule as it is now.

        Args:
            step: The step's number.
            now: The rule of the step before.
            clip: C of the step's phase, before any decay.
        """
        if not isinstance(now, Flat | Normalised | GroupWise):
            return now
        clip *= self.clip_decay ** (-(step - 1) / max(1, self.asked - 1))
        return replace(now, clip=clip)

    def history(self, steps: int) -> tuple[Step, ...]:
        """The events of the first `steps` steps, without those of `before`."""
        if self.schedule:
            return self.schedule.history(self.sampler.rate, steps)
        return (replace(self.event, count=steps),) if steps else ()

    def curve(self, counts: list[int], *, delta: float, accountant: str) -> list[float]:
        """Upper bounds of epsilon, `before` included, after each of several numbers of steps."""
        return budget.curve(
            self.schedule or self.noise.multiplier,
            counts,
            q=self.sampler.rate,
            delta=delta,
            before=self.before,
            accountant=cast(AccountantName, accountant),
            selection=self.selection,
        )


def expected_batch(training: Training, examples: int) -> int:
    """The batch of a recipe, or a suitable one for this number of examples."""
    return training.batch or max(1, min(4096, examples // 8))


def asked_steps(training: Training, examples: int, batch: float) -> int:
    """The number of steps that a recipe asks for."""
    by_epochs = max(1, round(training.epochs * examples / batch)) if training.epochs else 100
    return training.steps or by_epochs


def plan(
    recipe: Recipe,
    examples: int,
    *,
    before: tuple[Step, ...] = (),
    selection: Selection | None = None,
) -> Plan:
    """Resolve a recipe against the size of its training set.

    Guarantee: For a private recipe, `before` and `steps` steps of the returned mechanism together,
    or the best of several runs of these by `selection`, spend at most the recipe's epsilon at its
    delta, by the recipe's accountant.
    """
    t, p = recipe.training, recipe.privacy
    batch = expected_batch(t, examples)
    if batch > examples:
        raise UserError(
            f"The expected batch (training.batch = {batch}) is larger than the training set of "
            f"'{recipe.data.name}', which has {examples} {recipe.data.unit}s."
        )
    sampler = PoissonSampler(examples, batch)
    asked = asked_steps(t, examples, batch)
    if not p.enabled:
        return Plan(sampler, Unclipped(), GaussianNoise(0.0), asked, asked)
    budget.check_delta(p.delta, examples)
    given: Any = {
        "epsilon": p.epsilon,
        "delta": p.delta,
        "q": sampler.rate,
        "before": before,
        "accountant": p.accountant,
        # The noise of scores is chosen after that of the steps, so that it costs nothing.
        "selection": replace(selection, score_noise=None) if selection else None,
    }
    course = decaying(asked, p.noise_decay) if p.noise_decay != 1 else None
    steps, sigma = asked, p.noise_multiplier
    if sigma is None:
        sigma = budget.noise_multiplier_for(**given, steps=asked, schedule=course)
    elif course is not None:
        sigma /= course.multipliers[0]
    schedule = course.scaled(sigma) if course else None
    if p.noise_multiplier is not None:
        steps = budget.steps_for(**given, noise_multiplier=schedule or sigma, most=asked)
    rule = clipping_rule(p, batch, max(schedule.multipliers) if schedule else sigma)
    noise = GaussianNoise(schedule.at(1) if schedule else sigma)
    found = Plan(sampler, rule, noise, steps, asked, before, schedule, p.clip_decay, selection)
    if selection is not None:
        _check_score(found, selection, p)
    return found


def _check_score(plan: Plan, selection: Selection, p: Privacy) -> None:
    """Refuse a choice among runs whose scores have less noise than the budget allows."""
    spent = selection.epsilon(plan.history(plan.steps), delta=p.delta, before=plan.before)
    if spent > p.epsilon:
        raise UserError(
            f"The noise of {selection.score_noise} on the scores of runs is too little: the choice "
            f"of the best would spend epsilon {spent:.4g} of {p.epsilon:g}."
        )


def clipping_rule(p: Privacy, batch: float, sigma: float) -> ClippingRule:
    """The clipping rule that a recipe asks for, with the largest noise multiplier of its steps."""
    match p.clipping:
        case "normalised":
            return Normalised(p.clip)
        case "automatic":
            return Automatic(p.gamma)
        case "per-layer":
            return GroupWise(p.clip, p.split, given=tuple(p.group_clips))
        case "group-wise":
            return GroupWise(p.clip, p.split, tuple(p.groups), tuple(p.group_clips))
        case "adaptive" | "adaptive-per-layer":
            # Default: at most 2 % more noise on the gradients than without the count.
            rule = AdaptiveQuantile(
                p.clip,
                p.count_noise or max(batch / 20, 2.5 * sigma),
                p.quantile,
                p.clip_lr,
                p.clipping == "adaptive-per-layer",
                p.split,
            )
            rule.gradient_noise(sigma)
            return rule
        case _:
            return Flat(p.clip)


def check_methods(
    recipe: Recipe, plan: Plan, dataset: Dataset, model: nn.Module
) -> tuple[str, ...]:
    """Refuse methods that do not fit this model or data, and warn about useless settings."""
    schedules.check(recipe, dataset)
    check_class_weights(recipe, dataset.classes)
    check_balance(recipe, dataset.classes)
    phases.check(recipe, model, plan.steps, plan.clipping)
    warning = delta_warning(
        recipe.privacy.delta, dataset.train.examples, unit=recipe.data.unit
    ).replace("**", "")
    planned = enumerate(phases.in_words(recipe, plan.steps), 1)
    warnings = tuple(f"Phase {number} trains {words}." for number, words in planned)
    warnings += (warning,) if warning and recipe.privacy.enabled else ()
    if recipe.privacy.enabled:
        warnings += tuple(filter(None, [epsilon_warning(recipe.privacy.epsilon)]))
    if recipe.training.views > 1 and recipe.augment == Augment(padding=recipe.augment.padding):
        return (
            describe(recipe, plan, dataset),
            f"All {recipe.training.views} views of an image are the same, as nothing in [augment] "
            "is on: training.views = 1 would give the same in less time.",
            *warnings,
        )
    return (describe(recipe, plan, dataset), *warnings)


def describe(recipe: Recipe, plan: Plan, dataset: Dataset) -> str:
    """One line about a run: images, network, steps and noise."""
    shape = "×".join(str(side) for side in (dataset.channels, *dataset.size))
    sigmas = plan.schedule.multipliers if plan.schedule else (plan.noise.multiplier,)
    sigma = " to ".join(f"{value:.4g}" for value in dict.fromkeys((sigmas[0], sigmas[-1])))
    noise = f"sigma {sigma}" if recipe.privacy.enabled else "without privacy"
    if (scale := schedules.noise_scale(recipe.optimizer, plan.effective_noise(1))) != 1:
        noise += f" and for that a rate of {scale * recipe.optimizer.lr:.3g}"
    unit, whose = recipe.data.unit, ""
    if unit != "image":
        whose = f" from {dataset.train.examples:,} {unit}s"
    return (
        f"Training {recipe.model.name} on {len(dataset.train):,} images{whose} of "
        f"{len(dataset.classes)} classes ({shape}): {plan.steps:,} steps of about "
        f"{plan.sampler.batch:,} {unit}s, {noise}."
    )


def views(recipe: Recipe) -> Views:
    """The views of an example in a recipe."""
    a, t = recipe.augment, recipe.training
    augment = augmentations.Augment(
        crop=a.crop,
        padding_mode=a.padding,
        flip=a.flip,
        vertical_flip=a.vertical_flip,
        rot90=a.rot90,
        rotate=a.rotate,
        cutout=a.cutout,
        brightness=a.brightness,
        contrast=a.contrast,
        saturation=a.saturation,
    )
    return Views(
        augment=augment,
        count=t.views,
        clean=t.clean_view,
        mixtures=t.self_mix,
        alpha=t.mix_alpha,
    )


def build_model(
    recipe: Recipe,
    dataset: Dataset,
    randomness: Randomness,
    donor: Donor | None = None,
    *,
    trust: models.Trust = models.Trust(),  # noqa: B008
) -> nn.Module:
    """The recipe's model, initialised and frozen as it asks, and checked against the data.

    Args:
        recipe: The recipe.
        dataset: The training data.
        randomness: Source of the initial weights.
        donor: The model to start from, unless the weights will come from a checkpoint.
        trust: The code outside sfumato that the recipe may name.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(randomness.generator(0, "initialise").initial_seed())
        model = models.create_trusted(
            recipe.model.name,
            recipe.model.options,
            classes=len(dataset.classes),
            channels=dataset.channels,
            size=dataset.size,
            trust=trust,
            batchnorm_to=recipe.model.batchnorm_to,
        )
    if recipe.privacy.enabled:
        _refuse_batchnorm(recipe.model.name, model)
    if donor is not None:
        classes = len(dataset.classes)
        parameters.fill(model, donor, recipe.start, classes=classes, randomness=randomness)
    fit_whitening(
        model,
        channels=dataset.channels,
        size=dataset.size,
        mean=dataset.mean,
        std=dataset.std,
    )
    phases.freeze(model, recipe)
    parameters.zero(model, recipe.start)
    if not any(p.requires_grad for p in model.parameters()):
        raise UserError(f"Model '{recipe.model.name}' has no parameter to train.")
    probe = torch.zeros(2, dataset.channels, *dataset.size)
    try:
        with torch.no_grad():
            out = model(probe)
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"Model '{recipe.model.name}' cannot take images of {dataset.channels} channels and "
            f"{dataset.size[0]}x{dataset.size[1]} pixels: {error}"
        ) from None
    shape = tuple(out.shape) if isinstance(out, torch.Tensor) else type(out).__name__
    if shape != (2, len(dataset.classes)):
        raise UserError(
            f"Model '{recipe.model.name}' returns {shape} for two images, but '{recipe.data.name}' "
            f"has {len(dataset.classes)} classes: it must return (2, {len(dataset.classes)})."
        )
    return model


def _refuse_batchnorm(name: str, model: nn.Module) -> None:
    """Refuse a model with BatchNorm in training mode, with the setting that replaces it.

    Raises:
        UserError: It has such a layer.
    """
    mixing = mixing_layers(model)
    kinds = [
        f"'{layer}': {type(module).__name__}"
        for layer, module in model.named_modules()
        if isinstance(module, _BatchNorm) and (layer or "(the model itself)") in mixing
    ]
    if kinds:
        more = f" and {len(kinds) - 1} more" if len(kinds) > 1 else ""
        raise UserError(
            f"Model '{name}' cannot be trained with differential privacy as it is: BatchNorm "
            f"(layer {kinds[0]}{more}) normalises each example by the others of its batch. "
            "--batchnorm-to groupnorm (model.batchnorm_to) puts a GroupNorm in its place."
        )
