"""CIFAR-10 and CIFAR-100 as published for Python: pickled batches, in a folder or a tar archive.

The batches are pickles, and a pickle can run any code. The reader here resolves the few names that
a pickled NumPy array needs to substitutes of its own and refuses every other name, so nothing
outside this file is ever called with what a batch contains.
"""

from __future__ import annotations

import io
import os
import pickle
import re
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.data.imageset import Array, ImageSet
from sfumato.data.limits import check_unpacked
from sfumato.errors import UserError

_SIDE = 32
_FILES = {
    "cifar10": (tuple(f"data_batch_{k}" for k in range(1, 6)), "test_batch", "batches.meta"),
    "cifar100": (("train",), "test", "meta"),
}
_LABELS = {"cifar10": "labels", "cifar100": "fine_labels"}
_NAMES = {"cifar10": "label_names", "cifar100": "fine_label_names"}
_FOLDERS = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}


def read_cifar(place: Path, name: str) -> tuple[ImageSet, ImageSet, tuple[str, ...]]:
    """Training set, test set and class names from the batches' folder or the .tar.gz archive."""
    train_files, test_file, meta_file = _FILES[name]
    wanted = (*train_files, test_file, meta_file)
    raw = (
        _from_folder(place, wanted) if place.is_dir() else _from_tar(place, _FOLDERS[name], wanted)
    )
    meta = unpickle_plain(raw[meta_file], place / meta_file)
    classes = tuple(_text(item) for item in _get(meta, _NAMES[name], place / meta_file))
    train = [_batch(raw[file], place / file, name, len(classes)) for file in train_files]
    test = _batch(raw[test_file], place / test_file, name, len(classes))
    images = np.concatenate([part.images for part in train])
    labels = np.concatenate([part.labels for part in train])
    return ImageSet(images, labels), test, classes


def _from_folder(folder: Path, files: tuple[str, ...]) -> dict[str, bytes]:
    missing = [file for file in files if not os.path.isfile(folder / file)]
    if missing:
        raise UserError(
            f"The data set in {folder} is incomplete: {', '.join(missing)} missing. "
            "Unpack the original archive again."
        )
    try:
        return {file: (folder / file).read_bytes() for file in files}
    except OSError as error:
        raise UserError(f"{error.filename} cannot be read ({error.strerror}).") from error


def _from_tar(archive: Path, folder: str, files: tuple[str, ...]) -> dict[str, bytes]:
    wanted = {f"{folder}/{file}": file for file in files}
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                content = tar.extractfile(member) if member.name in wanted else None
                if content is not None:
                    check_unpacked(archive, member.size)
                    found[wanted[member.name]] = content.read()
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise UserError(f"{archive} cannot be read ({error}): fetch the archive again.") from error
    missing = sorted(set(files) - set(found))
    if missing:
        raise UserError(
            f"{archive} does not hold {folder}/{missing[0]}: it is not the Python version of the "
            "data set, or it is damaged. Fetch it again."
        )
    return found


def _batch(raw: bytes, path: Path, name: str, classes: int) -> ImageSet:
    content = unpickle_plain(raw, path)
    data = _get(content, "data", path)
    labels = np.asarray(_get(content, _LABELS[name], path))
    if (
        not isinstance(data, np.ndarray)
        or data.dtype != np.uint8
        or data.shape[1:] != (3 * _SIDE * _SIDE,)
        or labels.shape != data.shape[:1]
        or labels.dtype.kind not in "ui"
    ):
        raise UserError(f"{path} does not hold 32×32 images with one label each: fetch it again.")
    if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        raise UserError(
            f"{path} holds labels from {labels.min()} to {labels.max()}, but there are {classes} "
            "classes: fetch it again."
        )
    images = np.ascontiguousarray(data).reshape(-1, 3, _SIDE, _SIDE)
    return ImageSet(images, labels.astype(np.int64))


def _get(content: dict[str, Any], key: str, path: Path) -> Any:
    if key not in content:
        raise UserError(f"{path} has no '{key}': it is not the file it should be; fetch it again.")
    return content[key]


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def unpickle_plain(raw: bytes, path: Path) -> dict[str, Any]:
    """A pickled dictionary of arrays, lists, numbers and strings; anything else is refused.

    Written by Python 2 or 3, with old or new NumPy; keys come back as `str`.
    """
    try:
        content = _PlainUnpickler(io.BytesIO(raw), encoding="bytes").load()
    except _RefusedError as error:
        raise UserError(
            f"{path} refers to {error}, which is not plain data: it is not an original CIFAR file "
            "and was not read."
        ) from error
    except Exception as error:
        raise UserError(f"{path} is damaged ({error}): fetch the file again.") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} does not hold a dictionary: fetch the file again.")
    return {
        _text(key): value.values if isinstance(value, _ArrayStandIn) else value
        for key, value in content.items()
    }


class _RefusedError(Exception):
    """A name in a pickle that is not needed for plain arrays."""


class _NdarrayStandIn:
    """Substitute for `numpy.ndarray`, which a pickled array mentions but need not construct."""


class _DtypeStandIn:
    """Substitute for `numpy.dtype`; integers only."""

    def __init__(self, code: Any, *_: Any) -> None:
        self.code = _text(code)
        if not re.fullmatch(r"[<>=|]?[ui][1248]", self.code):
            raise ValueError(f"arrays of type {self.code!r} are not accepted")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order = _text(state[1])
        if order in ("<", ">"):
            self.code = order + self.code.lstrip("<>=|")

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.code)


class _ArrayStandIn:
    """Substitute for an array under reconstruction, which is built from its bytes."""

    values: Array

    def fill(self, raw: Any, dtype: Any, shape: Any, *, fortran: bool) -> None:
        if not isinstance(dtype, _DtypeStandIn):
            raise ValueError("an array without a type")
        content = raw.encode("latin1") if isinstance(raw, str) else bytes(raw)
        flat = np.frombuffer(content, dtype=dtype.dtype)
        self.values = flat.reshape(tuple(shape), order="F" if fortran else "C").copy(order="C")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        shape, dtype, fortran, raw = state[-4:]
        self.fill(raw, dtype, shape, fortran=bool(fortran))


def _reconstruct(*_: Any) -> _ArrayStandIn:
    return _ArrayStandIn()


def _frombuffer(raw: Any, dtype: Any, shape: Any, order: Any, *_: Any) -> _ArrayStandIn:
    array = _ArrayStandIn()
    array.fill(raw, dtype, shape, fortran=_text(order) == "F")
    return array


def _encode(text: str, encoding: Any = "latin1") -> bytes:
    if _text(encoding) != "latin1":
        raise ValueError(f"the encoding {encoding!r} is not accepted")
    return text.encode("latin1")


class _PlainUnpickler(pickle.Unpickler):
    _ADMITTED: dict[tuple[str, str], Callable[..., Any]] = {  # noqa: RUF012
        ("numpy", "ndarray"): _NdarrayStandIn,
        ("numpy", "dtype"): _DtypeStandIn,
        ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy.core.numeric", "_frombuffer"): _frombuffer,
        ("numpy._core.numeric", "_frombuffer"): _frombuffer,
        ("_codecs", "encode"): _encode,
    }

    def find_class(self, module: str, name: str) -> Any:
        stand_in = self._ADMITTED.get((module, name))
        if stand_in is None:
            raise _RefusedError(f"{module}.{name}")
        return stand_in
