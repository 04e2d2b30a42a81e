"""Arrays for copies of images: in memory, or in a file without a name where memory may not do."""

from __future__ import annotations

import tempfile

import numpy as np
import numpy.typing as npt

from sfumato.data import locate

_LARGE_BYTES = 1 << 28
"""Bytes up to which copies of a memory map are held in memory."""


def empty_like(source: npt.NDArray[np.generic], shape: tuple[int, ...]) -> npt.NDArray[np.generic]:
    """An array to fill with images made of others, of their type.

    If these are in a memory map, and the new ones take over 256 MiB, it is a memory map as well: of
    a file in the user's cache that nobody else can open and that vanishes with the process.
    """
    size = int(np.prod(shape)) * source.itemsize
    if isinstance(source, np.memmap) and size > _LARGE_BYTES:
        with tempfile.TemporaryFile(dir=locate.cache_folder()) as file:
            file.truncate(size)
            return np.memmap(file, source.dtype, "r+", shape=shape)
    return np.empty(shape, dtype=source.dtype)
