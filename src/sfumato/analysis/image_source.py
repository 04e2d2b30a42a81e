"""The images to look at a trained model with: its run's own, or others of the same classes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

from sfumato.data import Dataset, load
from sfumato.data.split import Rule
from sfumato.errors import UserError
from sfumato.recipe import Recipe
from sfumato.training.recipe_data import dataset_of


def images_of(
    recipe: Recipe,
    *,
    data: str | None = None,
    root: str | Path | None = None,
    shape: tuple[int, int, int] | None = None,
    skip_unreadable: bool = False,
) -> Dataset:
    """The run's own data exactly as it was in training, or other data as the model takes it.

    Args:
        recipe: The run's; other data is split as it says.
        data: A data set, folder or .npz instead of the run's own.
        root: Where to look for data sets first.
        shape: Channels, height and width that the model takes; other data is brought to it. As the
            recipe says if it is not known.
        skip_unreadable: Go on without images that cannot be read, even if the recipe does not.

    Raises:
        UserError: If there is no such data, or it cannot be read.
    """
    settings = recipe.data
    skip_unreadable = skip_unreadable or settings.skip_unreadable
    if data is None:
        try:
            return dataset_of(replace(settings, skip_unreadable=skip_unreadable), root=root)
        except UserError as error:
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
        skip_unreadable=skip_unreadable,
    )
