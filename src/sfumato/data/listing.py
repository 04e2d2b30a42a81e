"""The images of a data set on disk and their labels, before and after they are decoded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from sfumato.data.catalogue import constants
from sfumato.data.decoding import decode_images
from sfumato.data.image_files import ImageFiles
from sfumato.data.imageset import Array, Dataset, ImageSet
from sfumato.data.split import Rule, by_unit, independent, stratified
from sfumato.data.units import IMAGE, refuse_divided_units, unit_numbers, units_of_paths
from sfumato.errors import UserError

PARTS = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
    "testing": "test",
}
"""Parts of a data set by the names that their folders have."""


def _none() -> Array:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Listing:
    """The images of a data set and their labels, before anything is decoded.

    Of each image it holds the name and a few numbers, in arrays: a million take tens of megabytes.

    Attributes:
        root: the folder or file that holds the data set.
        classes: class names; label ``k`` means ``classes[k]``.
        files: where the images are.
        labels: one label per image, int64.
        train: positions of the training images; all until test images are set aside.
        test: positions of the test images.
        validation: positions of the validation images.
        notes: sentences about choices made, for the user to read.
        units: the unit of privacy of each image, int64 (see `sfumato.data.units`); None if each
            image is one.
        depth: number of folders above what is in a class's folder, in paths below ``root``; None
            if images have no such folders.
    """

    root: Path
    classes: tuple[str, ...]
    files: ImageFiles
    labels: Array
    train: Array
    test: Array = field(default_factory=_none)
    validation: Array = field(default_factory=_none)
    notes: tuple[str, ...] = ()
    units: Array | None = None
    depth: int | None = None

    def parts(self) -> dict[str, Array]:
        """Positions of the parts that have images, by name."""
        parts = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: positions for name, positions in parts.items() if len(positions)}


def units_from_paths(listing: Listing, unit: str, pattern: str) -> Listing:
    """The listing with the units of privacy that its paths name.

    Args:
        listing: Images in files or shards.
        unit: The word for a unit; `image` if every image is one.
        pattern: See `sfumato.data.units.units_of_paths`.

    Raises:
        UserError: An image has no unit, or images of one unit are in two parts.
    """
    if unit == IMAGE:
        return listing
    if listing.depth is None and not pattern:
        raise UserError(
            f"Nothing says which images of {listing.root} belong to one {unit}: give a pattern of "
            r'their names, such as --unit-pattern "(?P<unit>P\d+)_".'
        )

    def names(positions: Array) -> Iterator[str]:
        paths = listing.files.names(positions)
        return units_of_paths(paths, unit, pattern, depth=listing.depth or 0)

    units = unit_numbers(names(np.arange(len(listing.files))))
    refuse_divided_units(
        units,
        listing.parts(),
        lambda position: next(names(np.array([position]))),
        where=str(listing.root),
        unit=unit,
    )
    return replace(listing, units=units)


def read_listing(
    listing: Listing,
    *,
    name: str,
    size: tuple[int, int] | None,
    channels: int | None,
    bits: int,
    window: tuple[float, float] | None,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    validation: float,
    test_fraction: float,
    split_seed: int,
    split_rule: Rule,
    skip_unreadable: bool,
    cache: bool,
    keep_splits: bool,
) -> Dataset:
    """Split a listing that is not split yet, decode its images and check the readable ones.

    ``mean`` and ``std`` hold one value per channel or a single one for all. ``keep_splits`` keeps
    the decoded images of every split in the cache, instead of the last one's.
    """
    listing = _divide(listing, validation, test_fraction, split_seed, split_rule)
    parts = (listing.train, listing.validation, listing.test)
    order = np.concatenate(parts)
    decoded = decode_images(
        listing.files,
        order,
        size=size,
        channels=channels,
        bits=bits,
        window=window,
        skip_unreadable=skip_unreadable,
        cache=cache,
        split=repr((validation, test_fraction, split_seed, split_rule)) if keep_splits else "",
    )
    bounds = np.cumsum([0, *(len(part) for part in parts)]).tolist()
    sets, row = [], 0
    for start, end in pairwise(bounds):
        positions = order[start:end][decoded.kept[start:end]]
        labels = listing.labels[positions]
        units = None if listing.units is None else listing.units[positions]
        sets.append(ImageSet(decoded.images[row : row + len(labels)], labels, units))
        row += len(labels)
    train, held, test = sets
    _check_left(listing, train, test)
    mean, std = constants(mean, std, train.images.shape[1])
    return Dataset(
        name=name,
        classes=listing.classes,
        train=train,
        test=test,
        validation=held if len(listing.validation) else None,
        mean=mean,
        std=std,
        skipped=tuple(listing.files.place(int(at)) for at in order[~decoded.kept]),
        notes=(*listing.notes, *decoded.notes),
        source=str(listing.root),
    )


def training_examples(listing: Listing, unit: str) -> int:
    """The number of training images or units that are left by the usual split."""
    divided = _divide(listing, 0.0, 0.2, 0, "independent")
    if unit == IMAGE or divided.units is None:
        return len(divided.train)
    return len(np.unique(divided.units[divided.train]))


def _divide(
    listing: Listing, validation: float, test_fraction: float, seed: int, rule: Rule
) -> Listing:
    if not len(listing.test):
        rest, part = _split(listing, test_fraction, seed, "test", rule, at_least=1)
        note = f"There is no test part: {len(part)} of {len(listing.train)} images are set aside."
        listing = replace(listing, train=rest, test=part, notes=(*listing.notes, note))
    if validation and not len(listing.validation):
        rest, part = _split(listing, validation, seed, "validation", rule, at_least=0)
        listing = replace(listing, train=rest, validation=part)
    return listing


def _split(
    listing: Listing, fraction: float, seed: int, purpose: str, rule: Rule, *, at_least: int
) -> tuple[Array, Array]:
    """Split training images by their names, so that their parts are known before any is read.

    Units of several images are set aside whole, each by itself, by either rule.
    """
    train = listing.train
    ids = listing.files.names(train)
    if listing.units is not None:
        rest, part = by_unit(listing.units[train], fraction, seed=seed, purpose=purpose)
    elif rule == "independent":
        rest, part = independent(ids, fraction, seed=seed, purpose=purpose)
    else:
        labels = listing.labels[train]
        rest, part = stratified(
            labels, fraction, seed=seed, purpose=purpose, ids=ids, at_least=at_least
        )
    return train[rest], train[part]


def _check_left(listing: Listing, train: ImageSet, test: ImageSet) -> None:
    """Refuse a class, or a test part, of which no image can be read."""
    lost = np.setdiff1d(listing.labels[listing.train], train.labels)
    if len(lost):
        raise UserError(
            f"No readable training image is left in {listing.root} for "
            f"{some([listing.classes[label] for label in lost])}: repair the images or remove the "
            "class."
        )
    if len(listing.test) and not len(test):
        raise UserError(f"No readable test image is left in {listing.root}: repair the images.")


def some(names: list[str]) -> str:
    """The first few of many names."""
    shown = ", ".join(f"'{name}'" for name in names[:5])
    return shown + (f" and {len(names) - 5} more" if len(names) > 5 else "")
