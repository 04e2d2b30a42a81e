"""The data set that a recipe names, for training and for looking at a trained model."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from sfumato.data import Dataset, load
from sfumato.data.catalogue import canonical
from sfumato.data.split import Rule
from sfumato.data.subset import subset
from sfumato.data.table_rows import is_table
from sfumato.data.units import IMAGE, with_unit
from sfumato.errors import UserError
from sfumato.recipe import Recipe
from sfumato.settings import Data
from sfumato.text import GIVEN
from sfumato.training import run_folder
from sfumato.training.initial.start import Origin


def dataset_of(data: Data, *, given: object = None, root: str | Path | None = None) -> Dataset:
    """Load the data of a recipe, cut down as it says.

    Args:
        data: The recipe's section.
        given: The data itself, or where it is now; as the recipe says if None.
        root: Where to look for data sets first.

    Raises:
        UserError: If there is no such data, it cannot be read, or no image is set aside for
            testing.
    """
    whole = load(
        data.name if given is None else given,
        root=root,
        size=data.size,
        channels=data.channels,
        bits=data.bits,
        validation=data.validation,
        test_fraction=data.test_fraction,
        split_seed=data.split_seed,
        split_rule=cast(Rule, data.split_rule),
        unit=data.unit,
        unit_pattern=data.unit_pattern,
        columns=data.columns,
        window=data.window,
        unit_field=data.unit_field,
        mixed_photometric=data.mixed_photometric,
        skip_unreadable=data.skip_unreadable,
        cache=data.cache,
    )
    if data.name.startswith(GIVEN):
        whole = replace(whole, name=data.name.removeprefix(GIVEN))
    dataset = subset(with_unit(whole, data.unit), data.subset, seed=data.split_seed)
    _check_parts(dataset, data.unit)
    return dataset


def _check_parts(dataset: Dataset, unit: str) -> None:
    """Refuse data of which nothing is left to train on, or to test on."""
    if len(dataset.train) and len(dataset.test):
        return
    parts = (dataset.train, dataset.test, dataset.validation)
    units = {int(k) for part in parts if part and part.units is not None for k in part.units}
    if unit != IMAGE and len(units) == 1:
        raise UserError(
            f"All images of {dataset.source} are of one {unit}, which is either trained on or "
            f"tested on: add images of other {unit}s."
        )
    found = "No" if len(dataset.train) else "Every"
    raise UserError(
        f"{found} {unit} of {dataset.source} is set aside for testing: add {unit}s, or have others "
        "set aside with `--set data.split_seed=1`."
    )


def split_in_words(data: Data) -> str:
    """A sentence for the statement on how images were held out for testing or validation."""
    if canonical(data.name) is not None:
        return "Which images are held out is fixed for this data set."
    if data.unit != IMAGE:
        return (
            f"{data.unit.capitalize()}s that were held out, unless you had divided them yourself, "
            "were chosen each by itself, with all of its images: leaving one out moves no other."
        )
    if data.split_rule == "independent":
        return (
            "Images that were held out, unless you had divided them yourself, were chosen each by "
            "itself: leaving one out moves no other."
        )
    return (
        "Images that were held out, unless you had divided them yourself, were chosen by "
        "`data.split_rule = stratified`: leaving one out moves others in or out of the training "
        "set, and epsilon does not cover that."
    )


def images_of(
    recipe: Recipe,
    *,
    data: object = None,
    root: str | Path | None = None,
    shape: tuple[int, int, int] | None = None,
    skip_unreadable: bool = False,
) -> Dataset:
    """The run's own data exactly as in training, or other data converted for the model.

    Args:
        recipe: The run's; other data is split as it says.
        data: A data set, folder, table, .npz or data in memory instead of the run's own; the run's
            own, given again, if it was in memory.
        root: Where to look for data sets first.
        shape: Channels, height and width that the model takes; other data is brought to it. As the
            recipe says if it is not known.
        skip_unreadable: Go on without images that cannot be read, even if the recipe does not.

    Raises:
        UserError: If there is no such data, or it cannot be read.
    """
    settings = recipe.data
    skip_unreadable = skip_unreadable or settings.skip_unreadable
    if data is None or settings.name.startswith(GIVEN):
        try:
            settings = replace(settings, skip_unreadable=skip_unreadable)
            return dataset_of(settings, given=data, root=root)
        except UserError as error:
            if data is not None or settings.name.startswith(GIVEN):
                raise
            raise UserError(
                f"{error} (The run was trained on '{settings.name}'; --data names another place.)"
            ) from None
    channels = settings.channels
    if shape is not None:
        channels = shape[0] if shape[0] in (1, 3) else None
    return load(
        data,
        root=root,
        size=settings.size if shape is None else shape[1:],
        channels=channels,
        bits=settings.bits,
        validation=settings.validation,
        test_fraction=settings.test_fraction,
        split_seed=settings.split_seed,
        split_rule=cast(Rule, settings.split_rule),
        columns=settings.columns if isinstance(data, str | Path) and is_table(Path(data)) else (),
        window=settings.window,
        unit_field=settings.unit_field,
        mixed_photometric=settings.mixed_photometric,
        skip_unreadable=skip_unreadable,
    )


def data_tag(key: bytes, dataset: Dataset) -> str:
    """A tag of the data that reveals nothing about them once the run's key is deleted."""
    return hmac.new(key, dataset.fingerprint().encode(), hashlib.sha256).hexdigest()


def changed(folder: Path, recipe: Recipe, header: Mapping[str, Any], dataset: Dataset) -> list[str]:
    """A note if the training images differ from those of the ledger, if that can be told."""
    if "examples" not in header:
        return []
    canaries = header.get("canaries", {}).get("count", 0)
    same = int(header["examples"]) - canaries == dataset.train.examples
    seed, key = recipe.training.seed, folder / run_folder.KEY
    if same and (seed is not None or key.is_file()):
        own = key.read_bytes() if seed is None else Origin.of(header).seeded_randomness(seed).key
        same = data_tag(own, dataset) == header.get("data")
    if same:
        return []
    return [
        f"The data of {folder} has changed since training ({header['examples']} training "
        f"{recipe.data.unit}s then, {dataset.train.examples} now): images "
        "held out today may have been trained on."
    ]
