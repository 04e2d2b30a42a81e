"""Parameters that a run takes over, draws anew, sets to zero, or trains.

Patterns name layers or parameters as `torch.nn.Module.named_parameters` does: `head` is a layer
with everything in it, `*.bias` every bias.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase

import torch
from torch import nn

from sfumato.errors import UserError, nearest
from sfumato.privacy.numerics.randomness import Randomness
from sfumato.privacy.statement import upwards
from sfumato.recipe import Recipe
from sfumato.settings import Start
from sfumato.training.initial.drawn_statistics import fitted_names
from sfumato.training.initial.start import BESIDE, Donor, Origin, spent

HEAD = "head"
"""The name of the last layer in every model of the registry."""

_MANY = 6
"""Most names that a sentence lists."""


def matches(pattern: str, name: str) -> bool:
    """Tell whether a pattern such as `head` or `*.bias` matches a parameter or its layer."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")


def chosen(patterns: Iterable[str], names: Sequence[str], *, setting: str) -> set[str]:
    """The names that match some pattern.

    Raises:
        UserError: If a pattern matches none.
    """
    found: set[str] = set()
    layers = {".".join(n.split(".")[:depth]) for n in names for depth in range(1, n.count(".") + 2)}
    for pattern in patterns:
        meant = {name for name in names if matches(pattern, name)}
        if not meant:
            top = list(dict.fromkeys(name.split(".")[0] for name in names))
            raise UserError(
                f"'{pattern}' in {setting} matches no parameter of the model."
                f"{nearest(pattern, layers)} Its layers are: {_listed(top, 24)}."
            )
        found |= meant
    return found


def freeze(model: nn.Module, settings: Start) -> None:
    """Freeze all parameters that `start.train` does not match; none if that is empty."""
    if not settings.train:
        return
    parameters = dict(model.named_parameters())
    trained = chosen(settings.train, list(parameters), setting="start.train")
    for name, parameter in parameters.items():
        if name not in trained:
            parameter.requires_grad_(False)


def zero(model: nn.Module, settings: Start) -> None:
    """Set the parameters that `start.zero` matches to zero, after `freeze`.

    A head of zeros sends no gradient back in the first step: it learns to read the layers below
    before it changes them.

    Raises:
        UserError: If one of them is frozen, so that it would stay at zero.
    """
    parameters = dict(model.named_parameters())
    for name in _zeros(model, settings):
        if not parameters[name].requires_grad:
            raise UserError(
                f"start.zero sets '{name}' to zero, but start.train or training.phases freeze it "
                "there: name it in what is trained too, or leave it out of start.zero."
            )
        with torch.no_grad():
            parameters[name].zero_()


def _zeros(model: nn.Module, settings: Start) -> list[str]:
    names = [name for name, _ in model.named_parameters()]
    meant = chosen(settings.zero, names, setting="start.zero")
    return [name for name in names if name in meant]


def fill(
    model: nn.Module, donor: Donor, settings: Start, *, classes: int, randomness: Randomness
) -> None:
    """Give a new model the donor's weights, or new ones with their mean and variance.

    Raises:
        UserError: If the donor's parameters are not those of the model.
    """
    taken, _ = matching(model, donor, settings, classes=classes)
    generator = randomness.generator(0, "meanvar")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name not in taken:
                continue
            source = donor.parameters[name]
            if settings.how == "transfer":
                parameter.copy_(source)
            else:
                mean, std = source.double().mean(), source.double().std(correction=0)
                drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.copy_(mean + std * drawn)


