"""The origin of a run's initial weights, and the choice of those that it trains.

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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from sfumato import starts
from sfumato.data import Dataset
from sfumato.data.catalogue import canonical
from sfumato.data.table_rows import TABLES
from sfumato.errors import CodeError, UserError, nearest
from sfumato.models import Code
from sfumato.privacy.accounting.accountants import AccountantName, Step, epsilon, merge
from sfumato.privacy.accounting.exposure import Exposure, steps_from_list, steps_to_list
from sfumato.privacy.numerics.randomness import Randomness
from sfumato.recipe import Recipe
from sfumato.text import GIVEN
from sfumato.training.classifier import Classifier, Description, load
from sfumato.training.run_folder import WEIGHTS

BESIDE = "beside"
"""The name of a model's second network."""


@dataclass(frozen=True)
class Origin:
    """The record of a run's start in the first line of its ledger.

    Attributes:
        weights: SHA-256 of the weights file, or of two joined by +; empty for a run from scratch.
        words: A sentence about its use.
        exposures: Data sets that it depends on, apart from the steps in `before`.
        before: Steps that it took on this run's images, to be composed with the run's own.
        mean: Normalisation constants of its images, if the run is to use them.
        std: The same.
        seeded: Whether the noise of `before` follows from a stated seed.
        also: Names, other than the run's, of the data sets on which `before` was taken.
        looked: Decisions made then by looking at images without noise, in sentences.
    """

    weights: str = ""
    words: str = ""
    exposures: tuple[Exposure, ...] = ()
    before: tuple[Step, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    seeded: bool = False
    also: tuple[str, ...] = ()
    looked: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for the ledger."""
        return {
            "weights": self.weights,
            "words": self.words,
            "exposures": [exposure.to_dict() for exposure in self.exposures],
            "before": steps_to_list(self.before),
            "mean": list(self.mean),
            "std": list(self.std),
            "seeded": self.seeded,
            **({"also": list(self.also)} if self.also else {}),
            **({"looked": list(self.looked)} if self.looked else {}),
        }

    @classmethod
    def of(cls, header: Mapping[str, Any]) -> Origin:
        """The origin that a ledger's first line states.

        Raises:
            UserError: If that cannot be read.
        """
        content = header.get("start")
        if content is None:
            return cls()
        try:
            return cls._read(content)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise UserError(
                "The ledger states where the initial weights came from in a way that cannot be "
                f"read: {error!r}. It is damaged or was edited."
            ) from None

    @classmethod
    def _read(cls, content: Mapping[str, Any]) -> Origin:
        for key in ("weights", "words"):
            if not isinstance(content[key], str):
                raise TypeError(f"{key} is no text")
        if not content["exposures"] and not content["before"]:
            raise ValueError("it names no data that they depend on")
        return cls(
            weights=content["weights"],
            words=content["words"],
            exposures=tuple(map(Exposure.from_dict, content["exposures"])),
            before=steps_from_list(content["before"]),
            mean=tuple(map(float, content["mean"])),
            std=tuple(map(float, content["std"])),
            seeded=content["seeded"] is not False,
            also=tuple(map(str, content.get("also", ()))),
            looked=tuple(map(str, content.get("looked", ()))),
        )

    def seeded_randomness(self, seed: int) -> Randomness:
        """The randomness of a run with a stated seed.

        Guarantee: Neither the draws nor the noise of a private start with the same seed are used
        again.
        """
        noisy = bool(self.before) or any(exposure.noisy for exposure in self.exposures)
        return Randomness.from_seed(seed, after=self.weights if noisy else "")

    def normalised(self, dataset: Dataset) -> Dataset:
        """The data set with the constants that transferred layers were trained with."""
        if len(self.mean) != dataset.channels:
            return dataset
        return replace(dataset, mean=self.mean, std=self.std)


@dataclass(frozen=True)
class Donor:
    """A model to start from.

    Attributes:
        named: Its file or folder, and that of the second network, in quotation marks.
        description: The description in its weights file.
        parameters: Its parameters, by name; those of the second network begin with `beside`.
        origin: The record for the run's ledger.
    """

    named: str
    description: Description
    parameters: dict[str, Tensor]
    origin: Origin


def open_donor(
    recipe: Recipe, *, unchanged: Origin | None = None, trust_code: Iterable[Code] = ()
) -> Donor | None:
    """The model that a recipe starts from, or None for a run from scratch.

    Args:
        recipe: What to do.
        unchanged: What an interrupted run has kept about its start, which must still be that.
        trust_code: As for `load`.

    Raises:
        UserError: If it cannot be read, or a private run may not start from it.
    """
    settings = recipe.start
    if not settings.source:
        return None
    opened = [
        _opened(setting, source, recipe, trust_code)
        for setting, source in (("source", settings.source), ("beside", settings.beside))
        if source
    ]
    digest = "+".join(own for _, own in opened)
    named = " and ".join(f"'{s}'" for s in (settings.source, settings.beside) if s)
    if unchanged is not None and unchanged.weights != digest:
        raise UserError(
            f"The weights in {named} are not those that the run started from, and no checkpoint "
            "was written yet. Start a new run."
        )
    description, parameters = opened[0][0].description, _parameters(opened[0][0])
    stated = _exposures(description, settings.source)
    for other, _ in opened[1:]:
        _check_alike(description, other.description, named)
        stated += _exposures(other.description, settings.beside)
        parameters |= {f"{BESIDE}.{n}": p for n, p in _parameters(other).items()}
    exposures, before = _judged(stated, recipe)
    transfer = settings.how == "transfer"
    counted = [e for e in stated if e.noisy] if before else []
    names = dict.fromkeys(name for e in counted for name in e.names)
    origin = unchanged or Origin(
        weights=digest,
        exposures=exposures,
        before=before,
        mean=description.mean if transfer else (),
        std=description.std if transfer else (),
        seeded=any(e.seeded for e in counted),
        also=tuple(name for name in names if not _same_set(name, recipe.data.name)),
        looked=tuple(dict.fromkeys(words for e in counted for words in e.looked)),
    )
    return Donor(named, description, parameters, origin)


def _opened(
    setting: str, source: str, recipe: Recipe, trust_code: Iterable[Code]
) -> tuple[Classifier, str]:
    """A model to start from, and the SHA-256 of its weights file."""
    path = starts.find(source, recipe.model.name) or Path(source).expanduser()
    try:
        classifier = load(path, trust_code=trust_code)
    except CodeError:
        raise
    except UserError as error:
        hint = "" if path.exists() else nearest(source, starts.packaged())
        raise UserError(f"start.{setting} = '{source}': {error}{hint}") from None
    return classifier, starts.digest(path / WEIGHTS if path.is_dir() else path)


def _parameters(classifier: Classifier) -> dict[str, Tensor]:
    return {n: p.detach() for n, p in classifier.network.named_parameters()}


def _check_alike(one: Description, other: Description, named: str) -> None:
    """Refuse two networks that were trained on images of other channels or normalisation."""
    if (one.channels, one.mean, one.std) != (other.channels, other.mean, other.std):
        raise UserError(
            f"The weights in {named} were trained on images with other channels or normalisation, "
            "so one image cannot be shown to both: leave out start.beside."
        )


def _exposures(description: Description, source: str) -> tuple[Exposure, ...]:
    """The data sets that a model depends on, as its weights file states them.

    Guarantee: There is at least one; weights that name none count as trained without noise on
    unknown data.
    """
    stated = description.guarantee.get("exposures")
    if stated is None or stated == []:
        # A model depends on some data: an empty list tells no more than a missing one.
        if description.guarantee.get("private", False):
            raise UserError(
                f"start.source = '{source}' says that it is private, but not which steps it took, "
                "so nothing can be counted. Train it again with this version of sfumato."
            )
        return (Exposure("data that it does not name"),)
    try:
        if not isinstance(stated, list):
            raise TypeError("they are no list")
        return tuple(map(Exposure.from_dict, stated))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, UserError) as error:
        raise UserError(
            f"start.source = '{source}' states what it was trained on in a way that cannot be "
            f"read: {error}."
        ) from None


def _judged(
    exposures: Sequence[Exposure], recipe: Recipe
) -> tuple[tuple[Exposure, ...], tuple[Step, ...]]:
    """The exposures to state and the steps to count for a run with this start.

    Guarantee: For a private run no exposure is left bare, a data set of this run's name is never
    taken for another one, whichever runs the weights went through, and noisy steps are left out of
    the count only if the user said that they were taken on other images. Steps are counted only if
    they protect the run's own unit: those about one image do not bound what a patient with several
    adds, and those about a patient do not bound what one image less changes.
    """
    s, where = recipe.start, _named(recipe)
    if s.public:
        exposures = [replace(e, public=True) if e.bare else e for e in exposures]
    if not recipe.privacy.enabled:
        return tuple(exposures), ()
    noisy = [e for e in exposures if e.noisy]
    for e in exposures:
        if e.noisy:
            continue
        if e.drawn and s.same_data and not noisy:
            raise UserError(
                f"{where} has seen drawn images alone, never this run's: leave start.same_data out."
            )
        claimed = s.same_data and (e.bare or not noisy)
        if claimed or _same_set(e.data, recipe.data.name):
            raise UserError(
                f"{where} was trained without privacy on '{e.data}', and this "
                f"run is to be private on {'the same images' if claimed else 'it too'}: no noise "
                "added later takes back what the weights already hold. Train the start with "
                "privacy, and count it with start.same_data = true."
                + ("" if claimed else _or_renamed(recipe))
            )
        if e.bare:
            raise UserError(
                f"{where} was trained on '{e.data}' without privacy. If those "
                "images are public, declare it with start.public = true; if they are this run's, "
                "train the start with privacy and count it with start.same_data = true."
            )
    if not noisy:
        return tuple(exposures), ()
    names = ", ".join(dict.fromkeys(f"'{name}'" for e in noisy for name in e.names))
    if s.same_data is None:
        raise UserError(
            f"{where} spent privacy on {names}. Say whether those are this "
            "run's images: start.same_data = true counts what it spent within this run's epsilon; "
            "start.same_data = false means that no image is in both."
        )
    if not s.same_data:
        if any(_same_set(name, recipe.data.name) for e in noisy for name in e.names):
            raise UserError(
                f"start.same_data = false, but {where} was trained on {names} and this run "
                f"trains on '{recipe.data.name}'. Count what it spent with start.same_data = true."
                + _or_renamed(recipe)
            )
        return tuple(exposures), ()
    if any(e.selected for e in noisy):
        raise UserError(
            f"{where} is the best of several runs on this run's images "
            "(`sfumato tune --private`), and its steps do not count what the choice cost. Start "
            "from a run that was not chosen so."
        )
    if others := [e.unit for e in noisy if e.unit != recipe.data.unit]:
        raise UserError(
            f"{where} took steps on this run's images that protect one "
            f"{others[0]}, and this run is to protect one {recipe.data.unit}: they cannot be "
            f"counted together. Train this run with data.unit = {others[0]}, or the start again "
            f"with data.unit = {recipe.data.unit}."
        )
    before = merge([step for e in noisy for step in e.steps])
    return tuple(e for e in exposures if not e.noisy), before


def _named(recipe: Recipe) -> str:
    """The settings that name what a recipe starts from."""
    sources = (("source", recipe.start.source), ("beside", recipe.start.beside))
    return " with ".join(f"start.{key} = '{name}'" for key, name in sources if name)


def _same_set(a: str, b: str) -> bool:
    """Tell whether two names may belong to one data set.

    Weights state a folder by its own name, without its parents, and a file without its suffix:
    equal names count as the same data, wherever they are.
    """
    return known_as(a) == known_as(b)


def _or_renamed(recipe: Recipe) -> str:
    """Advice about a folder that has the name of another one."""
    return "" if canonical(recipe.data.name) else " If it has other images, rename its folder."


def known_as(name: str) -> str:
    """The name that a data set is stated by: that of the catalogue, a folder's own, a file's."""
    name = name.removeprefix(GIVEN)
    if known := canonical(name):
        return known
    place = Path(name).expanduser().resolve()
    own = place.stem if place.suffix in (".npz", *TABLES) else place.name
    return canonical(own) or own


def spent(recipe: Recipe, origin: Origin) -> float:
    """The part of the recipe's epsilon that the start has spent."""
    p = recipe.privacy
    accountant = cast(AccountantName, p.accountant)
    return epsilon(origin.before, delta=p.delta, accountant=accountant)
