"""Arrays of images in a NumPy `.npz` file.

Accepted names: ``x_train, y_train`` with optional ``x_val, y_val`` and ``x_test, y_test``; the same
as ``train_images, train_labels, val_images, ...`` (as in MedMNIST); or ``images, labels``
(``x, y``) alone. ``classes`` may hold the class names.
"""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.data.catalogue import HALF
from sfumato.data.decode import depth_note, eight_bits
from sfumato.data.imageset import Array, Dataset, ImageSet
from sfumato.data.limits import check_unpacked
from sfumato.data.split import Rule
from sfumato.errors import UserError

_NAMES = {
    "train": (("x_train", "y_train"), ("train_images", "train_labels")),
    "validation": (
        ("x_val", "y_val"),
        ("x_valid", "y_valid"),
        ("x_validation", "y_validation"),
        ("val_images", "val_labels"),
    ),
    "test": (("x_test", "y_test"), ("test_images", "test_labels")),
}
_WHOLE = (("images", "labels"), ("x", "y"), ("X", "y"))
_CHANNEL_COUNTS = (1, 2, 3, 4)


def read_npz(
    path: Path, *, bits: int, test_fraction: float, split_seed: int, split_rule: Rule
) -> Dataset:
    """Read an `.npz` file; without a test part, set a seeded one aside.

    Only the lower ``bits`` bits of 16-bit arrays count.
    """
    arrays = _load(path)
    notes: tuple[str, ...] = ()
    pairs = {part: _pair(path, arrays, names) for part, names in _NAMES.items()}
    if pairs["train"] is None:
        pairs["train"] = _pair(path, arrays, _WHOLE)
    if pairs["train"] is None:
        raise UserError(
            f"{path} holds {', '.join(sorted(arrays)) or 'nothing'}: it needs x_train and y_train "
            "(and best x_test and y_test), or images and labels."
        )
    names = _class_names(path, arrays.get("classes"))
    images = {
        part: _images(path, pair[0], arrays[pair[0]], bits) for part, pair in pairs.items() if pair
    }
    raw = {part: _labels(path, pair[1], arrays[pair[1]]) for part, pair in pairs.items() if pair}
    for part, pair in pairs.items():
        if pair and len(images[part]) != len(raw[part]):
            raise UserError(
                f"{path}: {pair[0]} holds {len(images[part])} images but {pair[1]} holds "
                f"{len(raw[part])} labels; they must be as many."
            )
        if pair and not len(raw[part]):
            raise UserError(f"{path}: {pair[0]} is empty; give images or leave the array out.")
    labels, classes = _numbered(path, raw, names)
    parts = {part: ImageSet(images[part], labels[part]) for part in images}
    _check_alike(path, parts)
    if "test" not in parts:
        whole = parts["train"]
        parts["train"], parts["test"] = whole.set_aside(
            test_fraction, seed=split_seed, purpose="test", rule=split_rule, at_least=1
        )
        held = len(parts["test"])
        notes = (f"There is no test part: {held} of {len(whole)} images are set aside.",)
    deep = [
        arrays[pair[0]] for pair in pairs.values() if pair and arrays[pair[0]].dtype == np.uint16
    ]
    dark = depth_note(max((int(a.max()) for a in deep), default=0), bits)
    channels = parts["train"].images.shape[1]
    return Dataset(
        name=path.stem,
        classes=classes,
        train=parts["train"],
        test=parts["test"],
        validation=parts.get("validation"),
        mean=(HALF,) * channels,
        std=(HALF,) * channels,
        notes=(*notes, *filter(None, (dark, _holes(parts)))),
        source=str(path),
    )


def _holes(parts: Mapping[str, ImageSet]) -> str:
    """A sentence about images that contain NaN; empty if there are none."""
    count = sum(
        int(np.isnan(part.images).any((1, 2, 3)).sum())
        for part in parts.values()
        if part.images.dtype.kind == "f"
    )
    if not count:
        return ""
    whole = sum(len(part) for part in parts.values())
    return (
        f"{count} of {whole} images hold NaN: nothing is learnt from those, and what is said of "
        "them counts as wrong."
    )


