"""Where a run's first weights come from, and which of them it trains.

Papernot et al. (2019) start private training in two ways. *Transfer* takes over the weights of a
model trained on public data, draws the last layer anew and may freeze the rest. *MeanVar* (Raghu et
al., 2019) takes over only the mean and the variance of each layer's weights, and draws new weights
from the normal distribution that has them.

*Guarantee:* Of the weights' ancestors a private run accepts those whose data the user declared
public, and those trained with noise. A statistic of weights has no bounded sensitivity to a
training image, so there is no noise to add to it: the noise must have been in the ancestor's own
training. If that was on this run's images, its steps are composed with the run's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sfumato.data import Dataset
from sfumato.data.catalogue import canonical
from sfumato.errors import UserError, nearest
from sfumato.privacy.accounting import Step, merge
from sfumato.privacy.composition import Exposure, steps_from_list, steps_to_list
from sfumato.privacy.noise import Randomness
from sfumato.recipe import Recipe, Start
from sfumato.training.classifier import Description, load
from sfumato.training.files import WEIGHTS

HEAD = "head"
"""What every model of the zoo calls its last layer."""

_MANY = 6
"""How many names a sentence lists."""


@dataclass(frozen=True)
class Origin:
    """What a run keeps about its start, in the first line of its ledger.

    Attributes:
        weights: SHA-256 of the weights file; empty for a run from scratch.
        words: What was done with it, in a sentence.
        exposures: Data sets that it depends on, apart from what `before` counts.
        before: Steps that it took on this run's images, to be composed with the run's own.
        mean: What its images were normalised with, if the run's are to be too.
        std: The same.
    """

    weights: str = ""
    words: str = ""
    exposures: tuple[Exposure, ...] = ()
    before: tuple[Step, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for the ledger."""
        return {
            "weights": self.weights,
            "words": self.words,
            "exposures": [exposure.to_dict() for exposure in self.exposures],
            "before": steps_to_list(self.before),
            "mean": list(self.mean),
            "std": list(self.std),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Origin:
        """Back from the ledger."""
        return cls(
            weights=content["weights"],
            words=content["words"],
            exposures=tuple(map(Exposure.from_dict, content["exposures"])),
            before=steps_from_list(content["before"]),
            mean=tuple(content["mean"]),
            std=tuple(content["std"]),
        )

    def normalised(self, dataset: Dataset) -> Dataset:
        """The data set with the constants that transferred layers were trained with."""
        if len(self.mean) != dataset.channels:
            return dataset
        return replace(dataset, mean=self.mean, std=self.std)


@dataclass(frozen=True)
class Donor:
    """A model to start from.

    Attributes:
        source: Where it was found.
        description: What its weights file says about itself.
        parameters: Its parameters, by name.
        origin: What the run must keep about it.
    """

    source: str
    description: Description
    parameters: dict[str, Tensor]
    origin: Origin


def open_donor(recipe: Recipe, *, unchanged: Origin | None = None) -> Donor | None:
    """The model that a recipe starts from, or None for a run from scratch.

    Args:
        recipe: What to do.
        unchanged: What an interrupted run has kept about its start, which must still be that.

    Raises:
        UserError: If it cannot be read, or a private run may not start from it.
    """
    settings = recipe.start
    if not settings.source:
        return None
    path = Path(settings.source).expanduser()
    try:
        classifier = load(path)
    except UserError as error:
        raise UserError(f"start.source = '{settings.source}': {error}") from None
    with open(path / WEIGHTS if path.is_dir() else path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if unchanged is not None and unchanged.weights != digest:
        raise UserError(
            f"The weights in {path} are not those that the run started from, and no checkpoint was "
            "written yet. Start a new run."
        )
    description = classifier.description
    exposures, before = _judged(_exposures(description, settings.source), recipe)
    transfer = settings.how == "transfer"
    origin = unchanged or Origin(
        weights=digest,
        exposures=exposures,
        before=before,
        mean=description.mean if transfer else (),
        std=description.std if transfer else (),
    )
    parameters = {n: p.detach() for n, p in classifier.network.named_parameters()}
    return Donor(settings.source, description, parameters, origin)


def _exposures(description: Description, source: str) -> tuple[Exposure, ...]:
    """The data sets that a model depends on, as its weights file states them."""
    stated = description.guarantee.get("exposures")
    if stated is None:
        if description.guarantee.get("private", False):
            raise UserError(
                f"start.source = '{source}' says that it is private, but not which steps it took, "
                "so nothing can be counted. Train it again with this version of sfumato."
            )
        return (Exposure("data that it does not name"),)
    try:
        return tuple(map(Exposure.from_dict, stated))
    except (KeyError, TypeError, ValueError, AttributeError, UserError) as error:
        raise UserError(
            f"start.source = '{source}' states what it was trained on in a way that cannot be "
            f"read: {error}."
        ) from None


def _judged(
    exposures: Sequence[Exposure], recipe: Recipe
) -> tuple[tuple[Exposure, ...], tuple[Step, ...]]:
    """What a run may start from: the exposures to state, and the steps to count.

    Guarantee: For a private run no exposure is left bare, a data set of this run's name is never
    taken for another one, and noisy steps are left out of the count only if the user said that they
    were taken on other images.
    """
    s = recipe.start
    if s.public:
        exposures = [replace(e, public=True) if e.bare else e for e in exposures]
    if not recipe.privacy.enabled:
        return tuple(exposures), ()
    noisy = [e for e in exposures if e.noisy]
    for e in exposures:
        if e.noisy:
            continue
        claimed = s.same_data and (e.bare or not noisy)
        if claimed or _same_set(e.data, recipe.data.name):
            raise UserError(
                f"start.source = '{s.source}' was trained without privacy on '{e.data}', and this "
                f"run is to be private on {'the same images' if claimed else 'it too'}: no noise "
                "added later takes back what the weights already hold. Train the start with "
                "privacy, and count it with start.same_data = true."
            )
        if e.bare:
            raise UserError(
                f"start.source = '{s.source}' was trained on '{e.data}' without privacy. If those "
                "images are public, declare it with start.public = true; if they are this run's, "
                "train the start with privacy and count it with start.same_data = true."
            )
    if not noisy:
        return tuple(exposures), ()
    names = ", ".join(f"'{e.data}'" for e in noisy)
    if s.same_data is None:
        raise UserError(
            f"start.source = '{s.source}' spent privacy on {names}. Say whether those are this run's "
            "images: start.same_data = true counts what it spent within this run's epsilon; "
            "start.same_data = false means that no image is in both."
        )
    if not s.same_data:
        if any(_same_set(e.data, recipe.data.name) for e in noisy):
            raise UserError(
                f"start.same_data = false, but '{s.source}' was trained on {names} and this run "
                f"trains on '{recipe.data.name}'. Count what it spent with start.same_data = true."
            )
        return tuple(exposures), ()
    before = merge([step for e in noisy for step in e.steps])
    return tuple(e for e in exposures if not e.noisy), before


def _same_set(a: str, b: str) -> bool:
    """Whether two names are of one catalogued data set; folders may share a name by chance."""
    return canonical(a) is not None and canonical(a) == canonical(b)


def matches(pattern: str, name: str) -> bool:
    """Whether a pattern (`head`, `res?.*`, `*.bias`) means a parameter: it, or a layer around it."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")


def chosen(patterns: Iterable[str], names: Sequence[str], *, setting: str) -> set[str]:
    """The names that some pattern means.

    Raises:
        UserError: If a pattern means none.
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
    """Leave only what `start.train` means to be trained, or everything if that is empty."""
    if not settings.train:
        return
    parameters = dict(model.named_parameters())
    trained = chosen(settings.train, list(parameters), setting="start.train")
    for name, parameter in parameters.items():
        if name not in trained:
            parameter.requires_grad_(False)


def fill(
    model: nn.Module, donor: Donor, settings: Start, *, classes: int, randomness: Randomness
) -> None:
    """Give a freshly drawn model the donor's weights, or new ones with their mean and variance.

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
    """The names of the parameters that come from the donor, and of those that stay as drawn."""
    mine = {name: tuple(p.shape) for name, p in model.named_parameters()}
    theirs = {name: tuple(p.shape) for name, p in donor.parameters.items()}
    transfer = settings.how == "transfer"
    patterns = settings.reset
    if patterns is None:
        patterns = [HEAD] if transfer else []
        if transfer and not any(matches(HEAD, name) for name in mine):
            raise UserError(
                f"The model has no layer called '{HEAD}': name the layers to draw anew in "
                "start.reset ([] for none)."
            )
    reset = chosen(patterns, list(mine), setting="start.reset")
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
            f"start.source = '{donor.source}' ('{d.model}' for {d.channels}x{d.size[0]}x{d.size[1]} "
            f"images) does not match this run's model: {len(taken)} of {len(mine)} parameters match "
            f"in name and shape, but {reason}. Use the same model and options, or name in "
            "start.reset what to draw anew."
        )
    return taken, fresh


def _but_for_classes(shape: tuple[int, ...], classes: int) -> tuple[int | None, ...]:
    """A shape with its outputs left open where there is one for each class."""
    return (None, *shape[1:]) if shape and shape[0] == classes else shape


def describe(model: nn.Module, donor: Donor, settings: Start, *, classes: int) -> str:
    """What was taken over and what was not, in a sentence."""
    taken, fresh = matching(model, donor, settings, classes=classes)
    what = f"'{donor.source}' ({donor.description.model})"
    but = f"; drawn anew: {_listed(fresh)}" if fresh else ""
    if settings.how == "transfer":
        return f"{len(taken)} of {len(taken) + len(fresh)} parameters were taken from {what}{but}."
    return (
        f"{len(taken)} of {len(taken) + len(fresh)} parameters were drawn from normal distributions "
        f"with the mean and variance that each has in {what}{but}."
    )


def frozen(model: nn.Module) -> str:
    """Which parameters are trained, in a sentence; empty if all are."""
    parameters = dict(model.named_parameters())
    trained = [name for name, p in parameters.items() if p.requires_grad]
    if len(trained) == len(parameters):
        return ""
    count = sum(parameters[name].numel() for name in trained)
    return (
        f"Only {_listed(trained)} {'was' if len(trained) == 1 else 'were'} trained, {count} of "
        f"{sum(p.numel() for p in parameters.values())} numbers; the rest was frozen."
    )


def _listed(names: Sequence[str], many: int = _MANY) -> str:
    shown = ", ".join(names[:many])
    return f"{shown} and {len(names) - many} more" if len(names) > many else shown
