"""Search for a named data set in the usual folders."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from sfumato.data.catalogue import CATALOGUE, Entry
from sfumato.errors import UserError

SYSTEM_FOLDER = Path("/usr/share/datasets")

CACHE_VARIABLE = "SFUMATO_CACHE"
"""Environment variable: the folder for downloads and decoded images."""


def cache_folder() -> Path:
    """The user's cache, which holds downloads, and decoded images in ``decoded/``.

    It is $SFUMATO_CACHE, or else where the system has such folders.
    """
    if named := os.environ.get(CACHE_VARIABLE):
        return Path(named).expanduser().absolute()
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("sfumato"))


def places(root: str | os.PathLike[str] | None = None) -> list[Path]:
    """The folders that are searched: ``root``, $SFUMATO_DATA, the user's cache, the system's."""
    found = []
    if root is not None:
        folder = Path(root).expanduser()
        if not folder.is_dir():
            raise UserError(
                f"The data folder {folder} does not exist: give the folder that holds the data set."
            )
        found.append(folder)
    variable = os.environ.get("SFUMATO_DATA", "")
    found += [Path(part).expanduser() for part in variable.split(os.pathsep) if part]
    return [*found, cache_folder(), SYSTEM_FOLDER]


def find(entry: Entry, root: str | os.PathLike[str] | None = None) -> Path | None:
    """The folder or archive that holds a data set, or None if it is not found.

    A searched folder may be the parent of the set's own folder or that folder itself: for MNIST,
    with the files in ``data/MNIST/raw``, each of ``data``, ``data/MNIST`` and ``data/MNIST/raw``
    works.
    """
    for place in places(root):
        for folder in _candidates(place, entry.folders):
            if any(os.path.exists(folder / marker) for marker in entry.markers):
                return folder
        for archive in _candidates(place, entry.archives):
            if os.path.isfile(archive):
                return archive
    return None


def recognised(folder: Path) -> tuple[Entry, Path] | None:
    """The data set whose files a folder, or a folder in it, holds as its publisher names them.

    So the root that torchvision was given is taken, and the folder that it made there. Sets of
    image files are left to the readers of folders.

    Raises:
        UserError: If there are several.
    """
    place = folder.resolve()
    found = [
        (entry, where)
        for entry in CATALOGUE.values()
        for where in _candidates(place, entry.folders)
        if any(os.path.isfile(where / marker) for marker in entry.markers)
    ]
    names = list(dict.fromkeys(entry.name for entry, _ in found))
    if len(names) > 1:
        raise UserError(
            f"{folder} holds {' and '.join(names)}: give one of these names instead, with "
            f"--data-root {shlex.quote(str(folder))}."
        )
    return found[0] if found else None


def require(entry: Entry, root: str | os.PathLike[str] | None = None) -> Path:
    """The result of `find`, or a UserError with every folder searched and the file expected."""
    found = find(entry, root)
    if found is not None:
        return found
    searched = ", ".join(str(place) for place in places(root))
    unpacked = [
        place / download.path
        for place in places(root)
        for download in entry.downloads
        if os.path.isfile(place / download.path)
    ]
    hint = f" The archive {unpacked[0]} is there but not unpacked." if unpacked else ""
    to = f" --to {shlex.quote(str(unpacked[0].parent))}" if unpacked else ""
    raise UserError(
        f"The data set '{entry.name}' was not found: {entry.expected} is in none of {searched}."
        f"{hint} Run `sfumato data get {entry.name}{to}`, or name the folder that holds it with "
        "--data-root or $SFUMATO_DATA."
    )


def _candidates(place: Path, relatives: tuple[str, ...]) -> Iterator[Path]:
    for relative in relatives:
        parts = Path(relative).parts
        yield place / relative
        for length in range(1, len(parts) + 1):
            if place.parts[-length:] == parts[:length]:
                yield place.joinpath(*parts[length:])
