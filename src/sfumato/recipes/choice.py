"""The recipe that a user means: by its name, by a file, or by the data alone."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sfumato.errors import UserError
from sfumato.recipe import Recipe
from sfumato.recipes.measured import better_last_layer
from sfumato.recipes.names import current_name, packaged
from sfumato.text import DATA_FILES, quick_name


def choose(
    recipe: str | None,
    data: str | None,
    changes: Mapping[str, Any],
    *,
    options: Mapping[str, str] | None = None,
    tried: Mapping[str, Any] | None = None,
) -> Recipe:
    """The recipe that a user means, with the settings changed that the user gave.

    Args:
        recipe: A packaged recipe, a recipe file, a folder of images, a table, tar shards or an
            .npz file; what suits the data if None.
        data: The data, where `recipe` does not name it.
        changes: New values of settings, `data.name` among them if `data` is given.
        options: What the user wrote for a setting, such as `--epsilon`, for messages.
        tried: Settings whose values will be varied.
    """
    from sfumato import recipes

    known = {**(tried or {}), **changes}
    if recipe is not None and current_name(recipe) not in packaged():
        path = Path(recipe)
        is_run = (path / "recipe.toml").is_file()
        if (path.is_dir() and not is_run) or path.suffix in DATA_FILES:
            if data is not None:
                raise UserError(f"Both {recipe} and --data {data} name the data: give one of them.")
            return _changed(recipes.for_data(recipe, known), changes, options or {})
        if is_run:
            raise UserError(
                f"{recipe} is a run. `sfumato train --resume {shlex.quote(recipe)}` goes on with "
                f"it; to train anew, which spends another epsilon on its images, name its recipe: "
                f"{shlex.quote(str(path / 'recipe.toml'))}"
            )
    if recipe is not None:
        among = recipe in recipes.GENERAL
        found = recipes.general(recipe, known) if among else recipes.find(recipe)
    else:
        found = recipes.for_data(data, known) if data else recipes.find("digits")
    unnamed = recipe in recipes.GENERAL or not found.data.name
    if unnamed and not changes.get("data.name"):
        raise UserError(
            f"The recipe '{recipe}' is for images of your own: name them, as in `sfumato train "
            f"{recipe} --data ./scans`."
        )
    return _changed(found, changes, options or {})


_OPEN = ("data.", "privacy.epsilon", "privacy.delta", "training.seed", "training.physical_batch")
"""Settings, by their beginnings, that do not concern the network and how it is trained."""


@dataclass(frozen=True)
class Quick:
    """The quick recipe for the user's data, instead of one that nobody asked for by name.

    Attributes:
        make: Makes it, for grey images or for colour.
        better: Tells from the number of examples, epsilon and whether images are grey, whether the
            quick recipe is to be expected more accurate.
    """

    make: Callable[[bool], Recipe]
    better: Callable[[int, float, bool], bool] = lambda examples, epsilon, grey: better_last_layer(
        examples, epsilon, grey=grey
    )


def quick_choice(
    recipe: str | None,
    data: str | None,
    changes: Mapping[str, Any],
    *,
    options: Mapping[str, str] | None = None,
) -> Quick | None:
    """The quick recipe that may be taken instead.

    None if the user has named a recipe, or has given a setting of the network or of its training:
    then no other recipe may be taken. The arguments are those of `choose`.
    """
    named = recipe is not None and not _is_data(recipe)
    if named or not all(key.startswith(_OPEN) for key in changes):
        return None
    place = data or recipe
    if place is None or choose(recipe, data, changes).name != "images":
        return None
    changes = {**changes, "data.name": place}
    return Quick(lambda grey: choose(quick_name(grey=grey), place, changes, options=options))


def _is_data(recipe: str) -> bool:
    """Tell whether the first argument of a command names data, not a recipe."""
    path = Path(recipe)
    if current_name(recipe) in packaged() or (path / "recipe.toml").is_file():
        return False
    return path.is_dir() or path.suffix in DATA_FILES


def _changed(recipe: Recipe, changes: Mapping[str, Any], options: Mapping[str, str]) -> Recipe:
    """The recipe with its settings changed; a budget is refused for a run without privacy."""
    chosen = recipe.replace(changes, options=options)
    budget = [key for key in ("privacy.epsilon", "privacy.delta") if key in changes]
    if chosen.privacy.enabled or not budget:
        return chosen
    switch = "privacy.enabled"
    off = options.get(switch, f"{switch} = false") if switch in changes else ""
    who = off or f"The recipe '{chosen.name}'"
    words = " and ".join(f"{options.get(key, key)} {changes[key]}" for key in budget)
    raise UserError(
        f"{who} trains without any privacy, so {words} would mean nothing: leave it out, or train "
        "with privacy (privacy.enabled = true)."
    )
