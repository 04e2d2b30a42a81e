"""A folder of images, one folder per class, with or without train/val/test above them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sfumato.data.decode import EXTENSIONS
from sfumato.data.dicom_file import ENDINGS
from sfumato.data.image_files import FolderFiles
from sfumato.data.imageset import Array
from sfumato.data.listing import PARTS, Listing, some
from sfumato.data.packed_names import PackedNames
from sfumato.errors import UserError

_IGNORED = frozenset(("thumbs.db", "desktop.ini", "__macosx"))


def list_folder(root: Path) -> Listing:
    """Find the classes and images of a folder, and its own split into parts if it has one.

    A folder whose subfolders are all named train, val (valid, validation) or test is split so;
    with train and val alone, val is the test set. Otherwise every subfolder is a class.
    """
    if not root.exists():
        raise UserError(f"The folder {root} does not exist.")
    if not root.is_dir():
        raise UserError(
            f"{root} is not a folder: give a folder with one folder of images per class."
        )
    folders = subfolders(root)
    parts = {name: PARTS[name.lower()] for name in folders if name.lower() in PARTS}
    if not parts or (len(parts) == 1 and len(folders) > 1):
        found = _Found(root, _classes(root, root))
        train = found.add(root)
        return found.listing(train, depth=1)
    if len(parts) < len(folders):
        others = ", ".join(name for name in folders if name not in parts)
        raise UserError(
            f"{root} holds the parts {', '.join(parts)} and also {others}: keep only train, val "
            "and test there, or only one folder per class."
        )
    return _divided(root, parts)


def _divided(root: Path, names: dict[str, str]) -> Listing:
    roles = {role: name for name, role in names.items()}
    if len(roles) < len(names):
        raise UserError(f"{root} holds a part twice: {', '.join(names)}. Keep one of each.")
    if "train" not in roles:
        raise UserError(f"{root} holds {', '.join(names)} but no train folder: add one.")
    train = root / roles["train"]
    found = _Found(root, _classes(root, train))
    parts = {"train": found.add(train)}
    for role in ("validation", "test"):
        if role in roles:
            part = root / roles[role]
            strangers = sorted(set(subfolders(part)) - set(found.classes))
            if strangers:
                raise UserError(
                    f"{part} holds classes that {train} lacks: {some(strangers)}. Every class "
                    "must have training images."
                )
            parts[role] = found.add(part)
            if not len(parts[role]):
                raise UserError(f"{part} holds no images: fill it or remove it.")
    found.count_loose(root)
    notes: tuple[str, ...] = ()
    if "validation" in parts and "test" not in parts:
        parts["test"] = parts.pop("validation")
        notes = (f"There is no test folder: {roles['validation']}/ is the test set.",)
    return found.listing(**parts, notes=notes, depth=2)


class _Found:
    """Images found below a folder, class by class, and counts of the files that are ignored."""

    def __init__(self, root: Path, classes: tuple[str, ...]) -> None:
        self.root, self.classes = root, classes
        self._paths = PackedNames()
        self._labels: list[Array] = []
        self._others: Counter[str] = Counter()
        self._loose: Counter[str] = Counter()

    def add(self, folder: Path) -> Array:
        """Add the images of the class folders in a folder; return their positions."""
        prefix = "" if folder == self.root else f"{folder.relative_to(self.root).as_posix()}/"
        first = len(self._paths)
        for label, name in enumerate(self.classes):
            if not (folder / name).is_dir():
                continue
            before = len(self._paths)
            self._paths.extend(f"{prefix}{name}/{path}" for path in self._images(folder / name))
            count = len(self._paths) - before
            if not count:
                raise UserError(
                    f"The class folder {folder / name} holds no images: fill it or remove it. "
                    f"Images are files ending in {', '.join(sorted(EXTENSIONS | ENDINGS))}."
                )
            self._labels.append(np.full(count, label, dtype=np.int64))
        self.count_loose(folder)
        return np.arange(first, len(self._paths), dtype=np.int64)

    def count_loose(self, folder: Path) -> None:
        """Count the files of a folder that are in no class folder."""
        for name, is_folder in _entries(folder):
            if not is_folder:
                (self._loose if _is_image(name) else self._others)[_ending(name)] += 1

    def listing(
        self,
        train: Array,
        test: Array | None = None,
        validation: Array | None = None,
        notes: tuple[str, ...] = (),
        *,
        depth: int,
    ) -> Listing:
        """The images found, as a listing."""
        none = np.empty(0, dtype=np.int64)
        return Listing(
            self.root,
            self.classes,
            FolderFiles(self.root, self._paths),
            np.concatenate(self._labels),
            train,
            none if test is None else test,
            none if validation is None else validation,
            (*notes, *self._ignored()),
            depth=depth,
        )

    def _images(self, folder: Path) -> Iterator[str]:
        for path in _walk(str(folder)):
            if _is_image(path):
                yield path
            else:
                self._others[_ending(path)] += 1

    def _ignored(self) -> tuple[str, ...]:
        """A sentence about the files that are not among the images, if there are any."""
        words = [
            *([f"{kinds(self._others)} (not images)"] if self._others else []),
            *([f"{kinds(self._loose)} outside the class folders"] if self._loose else []),
        ]
        return (f"Ignored: {', '.join(words)}.",) if words else ()


def _classes(root: Path, folder: Path) -> tuple[str, ...]:
    names = subfolders(folder)
    if not any(holds_images(folder / name) for name in names):
        names = []
    if len(names) > 1:
        return tuple(names)
    advice = "put the images of each class into a folder of its own, named after the class."
    if len(names) == 1:
        raise UserError(
            f"{folder} holds only one class, '{names[0]}', but a classifier needs at least two: "
            f"{advice}"
        )
    loose = sum(_is_image(name) for name, is_folder in _entries(folder) if not is_folder)
    if loose:
        raise UserError(f"{folder} holds {loose} images but no class folders: {advice}")
    ignored = kinds(Counter(_ending(path) for path in _walk(str(root))))
    seen = f" (ignored: {ignored})" if ignored else ""
    raise UserError(f"{folder} holds no images{seen}: {advice}")


def images_below(folder: Path, *, dicom: bool = False) -> list[Path]:
    """All image files in a folder and its subfolders, sorted, without hidden ones.

    Args:
        folder: The folder.
        dicom: Whether DICOM files are among them.
    """
    wanted = EXTENSIONS | ENDINGS if dicom else EXTENSIONS
    return [folder / path for path in _walk(str(folder)) if _ending(path) in wanted]


def holds_images(folder: Path) -> bool:
    """Tell whether there is an image in a folder or its subfolders."""
    return any(_is_image(path) for path in _walk(str(folder)))


def subfolders(folder: Path) -> list[str]:
    """Names of the folders in a folder, sorted; hidden ones are left out."""
    return [name for name, is_folder in _entries(folder) if is_folder]


def _walk(folder: str, below: str = "", seen: set[tuple[int, int]] | None = None) -> Iterator[str]:
    """Paths of the files below a folder, sorted as paths are: name by name.

    The names of one folder at a time are in memory, and links that lead back are not followed.
    """
    seen = set() if seen is None else seen
    status = os.stat(folder)
    if (status.st_dev, status.st_ino) in seen:
        return
    seen.add((status.st_dev, status.st_ino))
    for name, is_folder in _entries(folder):
        if is_folder:
            yield from _walk(os.path.join(folder, name), f"{below}{name}/", seen)
        else:
            yield f"{below}{name}"


def _entries(folder: Path | str) -> list[tuple[str, bool]]:
    """Names in a folder, sorted, each with whether it is a folder; hidden ones are left out."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(".") or entry.name.lower() in _IGNORED:
                    continue
                if entry.is_dir():
                    found.append((entry.name, True))
                elif entry.is_file():
                    found.append((entry.name, False))
    except OSError as error:
        raise UserError(f"The folder {folder} cannot be read ({error.strerror}).") from error
    return sorted(found, key=lambda entry: os.path.normcase(entry[0]))


def _ending(path: str) -> str:
    return os.path.splitext(path)[1].lower() or "no extension"


def _is_image(path: str) -> bool:
    return os.path.splitext(path)[1].lower() in EXTENSIONS | ENDINGS


def kinds(endings: Counter[str]) -> str:
    """The most frequent endings of file names, with their counts."""
    rest = sum(count for _, count in endings.most_common()[5:])
    shown = ", ".join(f"{count} × {ending}" for ending, count in endings.most_common(5))
    return shown + (f" and {rest} more" if rest else "")
