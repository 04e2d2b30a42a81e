"""Decoded images in the user's cache as memory-mapped arrays, so that a second start is fast.

An entry is a `.npy` file with a `.json` file beside it that is written last: an entry without its
`.json` does not count, so a process that is killed leaves nothing that could be mistaken for data.
The files can be read by their owner only, since they are copies of images that may be private.
"""

from __future__ import annotations

import json
import os
import struct
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.data.imageset import Array
from sfumato.io import json_lines

_HEADER_BYTES = 128
_SUBFOLDER = "decoded"


def open_entry(folder: Path, key: str) -> tuple[Array, dict[str, Any]] | None:
    """The array and the description stored under a key, or None if there is no whole entry."""
    try:
        description = json_lines.parse((folder / _SUBFOLDER / f"{key}.json").read_text("utf-8"))
        array = np.load(folder / _SUBFOLDER / f"{key}.npy", mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    if not isinstance(description, dict) or list(array.shape) != description.get("shape"):
        return None
    return array, description


def store_entry(
    folder: Path,
    key: str,
    rows: Iterator[Array],
    shape: tuple[int, ...],
    description: dict[str, Any],
) -> Array:
    """Write rows of bytes to the cache one after another and return them as a memory map.

    Args:
        folder: the cache.
        key: the entry's name.
        rows: arrays of ``shape``.
        shape: shape of one row.
        description: JSON values to store with the array; it may be filled while rows are written.

    Raises:
        OSError: the cache cannot be written, or the disk is full; nothing is left behind.
    """
    home = folder / _SUBFOLDER
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    count = 0
    handle, partial = tempfile.mkstemp(suffix=".partial", dir=home)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(bytes(_HEADER_BYTES))
            for row in rows:
                file.write(np.ascontiguousarray(row, dtype=np.uint8).data)
                count += 1
            file.seek(0)
            file.write(_npy_header((count, *shape)))
        os.replace(partial, home / f"{key}.npy")
        handle, partial = tempfile.mkstemp(suffix=".partial", dir=home)
        with os.fdopen(handle, "w", encoding="utf-8") as text:
            json.dump({**description, "shape": [count, *shape]}, text)
        os.replace(partial, home / f"{key}.json")
        _drop_older(home, key, description.get("of"))
    finally:
        with suppress(FileNotFoundError):
            os.unlink(partial)
    array: Array = np.load(home / f"{key}.npy", mmap_mode="r", allow_pickle=False)
    return array


def _drop_older(home: Path, key: str, kind: str | None) -> None:
    """Remove entries that were decoded from the same folder with the same options before."""
    for path in home.glob("*.json") if kind else ():
        with suppress(OSError, ValueError):
            if path.stem != key and json_lines.parse(path.read_text("utf-8")).get("of") == kind:
                path.unlink()
                path.with_suffix(".npy").unlink()


def forget(folder: Path) -> int:
    """Remove every entry and return the bytes that they took."""
    home, freed = folder / _SUBFOLDER, 0
    for path in sorted(home.iterdir()) if home.is_dir() else ():
        if path.suffix in (".json", ".npy", ".partial"):
            freed += path.stat().st_size
            path.unlink()
    return freed


def _npy_header(shape: tuple[int, ...]) -> bytes:
    """A version 1.0 `.npy` header of one fixed length, so it can be written after the rows."""
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}"
    length = _HEADER_BYTES - 10
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", length) + f"{text:<{length - 1}}\n".encode()
