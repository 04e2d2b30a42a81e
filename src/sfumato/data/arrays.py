"""A data set assembled from arrays of images and labels, each checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from sfumato.data.catalogue import HALF
from sfumato.data.decode import depth_note, eight_bits
from sfumato.data.imageset import Array, Dataset, ImageSet
from sfumato.data.split import Rule
from sfumato.data.units import refuse_shared_units, unit_numbers
from sfumato.errors import UserError

_CHANNEL_COUNTS = (1, 2, 3, 4)


class Part(NamedTuple):
    """Images and labels of one part of a data set, with the names of both for messages.

    Attributes:
        units: Names or numbers of the images' units of privacy; None if they are not known.
    """

    images: Array
    labels: Array
    images_name: str
    labels_name: str
    units: Array | None = None


def assembled(
    parts: Mapping[str, Part],
    *,
    where: str,
    name: str,
    classes: tuple[str, ...] | None,
    bits: int,
    test_fraction: float,
    split_seed: int,
    split_rule: Rule,
) -> Dataset:
    """A data set of arrays; without a test part, a seeded one is set aside.

    Args:
        parts: `train`, and `validation` and `test` if there are any.
        where: The source of the arrays, for messages.
        name: The data set's name.
        classes: Names of the classes; their numbers if None.
        bits: Bits that count in 16-bit images.
        test_fraction: The fraction to set aside without a test part.
        split_seed: Decides which images are set aside.
        split_rule: How images are set aside; `independent` by a hash of their pixels.

    Raises:
        UserError: If the arrays are no images and labels, or do not belong together.
    """
    images = {
        k: checked_images(f"{where}: {p.images_name}", p.images, bits) for k, p in parts.items()
    }
    raw = {k: _labels(f"{where}: {p.labels_name}", p.labels) for k, p in parts.items()}
    for key, part in parts.items():
        if len(images[key]) != len(raw[key]):
            raise UserError(
                f"{where}: {part.images_name} holds {len(images[key])} images but "
                f"{part.labels_name} holds {len(raw[key])} labels; they must be as many."
            )
        if not len(raw[key]):
            raise UserError(
                f"{where}: {part.images_name} is empty; give images or leave the array out."
            )
    labels, classes = _numbered(where, raw, classes)
    units = _units(where, parts)
    sets = {key: ImageSet(images[key], labels[key], units.get(key)) for key in images}
    _check_alike(where, sets)
    notes: tuple[str, ...] = ()
    if "test" not in sets:
        whole = sets["train"]
        sets["train"], sets["test"] = whole.set_aside(
            test_fraction, seed=split_seed, purpose="test", rule=split_rule, at_least=1
        )
        held = len(sets["test"])
        notes = (f"There is no test part: {held} of {len(whole)} images are set aside.",)
    deep = [part.images for part in parts.values() if part.images.dtype == np.uint16]
    dark = depth_note(max((int(a.max()) for a in deep), default=0), bits)
    channels = sets["train"].images.shape[1]
    return Dataset(
        name=name,
        classes=classes,
        train=sets["train"],
        test=sets["test"],
        validation=sets.get("validation"),
        mean=(HALF,) * channels,
        std=(HALF,) * channels,
        notes=(*notes, *filter(None, (dark, _holes(where, sets)))),
        source=where,
    )


def _units(where: str, parts: Mapping[str, Part]) -> dict[str, Array]:
    """The units of each part's images, where they are given."""
    given = {key: part.units for key, part in parts.items() if part.units is not None}
    if not given:
        return {}
    for key, part in parts.items():
        wanted = (len(part.labels),)
        if key not in given or given[key].shape != wanted or given[key].dtype.kind not in "iuUS":
            raise UserError(
                f"{where}: the units of {part.images_name} must be {wanted[0]} whole numbers or "
                "names, one for each image, in every part."
            )
    names = {key: [text(name) for name in own.tolist()] for key, own in given.items()}
    refuse_shared_units(names, where)
    return {key: unit_numbers(own) for key, own in names.items()}


def _holes(where: str, parts: Mapping[str, ImageSet]) -> str:
    """A sentence about images with values that are no numbers; empty if there are none.

    Raises:
        UserError: Every training image has such values.
    """
    count = sum(
        int(np.isnan(part.images).any((1, 2, 3)).sum())
        for part in parts.values()
        if part.images.dtype.kind == "f"
    )
    if not count:
        return ""
    train = parts["train"].images
    if np.isnan(train).any((1, 2, 3)).all():
        raise UserError(
            f"{where}: every training image holds NaN, so that nothing could be learnt. Replace "
            "such values before training."
        )
    whole = sum(len(part) for part in parts.values())
    return (
        f"{count} of {whole} images hold NaN: nothing is learnt from those, and what is said of "
        "them counts as wrong."
    )


