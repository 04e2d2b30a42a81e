"""The IDX files of MNIST and its relatives (http://yann.lecun.com/exdb/mnist), plain or gzipped."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from sfumato.data.imageset import Array, ImageSet
from sfumato.data.limits import check_unpacked
from sfumato.errors import UserError

_UNSIGNED_BYTE = 0x08


def read_idx_folder(folder: Path, *, classes: int) -> tuple[ImageSet, ImageSet]:
    """The training and the test set of a folder with the four files."""
    return _read_part(folder, "train", classes), _read_part(folder, "t10k", classes)


def _read_part(folder: Path, prefix: str, classes: int) -> ImageSet:
    image_file = _existing(folder, f"{prefix}-images-idx3-ubyte")
    label_file = _existing(folder, f"{prefix}-labels-idx1-ubyte")
    images, labels = read_idx(image_file, dimensions=3), read_idx(label_file, dimensions=1)
    if len(images) != len(labels):
        raise UserError(
            f"{image_file} holds {len(images)} images but {label_file} holds {len(labels)} labels: "
            "the files do not belong together; fetch them again."
        )
    if not len(labels):
        raise UserError(f"{image_file} holds no images: fetch the file again.")
    if labels.max() >= classes:
        raise UserError(
            f"{label_file} holds the label {labels.max()}, but labels go from 0 to {classes - 1}."
        )
    return ImageSet(images[:, None], labels.astype(np.int64))


def _existing(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise UserError(
        f"The data set in {folder} is incomplete: {name} (or {name}.gz) is missing. "
        "Put it there or run `sfumato data get` again."
    )


def read_idx(path: Path, *, dimensions: int) -> Array:
    """One IDX file of unsigned bytes as an array."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            header = file.read(4 + 4 * dimensions)
            kind = bytes((0, 0, _UNSIGNED_BYTE, dimensions))
            if len(header) < 4 + 4 * dimensions or header[:4] != kind:
                raise UserError(
                    f"{path} is not an IDX file of bytes in {dimensions} dimensions: fetch the "
                    "file again."
                )
            shape = struct.unpack(f">{dimensions}I", header[4:])
            expected = math.prod(shape)
            check_unpacked(path, expected)
            raw = file.read(expected)
            more = bool(file.read(1))
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read ({error}): fetch the file again.") from error
    if len(raw) != expected or more:
        found = "more" if more else len(raw)
        raise UserError(
            f"{path} is damaged: it should hold {expected} bytes after its header and holds "
            f"{found}. Fetch the file again."
        )
    return np.frombuffer(raw, dtype=np.uint8).reshape(shape).copy()
