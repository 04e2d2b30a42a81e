"""A folder of images, one folder per class, with or without train/val/test above them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sfumato.data.catalogue import constants
from sfumato.data.decode import EXTENSIONS
from sfumato.data.decoding import decode_files
from sfumato.data.imageset import Dataset, ImageSet
from sfumato.data.split import Rule, independent, stratified
from sfumato.errors import UserError

_SPLITS = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
    "testing": "test",
}
_IGNORED = frozenset(("thumbs.db", "desktop.ini", "__macosx"))


class Item(NamedTuple):
    """One image file: its path below the root, with forward slashes, and its label."""

    path: str
    label: int


@dataclass(frozen=True)
class Listing:
    """The files of a data set and their labels, before anything is decoded."""

    root: Path
    classes: tuple[str, ...]
    train: tuple[Item, ...]
    test: tuple[Item, ...] = ()
    validation: tuple[Item, ...] = ()
    notes: tuple[str, ...] = ()


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
    listing = _listed(root)
    ignored = _ignored(listing)
    return replace(listing, notes=(*listing.notes, ignored)) if ignored else listing


def _listed(root: Path) -> Listing:
    folders = _subfolders(root)
    splits = {name: _SPLITS[name.lower()] for name in folders if name.lower() in _SPLITS}
    if not splits or (len(splits) == 1 and len(folders) > 1):
        classes = _classes(root, root)
        return Listing(root, classes, _items(root, root, classes))
    if len(splits) < len(folders):
        others = ", ".join(name for name in folders if name not in splits)
        raise UserError(
            f"{root} holds the parts {', '.join(splits)} and also {others}: keep only train, val "
            "and test there, or only one folder per class."
        )
    return _divided(root, splits)


def _divided(root: Path, splits: dict[str, str]) -> Listing:
    roles = {role: name for name, role in splits.items()}
    if len(roles) < len(splits):
        raise UserError(f"{root} holds a part twice: {', '.join(splits)}. Keep one of each.")
    if "train" not in roles:
        raise UserError(f"{root} holds {', '.join(splits)} but no train folder: add one.")
    train = root / roles["train"]
    classes = _classes(root, train)
    parts: dict[str, tuple[Item, ...]] = {"train": _items(root, train, classes)}
    for role in ("validation", "test"):
        if role in roles:
            part = root / roles[role]
            strangers = sorted(set(_subfolders(part)) - set(classes))
            if strangers:
                raise UserError(
                    f"{part} holds classes that {train} lacks: {_some(strangers)}. Every class "
                    "must have training images."
                )
            parts[role] = _items(root, part, classes)
            if not parts[role]:
                raise UserError(f"{part} holds no images: fill it or remove it.")
    notes: tuple[str, ...] = ()
    if "validation" in parts and "test" not in parts:
        parts["test"] = parts.pop("validation")
        notes = (f"There is no test folder: {roles['validation']}/ is the test set.",)
    return Listing(root, classes, **parts, notes=notes)


def read_listing(
    listing: Listing,
    *,
    name: str,
    size: tuple[int, int] | None,
    channels: int | None,
    bits: int,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    validation: float,
    test_fraction: float,
    split_seed: int,
    split_rule: Rule,
    skip_unreadable: bool,
    cache: bool,
) -> Dataset:
    """Split a listing that is not split yet, decode its images and check the readable ones.

    ``mean`` and ``std`` hold one value per channel or a single one for all.
    """
    listing = _divide(listing, validation, test_fraction, split_seed, split_rule)
    order = (listing.train, listing.validation, listing.test)
    items = [item for part in order for item in part]
    decoded = decode_files(
        listing.root,
        [item.path for item in items],
        size=size,
        channels=channels,
        bits=bits,
        skip_unreadable=skip_unreadable,
        cache=cache,
    )
    labels = np.array([item.label for item in items], dtype=np.int64)
    bounds = np.cumsum([0, *(len(part) for part in order)])
    rows = np.concatenate([[0], np.cumsum(decoded.kept)])
    parts = []
    for start, end in pairwise(bounds.tolist()):
        images = decoded.images[rows[start] : rows[end]]
        parts.append(ImageSet(images, labels[start:end][decoded.kept[start:end]]))
    train, held, test = parts
    _check_left(listing, train, test)
    mean, std = constants(mean, std, train.images.shape[1])
    return Dataset(
        name=name,
        classes=listing.classes,
        train=train,
        test=test,
        validation=held if listing.validation else None,
        mean=mean,
        std=std,
        skipped=tuple(
            str(listing.root / item.path)
            for item, kept in zip(items, decoded.kept, strict=True)
            if not kept
        ),
        notes=(*listing.notes, *decoded.notes),
        source=str(listing.root),
    )


def _divide(
    listing: Listing, validation: float, test_fraction: float, seed: int, rule: Rule
) -> Listing:
    if not listing.test:
        rest, part = _split(listing.train, test_fraction, seed, "test", rule, at_least=1)
        note = f"There is no test folder: {len(part)} of {len(listing.train)} images are set aside."
        listing = replace(listing, train=rest, test=part, notes=(*listing.notes, note))
    if validation and not listing.validation:
        rest, part = _split(listing.train, validation, seed, "validation", rule, at_least=0)
        listing = replace(listing, train=rest, validation=part)
    return listing


def _split(
    items: tuple[Item, ...], fraction: float, seed: int, purpose: str, rule: Rule, *, at_least: int
) -> tuple[tuple[Item, ...], tuple[Item, ...]]:
    """Split by file names, so that a file's part is known before any file is read."""
    ids = [item.path for item in items]
    if rule == "independent":
        rest, part = independent(ids, fraction, seed=seed, purpose=purpose)
    else:
        labels = np.array([item.label for item in items], dtype=np.int64)
        rest, part = stratified(
            labels, fraction, seed=seed, purpose=purpose, ids=ids, at_least=at_least
        )
    return tuple(items[i] for i in rest), tuple(items[i] for i in part)


