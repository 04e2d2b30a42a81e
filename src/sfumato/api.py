"""The functions of `import sfumato` that make and open runs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sfumato import recipes
from sfumato.data.catalogue import canonical
from sfumato.errors import UserError
from sfumato.recipe import Recipe
from sfumato.recipes.choice import choose, quick_choice
from sfumato.run import Run
from sfumato.text import GIVEN

if TYPE_CHECKING:
    import torch

    from sfumato.models import Code, GivenModel
    from sfumato.training.canary_plan import AuditSettings
    from sfumato.training.instead import Instead
from sfumato.training.reporter import Reporter

_ARGUMENTS = {
    "privacy.epsilon": "epsilon", "privacy.delta": "delta", "training.seed": "seed",
    "model.name": "model",
}  # fmt: skip
"""The arguments of `train` that stand for a setting."""


def open(
    folder: str | Path,
    *,
    data: object = None,
    model: GivenModel | None = None,
    root: str | Path | None = None,
    device: str | torch.device = "cpu",
    trust_code: Iterable[Code] = (),
) -> Run:
    """Open a run folder, finished or not.

    Args:
        folder: The run folder.
        data: Data with the model's classes, in any form that `train` takes, instead of the run's
            own. Needed for the images of a run that was given them as objects.
        model: The model, of a run that was given it as an object.
        root: Where to look for data sets first.
        device: Where to put the network.
        trust_code: Modules outside sfumato whose models the run may name; no other code is
            imported, except installed timm and torchvision, and none from the run folder.

    Raises:
        UserError: If it is no run folder.
    """
    return Run(folder, data=data, model=model, root=root, device=device, trust_code=trust_code)


def train(
    data: object,
    *,
    model: str | GivenModel | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    recipe: str | Recipe | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    root: str | Path | None = None,
    device: str = "auto",
    reporter: Reporter | None = None,
    trust_code: Iterable[Code] = (),
    **settings: Any,
) -> Run:
    """Train a new image classifier with differential privacy, as `sfumato train` does.

    Args:
        data: A folder with one folder of images per class, an .npz file, a data set's name, a
            packaged recipe or recipe file; a pair `(images, labels)` of arrays or tensors; a
            map-style data set of (image, label) such as those of torchvision and Hugging Face; a
            pair `(train, test)` or a mapping of such; or a whole `Recipe`.
        model: A registered model's name, `timm:NAME` or `torchvision:NAME`, an `nn.Module`, of
            which a copy is trained, or a function that makes one from those of `classes`,
            `channels` and `size` that it takes.
        epsilon: The privacy budget; the recipe's if None.
        delta: Well below 1 / number of training images; the recipe's if None.
        recipe: A packaged recipe, a recipe file or a `Recipe`; what the command takes if None:
            `images`, and `from-scratch` with another model. With few examples, and on a CPU that
            would need more than an hour, `last-layer` (for grey images `last-layer-grey`) is
            taken instead of `images`, and the reporter is told.
        seed: Makes the run repeatable, noise and all; such a run is not private towards those who
            know the seed.
        out: The run folder to make; `runs/NAME-NNN` if None.
        root: Where to look for data sets first.
        device: `auto`, `cpu`, `cuda` or `mps`.
        reporter: Told about progress.
        trust_code: Modules outside sfumato whose models the recipe, or the weights that it starts
            from, may name; no other code is imported, except installed timm and torchvision.
        **settings: Any other setting by its dotted name, as in `**{"training.views": 4}`.

    Returns:
        The finished run.

    Raises:
        UserError: If the data, the model or a setting cannot be used; a sentence says why.
    """
    return _trained(
        data, model=model, epsilon=epsilon, delta=delta, recipe=recipe, seed=seed, out=out,
        root=root, device=device, reporter=reporter, trust_code=trust_code, settings=settings,
    )  # fmt: skip


def train_chosen(
    recipe: Recipe,
    *,
    quick: Instead | None,
    out: Path | None,
    root: Path | None,
    device: str,
    reporter: Reporter,
    trust_code: Iterable[Code],
) -> Run:
    """Train with a recipe that was chosen, or with a quick one: see `pipeline.train`."""
    return _trained(
        recipe, model=None, epsilon=None, delta=None, recipe=None, seed=None, out=out, root=root,
        device=device, reporter=reporter, trust_code=trust_code, settings={}, quick=quick,
    )  # fmt: skip


def audit(
    data: object,
    *,
    canaries: int | None = None,
    images: str | None = None,
    score: str | None = None,
    model: str | GivenModel | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    recipe: str | Recipe | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    root: str | Path | None = None,
    device: str = "auto",
    reporter: Reporter | None = None,
    trust_code: Iterable[Code] = (),
    **settings: Any,
) -> Run:
    """Train once with canaries, and bound epsilon from below, as `sfumato audit` does.

    Args:
        data: As for `train`.
        canaries: Number of canaries; 5000, or a tenth of the images if that is less, if None.
        images: `random` or `mislabelled` for canaries that are images; gradients if None.
        score: What guesses are made from: `weights` or `released`; the weights if None, and
            released gradients where an optimizer's updates are not linear in them.
        model: This and all that follows as for `train`.
        epsilon: The privacy budget.
        delta: Well below 1 / number of training images.
        recipe: The recipe.
        seed: Makes the audit repeatable.
        out: The run folder to make.
        root: Where to look for data sets first.
        device: Where to train.
        reporter: Told about progress.
        trust_code: Modules outside sfumato that may be imported.
        **settings: Any other setting by its dotted name.

    Returns:
        The finished run, whose `audit` has the bound and the claim. Its model is not the one to
        publish.

    Raises:
        UserError: If the run cannot be made, or cannot be audited so; a sentence says why.
    """
    from sfumato.training.canary_plan import AuditSettings

    return _trained(
        data, model=model, epsilon=epsilon, delta=delta, recipe=recipe, seed=seed, out=out,
        root=root, device=device, reporter=reporter, trust_code=trust_code, settings=settings,
        audit=AuditSettings(canaries, images, score),
    )  # fmt: skip


def _trained(
    data: object,
    *,
    model: str | GivenModel | None,
    epsilon: float | None,
    delta: float | None,
    recipe: str | Recipe | None,
    seed: int | None,
    out: str | Path | None,
    root: str | Path | None,
    device: str,
    reporter: Reporter | None,
    trust_code: Iterable[Code],
    settings: dict[str, Any],
    audit: AuditSettings | None = None,
    quick: Instead | None = None,
) -> Run:
    """Train with the arguments of `train`, and with canaries for an audit.

    `quick` is taken where it is to be expected more accurate, and on a CPU instead of hours there.
    """
    from sfumato.training.pipeline import train

    named = {
        "privacy.epsilon": epsilon, "privacy.delta": delta, "training.seed": seed,
    }  # fmt: skip
    changes = settings | {key: value for key, value in named.items() if value is not None}
    changes = {k: v.item() if isinstance(v, np.generic) else v for k, v in changes.items()}
    if data is None:
        raise UserError("There is no data: give a folder, a file, arrays or a data set, not None.")
    _check_types(recipe=recipe, out=out, root=root, device=device, trust_code=trust_code)
    if reporter is not None and not isinstance(reporter, Reporter):
        raise UserError(
            f"reporter={reporter!r} cannot be told about progress: give an object with the methods "
            "say and show, or None."
        )
    trusted, in_memory = tuple(trust_code), None
    if model is not None:
        changes["model.name"] = model
        if not isinstance(model, str):
            from sfumato.models import given_name

            changes["model.name"] = given_name(model)
            trusted = (*trusted, model)
            _check_device(model, device)
        elif ":" in model:
            trusted = (*trusted, model)
    if not isinstance(data, str | os.PathLike | Recipe):
        in_memory, data = data, _named(data, changes)
    chosen = _chosen(data, recipe, changes)
    if quick is None and recipe is None and audit is None and not isinstance(data, Recipe):
        quick = quick_choice(None, os.fspath(data), changes, options=_ARGUMENTS)
    folder = train(
        chosen, data=in_memory, out=out, root=root, device=device, reporter=reporter,
        trust_code=trusted, audit=audit, quick=quick,
    )  # fmt: skip
    return Run(folder, data=in_memory, root=root, trust_code=trusted, _check=_rank_0())


_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "recipe": ((str, os.PathLike, Recipe, type(None)), "a recipe's name, its file, or a Recipe"),
    "out": ((str, os.PathLike, type(None)), "the path of a new folder"),
    "root": ((str, os.PathLike, type(None)), "the path of a folder with data sets"),
    "device": ((str,), "auto, cpu, cuda or mps"),
    "trust_code": ((Iterable,), "the names of modules, in a list"),
}
"""Types of the arguments of `train`, with words for them."""


def _check_types(**given: object) -> None:
    """Raise a `UserError` for an argument that cannot be meant."""
    for name, value in given.items():
        kinds, words = _TYPES[name]
        if not isinstance(value, kinds) or (name == "trust_code" and isinstance(value, str)):
            raise UserError(f"{name}={value!r} is not understood: give {words}.")


def _named(data: object, changes: Mapping[str, Any]) -> str:
    """The name by which a recipe knows data in memory: the user's, or one that says what it is."""
    from sfumato.data.in_memory import object_name

    return f"{GIVEN}{changes.get('data.name') or object_name(data)}"


