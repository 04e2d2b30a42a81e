"""The images that a verb looks at with a trained model: the run's own, or others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sfumato.errors import UserError

if TYPE_CHECKING:
    from sfumato.data import Dataset
    from sfumato.training.classifier import Description


def images_for(
    run: Path,
    description: Description,
    data: str | None,
    root: Path | None,
    skip_unreadable: bool,
) -> Dataset:
    """The data asked for, as the model takes it; the run's own exactly as it was in training.

    Args:
        run: A run folder or a weights file.
        description: Of its model.
        data: The data asked for; the run's own if None.
        root: Where to look for data sets first.
        skip_unreadable: Go on without images that cannot be read.

    Raises:
        UserError: If there is no such data, or the run's own has changed.
    """
    from sfumato import recipes
    from sfumato.recipe import Recipe
    from sfumato.training.recipe_data import images_of
    from sfumato.training.run_folder import RECIPE

    stated = run.is_dir() and (run / RECIPE).is_file()
    if data is None and not stated:
        raise UserError(
            f"{run} does not say which data it was trained on (there is no {RECIPE} with it): give "
            "--data."
        )
    window = list(description.window or ())
    plain = Recipe().replace({"data.bits": description.bits, "data.window": window})
    recipe = recipes.of_run(run) if stated else plain
    shape = description.channels, *description.size
    dataset = images_of(recipe, data=data, root=root, shape=shape, skip_unreadable=skip_unreadable)
    if (dataset.channels, *dataset.size) != shape:
        raise UserError(
            f"The images of '{dataset.name}' are {_shape(dataset.channels, *dataset.size)} "
            f"(channels × height × width), but the model was trained on {_shape(*shape)}: this is "
            "not the data of the run. Other data is given with --data."
        )
    return dataset


def _shape(channels: int, height: int, width: int) -> str:
    return f"{channels}×{height}×{width}"