def _load(path: Path) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    name = ""
    try:
        _check_size(path)
        with np.load(path, allow_pickle=False) as archive:
            for name in archive.files:
                arrays[name] = archive[name]
    except ValueError as error:
        if "pickle" in str(error).lower() and name:
            raise UserError(
                f"{path}: '{name}' holds Python objects instead of numbers, which are never "
                "unpickled; save it as an array of one number type (all images of one size)."
            ) from error
        raise UserError(f"{path} is not an .npz file of arrays ({_first(error)}).") from error
    except (OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{path} cannot be read ({_first(error)}): save it again.") from error
    return arrays


def _check_size(path: Path) -> None:
    """Refuse a file whose headers claim more than it holds, or far too much."""
    with open(path, "rb") as file:
        if file.read(6) == np.lib.format.MAGIC_PREFIX:
            raise UserError(f"{path} holds a single array: save images and labels in an .npz.")
    total = 0
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if not member.filename.endswith(".npy"):
                continue
            with archive.open(member) as stream:
                start = io.BytesIO(stream.read(_LONGEST_HEADER))
            version = np.lib.format.read_magic(start)
            read = _READERS.get(version)
            if read is None:
                raise ValueError(f"a format {version} that is not known")
            shape, _, kind = read(start)
            size = math.prod(shape) * kind.itemsize
            total += size
            if not kind.hasobject and size > member.file_size:
                name = member.filename.removesuffix(".npy")
                raise UserError(f"{path}: '{name}' holds fewer values than its header says.")
    check_unpacked(path, total)


_LONGEST_HEADER = 1 << 16
_READERS: dict[tuple[int, int], Callable[..., Any]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def _first(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _pair(
    path: Path, arrays: dict[str, Array], names: tuple[tuple[str, str], ...]
) -> tuple[str, str] | None:
    for pair in names:
        if all(name in arrays for name in pair):
            return pair
    for pair in names:
        for name, other in (pair, pair[::-1]):
            if name in arrays:
                raise UserError(f"{path} holds {name} but not {other}: add it.")
    return None


def _images(path: Path, name: str, array: Array, bits: int) -> Array:
    where = f"{path}: {name}"
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
                "divide by 255 or save as uint8" if low >= 0 and high <= 255 else "scale them first"
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
    """Convert ``(N, H, W)``, ``(N, H, W, C)`` or ``(N, C, H, W)`` to the last of these."""
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


def _labels(path: Path, name: str, array: Array) -> Array:
    where = f"{path}: {name}"
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


def _class_names(path: Path, array: Array | None) -> tuple[str, ...] | None:
    if array is None:
        return None
    if array.ndim != 1 or array.dtype.kind not in "US":
        raise UserError(f"{path}: classes must be a one-dimensional array of strings.")
    names = tuple(_text(item) for item in array.tolist())
    if len(set(names)) < len(names):
        raise UserError(f"{path}: classes holds a name twice.")
    return names


def _text(item: Any) -> str:
    return item.decode("utf-8", "replace") if isinstance(item, bytes) else str(item)


def _numbered(
    path: Path, raw: dict[str, Array], names: tuple[str, ...] | None
) -> tuple[dict[str, Array], tuple[str, ...]]:
    """Labels as numbers from 0 and the name of each class."""
    worded = {labels.dtype.kind in "US" for labels in raw.values()}
    if len(worded) > 1:
        raise UserError(f"{path}: labels are numbers in one part and names in another.")
    if worded == {True}:
        names = names or tuple(sorted({_text(item) for item in raw["train"].tolist()}))
        raw = {part: _looked_up(path, part, labels, names) for part, labels in raw.items()}
    train = raw["train"]
    count = len(names) if names else int(train.max()) + 1
    for part, labels in raw.items():
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= count:
            wrong = low if low < 0 else high
            raise UserError(
                f"{path}: the {part} labels hold {wrong}, but with {count} classes in "
                f"{'classes' if names else 'train'} labels go from 0 to {count - 1}."
            )
    if count < 2:
        raise UserError(f"{path} holds only one class: a classifier needs at least two.")
    if names is None:
        found = np.unique(train)
        if len(found) < count:
            absent = next((k for k, label in enumerate(found) if k != label), len(found))
            raise UserError(
                f"{path}: no training image has the label {absent}, though labels reach "
                f"{count - 1}; number the classes from 0 without gaps, or name them in an array "
                "called classes."
            )
    numbers = {part: labels.astype(np.int64) for part, labels in raw.items()}
    return numbers, names or tuple(str(label) for label in range(count))


def _looked_up(path: Path, part: str, labels: Array, names: tuple[str, ...]) -> Array:
    numbers = {name: number for number, name in enumerate(names)}
    texts = [_text(item) for item in labels.tolist()]
    unknown = sorted(set(texts) - set(numbers))
    if unknown:
        raise UserError(f"{path}: the {part} labels hold '{unknown[0]}', which is not a class.")
    return np.array([numbers[text] for text in texts], dtype=np.int64)


def _check_alike(path: Path, parts: dict[str, ImageSet]) -> None:
    train = parts["train"].images
    for name, part in parts.items():
        if part.images.shape[1:] != train.shape[1:]:
            raise UserError(
                f"{path}: train images are {train.shape[1:]} (channels, height, width) but {name} "
                f"images are {part.images.shape[1:]}; they must be alike."
            )
        if part.images.dtype != train.dtype:
            raise UserError(
                f"{path}: train images are {train.dtype} but {name} images are "
                f"{part.images.dtype}; they must be alike."
            )