def matching(
    model: nn.Module, donor: Donor, settings: Start, *, classes: int
) -> tuple[list[str], list[str]]:
    """The names of the parameters that come from the donor, and of those that stay as drawn.

    Those of whitening layers are neither: they are fitted to drawn images. `start.reset` also names
    those parameters of the donor that the model does not have: a network that ends earlier leaves
    them out.
    """
    fitted = set(fitted_names(model))
    mine = {n: tuple(p.shape) for n, p in model.named_parameters() if n not in fitted}
    theirs = {n: tuple(p.shape) for n, p in donor.parameters.items() if n not in fitted}
    transfer = settings.how == "transfer"
    patterns = settings.reset
    if patterns is None:
        patterns = [HEAD] if transfer else []
        if transfer and not any(matches(HEAD, name) for name in mine):
            raise UserError(
                f"The model has no layer called '{HEAD}': name the layers to draw anew in "
                "start.reset ([] for none)."
            )
    reset = chosen(patterns, list(mine | theirs), setting="start.reset")
    taken: list[str] = []
    fresh: list[str] = []
    wrong: list[str] = []
    for name, shape in mine.items():
        other = theirs.get(name)
        if name in reset:
            fresh.append(name)
        elif other is None:
            wrong.append(f"{name} is not in the source")
        elif other == shape:
            taken.append(name)
        elif _but_for_classes(shape, classes) == _but_for_classes(
            other, len(donor.description.classes)
        ):
            (fresh if transfer else taken).append(name)
        else:
            wrong.append(f"{name} is {other} in the source and {shape} here")
    wrong += [
        f"{name} is only in the source"
        for name in theirs
        if name not in mine and not any(matches(pattern, name) for pattern in patterns)
    ]
    if wrong or not taken:
        d = donor.description
        reason = _listed(wrong) if wrong else "start.reset leaves nothing of it"
        raise UserError(
            f"The start {donor.named} ('{d.model}' for "
            f"{d.channels}x{d.size[0]}x{d.size[1]} images) does not match this run's model: "
            f"{len(taken)} of {len(mine)} parameters match in name and shape, but {reason}. Use "
            "the same model and options, or name in start.reset what to draw anew."
            + _about_second(mine, theirs)
        )
    return taken, fresh


def _about_second(mine: Collection[str], theirs: Collection[str]) -> str:
    """Advice where only the model, or only the start, has a second network."""
    here, there = (any(matches(BESIDE, name) for name in names) for names in (mine, theirs))
    if here and not there:
        return " Name the weights of the second network in start.beside."
    if there and not here:
        return " start.beside is for a model with a second network, see the option 'beside'."
    return ""


def _but_for_classes(shape: tuple[int, ...], classes: int) -> tuple[int | None, ...]:
    """A shape with its first size left open if that is the number of classes."""
    return (None, *shape[1:]) if shape and shape[0] == classes else shape


def describe(model: nn.Module, donor: Donor, settings: Start, *, classes: int) -> str:
    """A sentence about the parameters that were taken over and those that were not."""
    taken, fresh = matching(model, donor, settings, classes=classes)
    every = len(taken) + len(fresh)
    zeros = _zeros(model, settings)
    taken, fresh = ([n for n in names if n not in zeros] for names in (taken, fresh))
    what = f"{donor.named} ({donor.description.model})"
    but = f"; drawn anew: {_listed(fresh)}" if fresh else ""
    but += f"; begun at zero: {_listed(zeros)}" if zeros else ""
    if fitted := fitted_names(model):
        but += f"; fitted to images that the program draws: {_listed(fitted)}"
    if settings.how == "transfer":
        return f"{len(taken)} of {every} parameters were taken from {what}{but}."
    return (
        f"{len(taken)} of {every} parameters were drawn from normal "
        f"distributions with the mean and variance that each has in {what}{but}."
    )


def frozen(model: nn.Module, trained: Collection[str] | None = None) -> str:
    """A sentence about the parameters that are trained; empty if all are.

    Args:
        model: The model.
        trained: Names of those parameters; all that are not frozen now if None.
    """
    parameters = dict(model.named_parameters())
    named = [name for name, p in parameters.items() if p.requires_grad]
    trained = named if trained is None else [name for name in parameters if name in trained]
    if len(trained) == len(parameters):
        return ""
    count = sum(parameters[name].numel() for name in trained)
    return (
        f"Only {_listed(trained)} {'was' if len(trained) == 1 else 'were'} trained, {count} of "
        f"{sum(p.numel() for p in parameters.values())} numbers; the rest was frozen."
    )


def remarks(recipe: Recipe, origin: Origin, model: nn.Module) -> list[str]:
    """Remarks for the user before the first step."""
    said = [words for words in (origin.words, frozen(model)) if words]
    if origin.before:
        said.append(
            f"The start has spent epsilon {upwards(spent(recipe, origin), places=3)} of "
            f"{recipe.privacy.epsilon:g} on these images; this run's noise keeps both together "
            "within it."
        )
    return said


def _listed(names: Sequence[str], many: int = _MANY) -> str:
    shown = ", ".join(names[:many])
    return f"{shown} and {len(names) - many} more" if len(names) > many else shown
