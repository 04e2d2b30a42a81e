"""Recipe files, each with the recipe that its `extends` names: `extends = "images"`.

A file states the settings that differ; all others are those of the recipe that it extends, which
may extend another. Name and description are always the file's own.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sfumato.errors import UserError, names_in, nearest
from sfumato.recipe import Recipe, parse
from sfumato.recipes.names import current_name, packaged


def locate(name: str, folder: Path = Path()) -> Path | None:
    """The file of a packaged recipe, else of a path relative to a folder; None if there is none."""
    if path := packaged().get(current_name(name)):
        return path
    found = (folder / name / "recipe.toml", folder / name)
    return next((path for path in found if os.path.isfile(path)), None)


def load(path: Path) -> Recipe:
    """The recipe of a file, complete."""
    chain = {path: _content(path)}
    while (name := chain[path].pop("extends", None)) is not None:
        path = _extended(path, name)
        if path.resolve() in map(Path.resolve, chain):
            raise UserError(
                f"{' extends '.join(map(_label, [*chain, path]))}: a recipe cannot extend itself. "
                "Take `extends` out of one of these files."
            )
        chain[path] = _content(path)
    recipe = Recipe()
    for path, content in reversed(chain.items()):
        recipe = recipe.extended_by(content, where=_label(path))
    return recipe


def read(path: Path) -> str:
    """The text of a recipe file."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"Cannot read the recipe {path}: {error}.") from None


def _content(path: Path) -> dict[str, Any]:
    """The settings that a file states; a packaged recipe has the name of its file."""
    stated = {"name": name} if (name := _packaged_name(path)) else {}
    return stated | parse(read(path), where=_label(path))


def _extended(path: Path, name: object) -> Path:
    """The file that a file extends."""
    if not isinstance(name, str):
        raise UserError(
            f"'extends' in {_label(path)} must be the name of a packaged recipe or the path of a "
            f"recipe file, not {name!r}."
        )
    if found := locate(name, path.parent):
        return found
    hint = nearest(current_name(name), [*packaged(), *names_in(str(path.parent))])
    raise UserError(
        f"{_label(path)} extends '{name}', which is neither a packaged recipe nor a file: a path "
        f"is relative to the file that names it.{hint}"
    )


def _packaged_name(path: Path) -> str | None:
    return next((name for name, file in packaged().items() if file == path), None)


def _label(path: Path) -> str:
    """The name of a file in messages."""
    name = _packaged_name(path)
    return str(path) if name is None else f"recipe '{name}'"
