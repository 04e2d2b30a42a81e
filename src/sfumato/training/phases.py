"""Phases of a run: parts of its steps in which only some parameters are trained.

A head that is trained first, at a high rate, reads the layers below before it changes them (Tang et
al., 2023). One run takes all phases, with one budget, one ledger and one noise multiplier: which
parameters a step trains is part of the recipe and known before the first one.

Frozen in a phase, a parameter has no gradient, no noise, no part in the norm that is clipped, and
no weight decay. An optimizer's state of a parameter, such as its momentum, begins with the first
phase that trains it, rests in phases that do not, and goes on after them. The schedule of the
learning rate runs once over the whole run, with a phase's rate in the place of `optimizer.lr`.
Averages of weights go on over all steps.

*Guarantee:* The parameters of a step's phase are those that `PrivateGradients` clips, adds noise to
and updates in that step; all others keep their bits. They depend on the recipe and the number of
the step alone, so a resumed run has the same. Before the first batch of a phase the model is
checked as before the first batch of a run, with the parameters of that phase.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torch import nn

from sfumato.errors import UserError
from sfumato.privacy.clipping import ClippingRule
from sfumato.recipe import Recipe
from sfumato.settings import Optimizer
from sfumato.settings import Phase as Settings
from sfumato.training.initial import parameters

_SETTING = "training.phases"


@dataclass(frozen=True)
class Phase:
    """The steps of a phase and what it does in them.

    Attributes:
        first: The first step, from 1.
        last: The last step.
        names: The parameters that it trains.
        optimizer: The optimizer's settings, with the phase's own learning rate.
        clip: The clipping norm, before any decay.
        rate: The setting of the learning rate, with its value, for messages.
        words: A phrase about all of that; empty for a run without phases.
    """

    first: int
    last: int
    names: frozenset[str]
    optimizer: Optimizer
    clip: float
    rate: str
    words: str = ""


class Phases:
    """The phases of a run, one after the other, on its model.

    Without `training.phases` there is a single one, and the model is never changed.

    Args:
        recipe: The recipe.
        model: The model, with everything trainable that some phase trains.
        steps: Number of steps of the run.

    Raises:
        UserError: The phases do not fit the model, or the number of steps.
    """

    def __init__(self, recipe: Recipe, model: nn.Module, steps: int) -> None:
        self.every = {name: p for name, p in model.named_parameters() if p.requires_grad}
        """All parameters that some phase trains."""
        o, p = recipe.optimizer, recipe.privacy
        self._clip = p.clip
        settings, rate = recipe.training.phases, f"optimizer.lr = {o.lr:g}"
        if not settings:
            whole = Phase(1, steps, frozenset(self.every), o, p.clip, rate)
            self.all: tuple[Phase, ...] = (whole,)
            return
        self.all = tuple(
            Phase(
                first=span.start,
                last=span.stop - 1,
                names=_trained(own, list(self.every), number),
                optimizer=o if own.lr is None else replace(o, lr=own.lr),
                clip=p.clip if own.clip is None else own.clip,
                rate=rate if own.lr is None else f"lr = {own.lr:g} in {_in(number)}",
                words=words,
            )
            for number, (own, span, words) in enumerate(
                zip(settings, spans(settings, steps), in_words(recipe, steps), strict=True), 1
            )
        )

    @property
    def sets_clip(self) -> bool:
        """Tell whether some phase has a clipping norm of its own."""
        return any(phase.clip != self._clip for phase in self.all)

    def at(self, step: int) -> Phase:
        """The phase of step `step` (from 1)."""
        return next((phase for phase in self.all if step <= phase.last), self.all[-1])

    def begins(self, step: int) -> bool:
        """Tell whether a phase other than the first begins with a step."""
        return any(step == phase.first for phase in self.all[1:])

    def enter(self, step: int) -> bool:
        """Make the parameters of a step's phase trainable, and freeze all others.

        Returns:
            Whether that changed anything.
        """
        if len(self.all) == 1:
            return False
        wanted, changed = self.at(step).names, False
        for name, parameter in self.every.items():
            if parameter.requires_grad != (name in wanted):
                parameter.requires_grad_(name in wanted)
                changed = True
        return changed

    def leave(self) -> None:
        """Make everything trainable again that some phase trains."""
        for parameter in self.every.values():
            parameter.requires_grad_()

    def rules(self, rule: ClippingRule) -> Iterator[ClippingRule]:
        """A clipping rule bound to the parameters of each phase.

        Raises:
            UserError: It does not fit a phase.
        """
        for number, phase in enumerate(self.all, 1):
            trained = {n: p.shape for n, p in self.every.items() if n in phase.names}
            try:
                yield rule.bind(list(trained), list(trained.values()))
            except UserError as error:
                if len(self.all) == 1:
                    raise
                raise UserError(f"{error} (In phase {number} of {_SETTING}.)") from None


def check(recipe: Recipe, model: nn.Module, steps: int, rule: ClippingRule) -> None:
    """Refuse phases that do not fit the model, its clipping rule or the number of steps."""
    for _ in Phases(recipe, model, steps).rules(rule):
        pass


def freeze(model: nn.Module, recipe: Recipe) -> None:
    """Freeze all parameters that no step trains, by `start.train` and `training.phases`.

    Raises:
        UserError: A pattern matches no parameter, or only frozen ones.
    """
    parameters.freeze(model, recipe.start)
    if not (phases := recipe.training.phases):
        return
    names = [name for name, _ in model.named_parameters()]
    free = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for number, phase in enumerate(phases, 1):
        parameters.chosen(phase.train, names, setting=_in(number))
    trained = {name for n, phase in enumerate(phases, 1) for name in _trained(phase, list(free), n)}
    for name, parameter in free.items():
        parameter.requires_grad_(name in trained)


def first_clip(recipe: Recipe) -> float:
    """The clipping norm of a run's first step."""
    own = recipe.training.phases[0].clip if recipe.training.phases else None
    return recipe.privacy.clip if own is None else own