def _chosen(
    data: str | os.PathLike[str] | Recipe, recipe: str | Recipe | None, changes: dict[str, Any]
) -> Recipe:
    """The recipe that the arguments of `train` mean."""
    if isinstance(data, Recipe):
        if recipe is not None:
            raise UserError("Both the first argument and recipe= are recipes: give one of them.")
        return data.replace(changes, options=_ARGUMENTS)
    name = os.fspath(data)
    if recipe is None and not name.startswith(GIVEN):
        known = canonical(name) is not None and name not in recipes.packaged()
        if not known:
            return choose(name, None, changes, options=_ARGUMENTS)
    changes = {**changes, "data.name": name}
    if isinstance(recipe, Recipe):
        return recipe.replace(changes, options=_ARGUMENTS)
    return choose(recipe, name, changes, options=_ARGUMENTS)


def _check_device(model: GivenModel, device: str) -> None:
    """Refuse a module on another device than the one that is asked for."""
    from torch import nn

    from sfumato.training.devices import pick_device

    if not isinstance(model, nn.Module):
        return
    there = {p.device.type for p in model.parameters()} - {"cpu", "meta"}
    here = pick_device(device, "auto").type
    if there - {here}:
        raise UserError(
            f"The module is on {', '.join(sorted(there))}, but the run trains on {here}: give "
            f"device='{min(there)}', or move the module with .cpu()."
        )