def checked_images(where: str, array: Array, bits: int) -> Array:
    """Images ``(N, C, H, W)`` of uint8, or of float32 in [0, 1], from an array of any such kind.

    Raises:
        UserError: If it holds no images, or values outside the range of its type.
    """
    planes = _channels_first(where, array)
    kind = planes.dtype
    if kind == np.uint8:
        return np.ascontiguousarray(planes)
    if kind == np.bool_:
        return np.ascontiguousarray(planes).astype(np.uint8) * np.uint8(255)
    if kind == np.uint16:
        try:
            return np.ascontiguousarray(eight_bits(planes, bits))
        except ValueError as error:
            raise UserError(f"{where} cannot be read: {error}.") from None
    if kind.kind not in "iuf":
        raise UserError(f"{where} is of type {kind}: give uint8, or floats between 0 and 1.")
    low, high = _range(planes)
    if kind.kind == "f":
        if low < 0 or high > 1:
            advice = (
                "divide by 255 or save as uint8"
                if low >= 0 and high <= 255
                else "scale them, and leave normalisation out: training normalises images itself"
            )
            raise UserError(
                f"{where} holds values from {low:g} to {high:g}, but floats must lie between 0 and "
                f"1: {advice}."
            )
        return np.ascontiguousarray(planes, dtype=np.float32)
    if low < 0 or high > 255:
        raise UserError(
            f"{where} holds whole numbers from {low:g} to {high:g}, but pixels go from 0 to 255 "
            "(uint16: to 65535); scale them first."
        )
    return np.ascontiguousarray(planes.astype(np.uint8))


def _range(values: Array) -> tuple[float, float]:
    """Smallest and largest value, not counting NaN."""
    if not values.size:
        return 0.0, 0.0
    low = float(np.fmin.reduce(values, axis=None))
    high = float(np.fmax.reduce(values, axis=None))
    return (low, high) if low == low else (0.0, 0.0)


def _channels_first(where: str, array: Array) -> Array:
    """``(N, H, W)``, ``(N, H, W, C)`` or ``(N, C, H, W)`` as the last of these."""
    if array.ndim == 3:
        return array[:, None]
    if array.ndim != 4:
        raise UserError(
            f"{where} has the shape {array.shape}, but images are (N, H, W), (N, H, W, C) or "
            "(N, C, H, W)."
        )
    first, middle, last = array.shape[1:]
    likely_first, likely_last = first in _CHANNEL_COUNTS, last in _CHANNEL_COUNTS
    if likely_first == likely_last:
        likely_first, likely_last = middle == last != first, first == middle != last
    if likely_first == likely_last:
        raise UserError(
            f"{where} has the shape {array.shape}, which leaves open which axis holds the "
            "channels: save square images as (N, C, H, W)."
        )
    return array if likely_first else array.transpose(0, 3, 1, 2)


def _labels(where: str, array: Array) -> Array:
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise UserError(
            f"{where} has the shape {array.shape}, but there must be one label per image, (N,) or "
            "(N, 1): turn one-hot rows into numbers with argmax."
        )
    if array.dtype.kind in "UuiS":
        return array
    if array.dtype.kind == "f" and np.all(np.isfinite(array)) and np.all(array == np.rint(array)):
        return array.astype(np.int64)
    raise UserError(f"{where} holds labels that are not whole numbers (type {array.dtype}).")


def text(item: Any) -> str:
    """A label of a NumPy array of strings as text."""
    return item.decode("utf-8", "replace") if isinstance(item, bytes) else str(item)


def _numbered(
    where: str, raw: dict[str, Array], names: tuple[str, ...] | None
) -> tuple[dict[str, Array], tuple[str, ...]]:
    """Labels as numbers from 0 and the name of each class."""
    worded = {labels.dtype.kind in "US" for labels in raw.values()}
    if len(worded) > 1:
        raise UserError(f"{where}: labels are numbers in one part and names in another.")
    if worded == {True}:
        names = names or tuple(sorted({text(item) for item in raw["train"].tolist()}))
        raw = {part: _looked_up(where, part, labels, names) for part, labels in raw.items()}
    train = raw["train"]
    count = len(names) if names else int(train.max()) + 1
    for part, labels in raw.items():
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= count:
            wrong = low if low < 0 else high
            raise UserError(
                f"{where}: the {part} labels hold {wrong}, but with {count} classes in "
                f"{'classes' if names else 'train'} labels go from 0 to {count - 1}."
            )
    if count < 2:
        raise UserError(f"{where} holds only one class: a classifier needs at least two.")
    if names is None:
        found = np.unique(train)
        if len(found) < count:
            absent = next((k for k, label in enumerate(found) if k != label), len(found))
            raise UserError(
                f"{where}: no training image has the label {absent}, though labels reach "
                f"{count - 1}; number the classes from 0 without gaps, or name them (in an .npz "
                "file by an array called classes)."
            )
    numbers = {part: labels.astype(np.int64) for part, labels in raw.items()}
    return numbers, names or tuple(str(label) for label in range(count))


def _looked_up(where: str, part: str, labels: Array, names: tuple[str, ...]) -> Array:
    numbers = {name: number for number, name in enumerate(names)}
    texts = [text(item) for item in labels.tolist()]
    unknown = sorted(set(texts) - set(numbers))
    if unknown:
        raise UserError(f"{where}: the {part} labels hold '{unknown[0]}', which is not a class.")
    return np.array([numbers[text] for text in texts], dtype=np.int64)


def _check_alike(where: str, parts: dict[str, ImageSet]) -> None:
    train = parts["train"].images
    for name, part in parts.items():
        if part.images.shape[1:] != train.shape[1:]:
            raise UserError(
                f"{where}: train images are {train.shape[1:]} (channels, height, width) but {name} "
                f"images are {part.images.shape[1:]}; they must be alike."
            )
        if part.images.dtype != train.dtype:
            raise UserError(
                f"{where}: train images are {train.dtype} but {name} images are "
                f"{part.images.dtype}; they must be alike."
            )