def spans(phases: Sequence[Settings], steps: int) -> list[range]:
    """The steps of each phase, from 1, in a run of `steps` steps.

    Raises:
        UserError: They leave no step for the last phase.
    """
    found, first = [], 1
    for phase in phases[:-1]:
        length = phase.steps or max(1, round((phase.share or 0.0) * steps))
        found.append(range(first, first + length))
        first += length
    if first > steps:
        raise UserError(
            f"{_SETTING} takes {first - 1} steps before the last phase, and the run has {steps}: "
            "shorten the phases, or take more steps."
        )
    return [*found, range(first, steps + 1)]


def in_words(recipe: Recipe, steps: int) -> tuple[str, ...]:
    """Phrases about what each phase trains, with its steps and rate; none without phases."""
    found = []
    phases = recipe.training.phases or []
    for phase, span in zip(phases, spans(phases, steps) if phases else [], strict=True):
        what = f"only {', '.join(phase.train)}" if phase.train else "everything"
        if not phase.train and recipe.start.train:
            what = f"all of {', '.join(recipe.start.train)}"
        lr = recipe.optimizer.lr if phase.lr is None else phase.lr
        clip = "" if phase.clip is None else f", C = {phase.clip:g}"
        found.append(f"{what} in steps {span.start} to {span.stop - 1}, learning rate {lr:g}{clip}")
    return tuple(found)


def _trained(phase: Settings, free: list[str], number: int) -> frozenset[str]:
    """The names of the parameters that a phase trains, among those that are not frozen anyway."""
    for pattern in phase.train:
        if not any(parameters.matches(pattern, name) for name in free):
            raise UserError(
                f"'{pattern}' in {_in(number)} matches only parameters that are frozen in the "
                "whole run, by start.train or by the model itself: train them there too, or leave "
                "it out."
            )
    chosen = parameters.chosen(phase.train, free, setting=_in(number))
    return frozenset(chosen if phase.train else free)


def _in(number: int) -> str:
    return f"phase {number} of {_SETTING}"
