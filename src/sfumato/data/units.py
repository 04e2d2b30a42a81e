"""Units of privacy in a data set: which images belong to one person, or to another unit.

A unit is known by a name (a patient's number, a folder). Only a hash of it is kept, so that names
leave this module nowhere but in a sentence about data that cannot be used.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from sfumato.data.imageset import Array, Dataset
from sfumato.errors import UserError

IMAGE = "image"
"""The unit of privacy of data in which every image is one."""

PERSON = ("patient", "subject", "person", "participant")
"""Words for a person: columns and fields that name one name the others too."""

GROUP = "unit"
"""The group of a pattern that matches the unit's name in a path."""


def unit_numbers(names: Iterable[object]) -> Array:
    """Numbers of units by their names: equal names have equal numbers, on every machine.

    Numbers are hashes of 63 bits. Two units whose hashes collide would be protected as one.
    """
    known: dict[str, int] = {}
    found = []
    for name in names:
        text = str(name)
        if text not in known:
            digest = hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8)
            known[text] = int.from_bytes(digest.digest(), "big") >> 1
        found.append(known[text])
    return np.array(found, dtype=np.int64)


def units_of_paths(paths: Iterable[str], unit: str, pattern: str, *, depth: int) -> Iterator[str]:
    """The unit of each image, from its path.

    Args:
        paths: Paths below the data set's folder, with forward slashes.
        unit: The word for a unit, for messages.
        pattern: A regular expression with a group named `unit`; the first folder below that of the
            class if empty.
        depth: Number of folders above that of the unit: one for the class, two with parts.

    Raises:
        UserError: A path has no unit.
    """
    wanted = _compiled(pattern) if pattern else None
    for path in paths:
        if wanted is not None:
            match = wanted.search(path)
            name = match[GROUP] if match else None
            if not name:
                raise UserError(
                    f"data.unit_pattern finds no {unit} in the path '{path}': it must match every "
                    "image's path below the data folder."
                )
            yield name
            continue
        folders = path.split("/")[depth:-1]
        if not folders:
            raise UserError(
                f"The {unit} of '{path}' is not known: put the images of each {unit} into a "
                f"folder in its class's folder (class/{unit}/image.png), or give a pattern such as "
                r'--unit-pattern "(?P<unit>P\d+)_".'
            )
        yield folders[0]


def check_pattern(unit: str, pattern: str) -> None:
    """Refuse a pattern that finds no units, or one without the word for what it finds."""
    if pattern and unit == IMAGE:
        raise UserError(
            "data.unit_pattern finds the unit of privacy in file names: name the unit as well, as "
            "in --unit patient."
        )
    if pattern:
        _compiled(pattern)


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        found = re.compile(pattern)
    except re.error as error:
        raise UserError(f"data.unit_pattern = '{pattern}' is no pattern: {error}.") from None
    if GROUP not in found.groupindex:
        raise UserError(
            f"data.unit_pattern = '{pattern}' has no group named {GROUP}: write the part that is "
            r"the unit's name as in (?P<unit>P\d+)."
        )
    return found


def refuse_shared_units(
    names: Mapping[str, Sequence[object]], where: str, unit: str = "unit"
) -> None:
    """Refuse units with images in two parts of a data set.

    Args:
        names: The units of each part's images.
        where: The source of the data, for the message.
        unit: The word for a unit.

    Raises:
        UserError: A unit is in two parts.
    """
    seen: dict[str, str] = {}
    shared: dict[str, tuple[str, str]] = {}
    for part, own in names.items():
        for name in dict.fromkeys(map(str, own)):
            if (other := seen.setdefault(name, part)) != part:
                shared[name] = other, part
    if shared:
        few = ", ".join(f"'{name}'" for name in list(shared)[:5])
        more = f" and {len(shared) - 5} more" if len(shared) > 5 else ""
        one, other = next(iter(shared.values()))
        raise UserError(
            f"{where}: images of the same {unit} are in {one} and in {other} ({few}{more}). "
            f"Results on them would not be those of new {unit}s: keep all images of one in one "
            "part."
        )


def refuse_divided_units(
    units: Array,
    parts: Mapping[str, Array],
    name: Callable[[int], str],
    *,
    where: str,
    unit: str,
) -> None:
    """Refuse units with images in two parts, given by numbers instead of names.

    Args:
        units: The unit of every image.
        parts: Positions of each part's images.
        name: The name of the unit of the image at a position, for the message.
        where: The source of the data, for the message.
        unit: The word for a unit.

    Raises:
        UserError: A unit is in two parts.
    """
    for one, other in combinations(parts, 2):
        _, at, _ = np.intersect1d(units[parts[one]], units[parts[other]], return_indices=True)
        if len(at):
            names = sorted({name(int(position)) for position in parts[one][at]})
            refuse_shared_units({one: names, other: names}, where, unit)


def with_unit(dataset: Dataset, unit: str) -> Dataset:
    """The data set with the unit of privacy that a recipe names.

    Raises:
        UserError: The images' units are not known.
    """
    if unit == IMAGE:
        return _by_image(dataset)
    units = dataset.train.units
    if units is None:
        where = dataset.source or "the data"
        raise UserError(
            f"data.unit = '{unit}', but nothing says which images of {where} belong to one {unit}: "
            f"folders (class/{unit}/image.png) or --unit-pattern for a folder of images, a column "
            "of a table, an array `units` in an .npz file, (images, labels, units) in Python."
        )
    if len(np.unique(units)) < len(units):
        return dataset
    note = f"No {unit} has more than one training image: the unit of privacy is one image."
    return replace(dataset, notes=(*dataset.notes, note))


def _by_image(dataset: Dataset) -> Dataset:
    """The data set with every image as a unit."""
    if dataset.train.units is None:
        return dataset
    several = len(np.unique(dataset.train.units)) < len(dataset.train)
    note = (
        "Some images belong to one unit, and are protected each by itself: --unit patient "
        "(data.unit) protects all images of one together."
    )
    held = dataset.validation
    return replace(
        dataset,
        train=replace(dataset.train, units=None),
        test=replace(dataset.test, units=None),
        validation=None if held is None else replace(held, units=None),
        notes=(*dataset.notes, *((note,) if several else ())),
    )
