"""The recipes that come with sfumato, one TOML file each, and the lookup of recipes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sfumato.errors import UserError, names_in, nearest, nearest_path
from sfumato.recipe import Recipe, loads
from sfumato.recipes.extends import load, locate, read
from sfumato.recipes.names import current_name, former_names, packaged
from sfumato.text import DATA_FILES

__all__ = [
    "GENERAL", "ORDINARY", "current_name", "find", "for_data", "former_names", "general", "of_run",
    "packaged",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)


GENERAL = ("images", "from-scratch", "last-layer", "last-layer-grey", "wavelets")
"""Recipes for users' own images."""

ORDINARY: dict[str, Any] = {
    "optimizer.name": "nadam", "optimizer.lr": 1e-3, "optimizer.effective_noise": None,
}  # fmt: skip
"""Optimizer settings without privacy, where a rate for clipped gradients is too high."""


def find(name: str) -> Recipe:
    """A packaged recipe by name, or a recipe file by path, with what it extends."""
    if path := locate(name):
        return load(path)
    if _is_path(name):
        raise UserError(f"There is no folder or file '{name}'.{nearest_path(name)}")
    hint = nearest(current_name(name), [*packaged(), *names_in(".")])
    if hint != nearest(current_name(name), packaged()):
        raise UserError(f"There is no recipe, folder or file '{name}'.{hint}")
    raise UserError(
        f"There is no recipe '{name}', neither packaged nor as a file.{hint} "
        "`sfumato recipes list` shows the packaged ones."
    )


def of_run(folder: Path) -> Recipe:
    """The recipe that a run folder was trained with, by whatever version of sfumato."""
    path = folder / "recipe.toml"
    return loads(read(path), where=str(path), record=True)


def _is_path(name: str) -> bool:
    """Tell whether a name can only be meant as a path, not as a packaged recipe."""
    first, slash, _ = name.partition("/")
    folders = {recipe.split("/")[0] for recipe in packaged() if "/" in recipe}
    if slash and current_name(first) in folders and not Path(first).is_dir():
        return False
    return (
        "/" in name
        or os.sep in name
        or name.startswith((".", "~"))
        or Path(name).suffix in (".toml", *DATA_FILES)
    )


def general(name: str, changes: Mapping[str, Any]) -> Recipe:
    """One of `GENERAL`, adapted to the changes that will be made.

    Another model cannot use the start of `images`, unless the changes name a start too, and images
    declared public are to become a start themselves: both use `from-scratch`. Without privacy, a
    rate for normalised gradients does not apply; an optimizer among the changes is left alone.
    """
    recipe = find(name)
    other = changes.get("model.name", recipe.model.name) != recipe.model.name
    if name == "images" and ("data.public" in changes or (other and "start.source" not in changes)):
        recipe = find("from-scratch")
    chosen = any(key.startswith("optimizer.") for key in changes)
    private = changes.get("privacy.enabled", recipe.privacy.enabled)
    if private or chosen or recipe.privacy.clipping != "normalised":
        return recipe
    return recipe.replace(ORDINARY)


def for_data(name: str, changes: Mapping[str, Any] | None = None) -> Recipe:
    """The packaged recipe made for a data set, or a general one for images of any kind.

    Args:
        name: The data set, a folder or a file.
        changes: Settings that will be changed.
    """
    own = name in packaged() and "/" not in name
    recipe = find(name) if own else general("images", changes or {})
    return recipe.replace({"data.name": name})
