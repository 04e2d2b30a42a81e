"""The IDX files of MNIST and its relatives (http://yann.lecun.com/exdb/mnist), plain or gzipped."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np

from sfumato.data.imageset import Array, ImageSet
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
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read ({error}): fetch the file again.") from error
    header = 4 + 4 * dimensions
    if len(raw) < header or raw[:4] != bytes((0, 0, _UNSIGNED_BYTE, dimensions)):
        raise UserError(
            f"{path} is not an IDX file of bytes in {dimensions} dimensions: fetch the file again."
        )
    shape = struct.unpack(f">{dimensions}I", raw[4:header])
    expected = int(np.prod(shape, dtype=object))
    if len(raw) - header != expected:
        raise UserError(
            f"{path} is damaged: it should hold {expected} bytes after its header and holds "
            f"{len(raw) - header}. Fetch the file again."
        )
    return np.frombuffer(raw, dtype=np.uint8, offset=header).reshape(shape).copy()
