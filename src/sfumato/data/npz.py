"""Arrays of images in a NumPy `.npz` file.

Accepted names: ``x_train, y_train`` with optional ``x_val, y_val`` and ``x_test, y_test``; the same
as ``train_images, train_labels, val_images, ...`` (as in MedMNIST); or ``images, labels``
(``x, y``) alone. ``classes`` may hold the class names, and ``units_train`` (``train_units``,
``units``; likewise for other parts) the unit of privacy of each image, such as a patient's number.
"""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.data.arrays import Part, assembled, checked_images, text
from sfumato.data.imageset import Array, Dataset
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
_UNITS = {
    labels: labels.replace("y_", "units_").replace("labels", "units")
    for pairs in _NAMES.values()
    for _, labels in pairs
} | {"labels": "units", "y": "units"}
"""Names of the arrays of units beside arrays of labels."""


def read_npz(
    path: Path, *, bits: int, test_fraction: float, split_seed: int, split_rule: Rule
) -> Dataset:
    """Read an `.npz` file; without a test part, set a seeded one aside.

    Only the lower ``bits`` bits of 16-bit arrays count.
    """
    arrays = _load(path)
    pairs = {part: _pair(path, arrays, names) for part, names in _NAMES.items()}
    if pairs["train"] is None:
        pairs["train"] = _pair(path, arrays, _WHOLE)
    if pairs["train"] is None:
        raise UserError(
            f"{path} holds {', '.join(sorted(arrays)) or 'nothing'}: it needs x_train and y_train "
            "(and best x_test and y_test), or images and labels."
        )
    names = _class_names(path, arrays.get("classes"))
    parts = {
        part: Part(arrays[pair[0]], arrays[pair[1]], *pair, arrays.get(_UNITS[pair[1]]))
        for part, pair in pairs.items()
        if pair
    }
    return assembled(
        parts, where=str(path), name=path.stem, classes=names, bits=bits,
        test_fraction=test_fraction, split_seed=split_seed, split_rule=split_rule,
    )  # fmt: skip


def image_arrays(path: Path, *, bits: int) -> dict[str, Array]:
    """The images ``(N, C, H, W)`` of an `.npz` file by the names of their arrays, in its order.

    Labels are not needed. Only the lower ``bits`` bits of 16-bit arrays count.

    Raises:
        UserError: If the file cannot be read, or holds no images under a name that is known.
    """
    pairs = [pair for group in (*_NAMES.values(), _WHOLE) for pair in group]
    arrays = _load(path)
    found = {name: arrays[name] for name, _ in pairs if name in arrays}
    if not found:
        raise UserError(
            f"{path} holds {', '.join(sorted(arrays)) or 'nothing'}: it needs images, or x_train, "
            "x_val or x_test."
        )
    return {name: checked_images(f"{path}: {name}", array, bits) for name, array in found.items()}


def has_units(path: Path) -> bool:
    """Tell whether an `.npz` file has arrays of units; nothing in it is unpacked."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.removesuffix(".npy") for name in archive.namelist()}
    except (OSError, zipfile.BadZipFile):
        return False
    return not names.isdisjoint(_UNITS.values())


def unit_names(path: Path) -> dict[str, list[str]]:
    """The units of the images of an `.npz` file, as text, by the names of the images' arrays.

    Arrays of images without one of units are left out.

    Raises:
        UserError: If the file cannot be read, or units are no list of numbers or names.
    """
    arrays = _load(path)
    found: dict[str, list[str]] = {}
    for images, labels in (pair for group in (*_NAMES.values(), _WHOLE) for pair in group):
        units = arrays.get(_UNITS[labels])
        if images not in arrays or units is None or images in found:
            continue
        if units.shape != (len(arrays[images]),) or units.dtype.kind not in "iuUS":
            raise UserError(
                f"{path}: {_UNITS[labels]} must be one number or name for each of {images}."
            )
        found[images] = [text(item) for item in units.tolist()]
    return found


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


def _class_names(path: Path, array: Array | None) -> tuple[str, ...] | None:
    if array is None:
        return None
    if array.ndim != 1 or array.dtype.kind not in "US":
        raise UserError(f"{path}: classes must be a one-dimensional array of strings.")
    names = tuple(text(item) for item in array.tolist())
    if len(set(names)) < len(names):
        raise UserError(f"{path}: classes holds a name twice.")
    return names
