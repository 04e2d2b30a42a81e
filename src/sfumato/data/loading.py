"""One function that loads every data set: `load`."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypedDict

import numpy as np

from sfumato.data import locate
from sfumato.data.adapt import adapt
from sfumato.data.catalogue import CATALOGUE, DRAWN, HALF, Entry, canonical, check_channels
from sfumato.data.cifar import read_cifar
from sfumato.data.dicom_listing import dicom_frames, holds_dicom
from sfumato.data.folder import list_folder
from sfumato.data.idx import read_idx_folder
from sfumato.data.imagenet import list_imagenette, list_tiny_imagenet
from sfumato.data.imageset import Dataset, ImageSet
from sfumato.data.in_memory import read_object
from sfumato.data.listing import (
    Listing,
    read_listing,
    training_examples,
    units_from_paths,
)
from sfumato.data.npz import read_npz
from sfumato.data.shards import holds_shards, is_pattern, list_shards
from sfumato.data.split import Rule, check_fraction
from sfumato.data.table import list_table
from sfumato.data.table_rows import TABLES, is_table
from sfumato.data.units import IMAGE, check_pattern, with_unit
from sfumato.errors import UserError, names_in, nearest, nearest_path
from sfumato.text import DATA_FILES, GIVEN

_DIGITS = Path(__file__).with_name("digits.npz")
"""The 8×8 digits, 0 to 16 scaled to bytes, with one fixed 80/20 split; see `digits.md`."""

_LARGEST_SIDE = 4096


class _Split(TypedDict):
    """The rule by which images are set aside for testing."""

    test_fraction: float
    split_seed: int
    split_rule: Rule


class _Asked(NamedTuple):
    """Arguments about the images of files."""

    unit: str
    pattern: str
    columns: tuple[str, ...]
    field: str
    mixed: bool
    cache: Path | None


def load(
    name_or_path: object,
    *,
    root: str | os.PathLike[str] | None = None,
    size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    bits: int = 16,
    validation: float = 0.0,
    test_fraction: float = 0.2,
    split_seed: int = 0,
    split_rule: Rule = "independent",
    unit: str = IMAGE,
    unit_pattern: str = "",
    columns: Sequence[str] = (),
    window: Sequence[float] = (),
    unit_field: str = "",
    mixed_photometric: bool = False,
    skip_unreadable: bool = False,
    cache: bool = True,
) -> Dataset:
    """Load a data set by name, from a folder, a table, tar shards, an `.npz` or from memory.

    Args:
        name_or_path: a name (see `sfumato.data.names`), a folder with one folder of images per
            class, a table (`.csv`, `.tsv`, `.parquet`) of paths and labels, tar shards as
            WebDataset has them (a folder of them, a file, or a pattern such as
            ``train-{000..146}.tar``) or an `.npz` file. A name wins over a folder of that name;
            write ``./name``.
            Or the data itself: arrays, tensors or a data set (see `sfumato.data.in_memory`).
        root: where to look first for a named set; then in $SFUMATO_DATA, the user's cache and
            /usr/share/datasets.
        size: side of the images, or (height, width). By default their own; images of several sizes
            or over 64 become 64×64 (Imagenette: 160×160).
        channels: 1 (grey) or 3 (colour). By default their own.
        bits: number of bits of 16-bit images that count: their largest value is white. Give 12 for
            scans from 0 to 4095.
        validation: the fraction of the training set to set aside for validation, where the data has
            no validation set of its own.
        test_fraction: the fraction to set aside for testing, where the data has no test set of
            its own.
        split_seed: seed of the choice of images to set aside.
        split_rule: rule by which one's own images are set aside. ``independent``: each by a hash of
            its pixels (`.npz`) or its file name (folder), so about that fraction of them.
            ``stratified``: that fraction of each class, as version 0.1 did. Named data sets are
            public and fixed, and always stratified.
        unit: word for the unit of privacy whose images belong together, such as ``patient``; see
            docs/patients.md for where it is found. Images of one unit are in one part.
        unit_pattern: regular expression whose group ``unit`` is the unit in a path below the data
            folder, or in the key of an image in tar shards.
        columns: columns of a table by their roles, such as ``("path=file", "label=dx",
            "unit=pid", "split=fold")``; those that are not given are found by their names, and an
            empty name says that there is none.
        window: centre and width of the values of DICOM files that become black to white, such as
            ``(40, 400)``; by default the range of their stored bits. Never chosen from images.
        unit_field: keyword of the field that names the unit in DICOM files; for persons PatientID.
        mixed_photometric: take DICOM files whose lowest value is white beside others.
        skip_unreadable: leave damaged images out instead of refusing them.
        cache: keep decoded images in the user's cache, where only their owner can read them.

    Raises:
        UserError: with a sentence about the data or the arguments.
    """
    _check_loadable(name_or_path)
    shape = _checked_size(size)
    check_channels(channels)
    if not 8 <= bits <= 16:
        raise UserError(f"bits = {bits} is impossible: give a number from 8 to 16.")
    check_fraction("validation", validation, zero=True)
    check_fraction("test_fraction", test_fraction)
    check_pattern(unit, unit_pattern)
    split = _Split(test_fraction=test_fraction, split_seed=split_seed, split_rule=split_rule)
    edges = _checked_window(window)
    _check_columns(columns, name_or_path)
    if not isinstance(name_or_path, str | os.PathLike):
        _check_no_paths(unit_pattern)
        dataset = read_object(name_or_path, size=shape, channels=channels, bits=bits, **split)
        dataset = dataset.split_validation(validation, seed=split_seed, rule=split_rule)
        return _noted(adapt(dataset, size=shape, channels=channels))
    entry = _named(name_or_path)
    place = _placed(entry, name_or_path, root)
    rule = split["split_rule"] = "stratified" if entry is not None else split_rule
    if entry is None and place.is_dir():
        entry, place = locate.recognised(place) or (None, place)
    if entry is None and place.suffix.lower() == ".npz" and place.is_file():
        _check_no_paths(unit_pattern)
        dataset = read_npz(place, bits=bits, **split)
    elif entry is None or entry.name in ("imagenette", "tiny-imagenet"):
        kept = locate.cache_folder() if cache else None
        fields = unit_field, mixed_photometric
        asked = _Asked(unit, unit_pattern, tuple(columns), *fields, kept)
        dataset = read_listing(
            _listing(entry, place, asked),
            name=entry.name if entry else _name(place),
            size=shape or (entry.size if entry else None),
            channels=channels or (entry.channels if entry else None),
            bits=bits,
            window=edges,
            mean=entry.mean if entry else (HALF,),
            std=entry.std if entry else (HALF,),
            validation=validation,
            skip_unreadable=skip_unreadable,
            cache=cache,
            # Recipes divide a named set differently, and their runs take turns.
            keep_splits=entry is not None,
            **split,
        )
        return _noted(dataset)
    else:
        dataset = _read_arrays(entry, place)
    # Before images are resized, so that the size does not decide which images are set aside.
    dataset = dataset.split_validation(validation, seed=split_seed, rule=rule)
    return _noted(adapt(dataset, size=shape, channels=channels))


def count_examples(
    place: str | os.PathLike[str],
    *,
    unit: str = IMAGE,
    unit_pattern: str = "",
    columns: Sequence[str] = (),
) -> int:
    """The number of training examples that a run on a folder, a table or an `.npz` would have.

    Images that are set aside for testing do not count. Nothing is decoded but an `.npz` file.

    Args:
        place: as for `load`, but no name of a data set.
        unit: as for `load`; the examples are units.
        unit_pattern: as for `load`.
        columns: as for `load`.

    Raises:
        UserError: with a sentence about the data or the arguments.
    """
    check_pattern(unit, unit_pattern)
    _check_columns(columns, place)
    where = _placed(None, place, None)
    if where.suffix.lower() == ".npz" and where.is_file():
        found = load(place, unit=unit, unit_pattern=unit_pattern, cache=False)
        return with_unit(found, unit).train.examples
    listing = _listing(None, where, _Asked(unit, unit_pattern, tuple(columns), "", False, None))
    return training_examples(listing, unit)


def _check_loadable(name: object) -> None:
    """Refuse names of images that no file holds."""
    if isinstance(name, str) and name in DRAWN:
        raise UserError(
            f"The images of '{name}' are drawn at random while `sfumato pretrain --data {name}` "
            "trains on them: there is nothing to load."
        )
    if isinstance(name, str) and name.startswith(GIVEN):
        raise UserError(
            f"The images of '{name}' were given as an object in Python, which no file holds: give "
            "them again, as in `sfumato.open(folder, data=...)`."
        )


def _check_no_paths(pattern: str) -> None:
    """Refuse a pattern of paths for images that have none."""
    if pattern:
        raise UserError(
            "data.unit_pattern finds units in the paths of image files, and these images are "
            "arrays: give their units as an array."
        )


def _check_columns(columns: Sequence[str], data: object) -> None:
    """Refuse columns of what is no table."""
    if columns and not (isinstance(data, str | os.PathLike) and is_table(Path(data))):
        where = f"'{data}'" if isinstance(data, str | os.PathLike) else "what is in memory"
        raise UserError(
            f"data.columns names columns of a table ({', '.join(TABLES)}), and {where} is none: "
            "leave it out."
        )


def _name(place: Path) -> str:
    """The name of data that is not in the catalogue."""
    return place.stem if is_table(place) else place.resolve().name


def _noted(dataset: Dataset) -> Dataset:
    """The data set with a note about classes without any training image."""
    seen = {name: set(np.unique(part.labels).tolist()) for name, part in dataset.parts().items()}
    lost = sorted(set.union(*seen.values()) - seen["train"])
    if not lost:
        return dataset
    few = ", ".join(f"'{dataset.classes[label]}'" for label in lost[:5])
    note = f"No training image is left of {few}{' and others' if len(lost) > 5 else ''}."
    return replace(dataset, notes=(*dataset.notes, note))


def _checked_size(size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    if size is None:
        return None
    height, width = (size, size) if isinstance(size, int) else size
    if not (1 <= height <= _LARGEST_SIDE and 1 <= width <= _LARGEST_SIDE):
        raise UserError(
            f"An image size of {height}×{width} is impossible: give sides from 1 to "
            f"{_LARGEST_SIDE}."
        )
    return int(height), int(width)


def _checked_window(window: Sequence[float]) -> tuple[float, float] | None:
    if not len(window):
        return None
    values = tuple(float(value) for value in window)
    if len(values) != 2 or not all(map(math.isfinite, values)) or values[1] <= 1:
        raise UserError(
            f"data.window = {list(window)} is impossible: give the centre and the width, a number "
            "greater than 1, as in [40, 400]."
        )
    return values[0], values[1]


def _named(name_or_path: str | os.PathLike[str]) -> Entry | None:
    known = canonical(name_or_path) if isinstance(name_or_path, str) else None
    return CATALOGUE[known] if known else None


def _placed(
    entry: Entry | None,
    name_or_path: str | os.PathLike[str],
    root: str | os.PathLike[str] | None,
) -> Path:
    if entry is not None:
        return Path() if entry.name == "digits" else locate.require(entry, root)
    path = Path(name_or_path).expanduser()
    text = os.fspath(name_or_path)
    if path.is_dir() or is_pattern(text):
        return path
    if path.is_file():
        if path.suffix.lower() not in DATA_FILES:
            raise UserError(
                f"{path} is not an .npz file: give an .npz, a .tar, a table "
                f"({', '.join(TABLES)}) or a folder of images."
            )
        return path
    if isinstance(name_or_path, str) and not (os.sep in text or text.startswith(("~", "."))):
        hint = nearest(text, [*CATALOGUE, *DRAWN, *names_in(".")])
        raise UserError(
            f"There is no data set and no file or folder called '{text}'.{hint} Known are: "
            f"{', '.join(CATALOGUE)}; or give a folder of images, a table, tar shards or an "
            ".npz file."
        )
    raise UserError(
        f"{path} does not exist: give a folder of images, a table, tar shards or an .npz file."
        f"{nearest_path(str(path))}"
    )


def _listing(entry: Entry | None, place: Path, asked: _Asked) -> Listing:
    """The images of files, with the units that a table, their paths or their headers name."""
    unit, pattern = asked.unit, asked.pattern
    if entry is None and is_table(place) and place.is_file():
        listing = list_table(place, columns=asked.columns, unit=unit, pattern=pattern)
    else:
        listing = _by_place(entry, place, asked.cache)
    dicom = holds_dicom(listing)
    if listing.units is None and (pattern or not dicom):
        listing = units_from_paths(listing, unit, pattern)
    if not dicom:
        return listing
    return dicom_frames(listing, unit=unit, field=asked.field, mixed=asked.mixed)


def _by_place(entry: Entry | None, place: Path, cache: Path | None) -> Listing:
    if entry is not None:
        return list_imagenette(place) if entry.name == "imagenette" else list_tiny_imagenet(place)
    if not place.is_dir() or holds_shards(place):
        return list_shards(place, cache=cache)
    return list_folder(place)


def _read_arrays(entry: Entry, place: Path) -> Dataset:
    classes = entry.class_names
    if entry.name == "digits":
        with np.load(_DIGITS) as arrays:
            train, test = (ImageSet(arrays[f"x_{p}"], arrays[f"y_{p}"]) for p in ("train", "test"))
    elif entry.name in ("cifar10", "cifar100"):
        train, test, classes = read_cifar(place, entry.name)
    else:
        train, test = read_idx_folder(place, classes=entry.classes)
    return Dataset(
        name=entry.name,
        classes=classes,
        train=train,
        test=test,
        validation=None,
        mean=entry.mean,
        std=entry.std,
        source="sfumato itself" if entry.name == "digits" else str(place),
    )