def resume(
    folder: str | Path,
    *,
    data: object = None,
    model: GivenModel | None = None,
    changes: dict[str, Any] | None = None,
    root: str | Path | None = None,
    device: str = "auto",
    reporter: Reporter | None = None,
    trust_code: Iterable[Code] = (),
) -> Run:
    """Go on with an interrupted run, to the same end as if it had not been interrupted.

    Args:
        folder: The run folder.
        data: The run's images, if they were given as objects, or where they are now.
        model: The run's model, if it was given as an object.
        changes: Settings to compare with the run's; others than those are refused.
        root: Where to look for data sets first.
        device: Where to train.
        reporter: Told about progress.
        trust_code: As for `open`.

    Returns:
        The finished run.

    Raises:
        UserError: If the run is finished, or its data, model or settings are not what they were.
    """
    from sfumato.training.pipeline import resume

    trusted = (*trust_code, *([] if model is None else [model]))
    resume(
        folder, data=data, changes=changes, root=root, device=device, reporter=reporter,
        trust_code=trusted,
    )  # fmt: skip
    return Run(folder, data=data, root=root, trust_code=trusted, _check=_rank_0())


def _rank_0() -> bool:
    """Tell whether this process has written the run; others may not see its folder."""
    from sfumato.distributed.ranks import Ranks

    return Ranks.current().leader