def _check_left(listing: Listing, train: ImageSet, test: ImageSet) -> None:
    """Refuse a class, or a test part, of which no file can be read."""
    listed = {item.label for item in listing.train}
    empty = [listing.classes[label] for label in sorted(listed - set(train.labels.tolist()))]
    if empty:
        raise UserError(
            f"No readable training image is left in {listing.root} for {_some(empty)}: repair the "
            "images or remove the class."
        )
    if listing.test and not len(test):
        raise UserError(f"No readable test image is left in {listing.root}: repair the images.")


def _classes(root: Path, folder: Path) -> tuple[str, ...]:
    names = _subfolders(folder)
    if names and not any(images_below(folder / name) for name in names):
        names = []
    if len(names) > 1:
        return tuple(names)
    advice = "put the images of each class into a folder of its own, named after the class."
    if len(names) == 1:
        raise UserError(
            f"{folder} holds only one class, '{names[0]}', but a classifier needs at least two: "
            f"{advice}"
        )
    loose = sum(_is_image(entry) for entry in _entries(folder))
    if loose:
        raise UserError(f"{folder} holds {loose} images but no class folders: {advice}")
    ignored = _kinds(_walk(root, set()))
    seen = f" (ignored: {ignored})" if ignored else ""
    raise UserError(f"{folder} holds no images{seen}: {advice}")


def _items(root: Path, folder: Path, classes: tuple[str, ...]) -> tuple[Item, ...]:
    items: list[Item] = []
    for label, name in enumerate(classes):
        if not (folder / name).is_dir():
            continue
        found = images_below(folder / name)
        if not found:
            raise UserError(
                f"The class folder {folder / name} holds no images: fill it or remove it. Images "
                f"are files ending in {', '.join(sorted(EXTENSIONS))}."
            )
        items += [Item(path.relative_to(root).as_posix(), label) for path in found]
    return tuple(items)


def images_below(folder: Path) -> list[Path]:
    """All image files in a folder and its subfolders, sorted; hidden ones are left out."""
    return sorted(path for path in _walk(folder, set()) if path.suffix.lower() in EXTENSIONS)


def _walk(folder: Path, seen: set[tuple[int, int]]) -> Iterator[Path]:
    status = os.stat(folder)
    if (status.st_dev, status.st_ino) in seen:
        return
    seen.add((status.st_dev, status.st_ino))
    for entry in _entries(folder):
        if entry.is_dir():
            yield from _walk(Path(entry.path), seen)
        elif entry.is_file():
            yield Path(entry.path)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            found = [
                entry
                for entry in entries
                if not entry.name.startswith(".") and entry.name.lower() not in _IGNORED
            ]
    except OSError as error:
        raise UserError(f"The folder {folder} cannot be read ({error.strerror}).") from error
    return sorted(found, key=lambda entry: entry.name)


def _subfolders(folder: Path) -> list[str]:
    return [entry.name for entry in _entries(folder) if entry.is_dir()]


def _is_image(entry: os.DirEntry[str]) -> bool:
    return entry.is_file() and Path(entry.name).suffix.lower() in EXTENSIONS


def _ignored(listing: Listing) -> str:
    """A sentence about the files that are not among the images, or the empty string."""
    taken = {
        item.path for part in (listing.train, listing.validation, listing.test) for item in part
    }
    left = [
        path
        for path in _walk(listing.root, set())
        if path.relative_to(listing.root).as_posix() not in taken
    ]
    images = [path for path in left if path.suffix.lower() in EXTENSIONS]
    others = [path for path in left if path.suffix.lower() not in EXTENSIONS]
    words = [
        *([f"{_kinds(others)} (not images)"] if others else []),
        *([f"{_kinds(images)} outside the class folders"] if images else []),
    ]
    return f"Ignored: {', '.join(words)}." if words else ""


def _kinds(paths: Iterable[Path]) -> str:
    suffixes = Counter(path.suffix.lower() or "no extension" for path in paths)
    rest = sum(count for _, count in suffixes.most_common()[5:])
    shown = ", ".join(f"{count} × {suffix}" for suffix, count in suffixes.most_common(5))
    return shown + (f" and {rest} more" if rest else "")


def _some(names: list[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:5])
    return shown + (f" and {len(names) - 5} more" if len(names) > 5 else "")
