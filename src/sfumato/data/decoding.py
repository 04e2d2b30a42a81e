"""Many image files to one array: sizes agreed, decoded by a thread pool, kept in the cache."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import PIL

from sfumato.data import locate
from sfumato.data.cache import open_entry, store_entry
from sfumato.data.decode import Header, UnreadableError, decode, read_header
from sfumato.data.imageset import Array
from sfumato.data.progress import progress
from sfumato.errors import UserError

LARGEST_KEPT_SIDE = 256
"""Images that all have one size keep it if no side is longer than this."""

MIXED_SIZE = 64
"""Images of several sizes, or larger ones, become squares of this side unless a size is given."""

_FORMAT = 1
_WINDOW = 256


@dataclass(frozen=True, eq=False)
class Decoded:
    """The images that could be read.

    Attributes:
        images: ``(N, C, H, W)`` uint8 in the order of the files.
        kept: for each file whether it is among the images.
        notes: what was decided, for the user.
    """

    images: Array
    kept: Array
    notes: tuple[str, ...]


def decode_files(
    root: Path,
    files: Sequence[str],
    *,
    size: tuple[int, int] | None,
    channels: int | None,
    skip_unreadable: bool,
    cache: bool = True,
) -> Decoded:
    """Decode files below ``root``; size and channels are chosen from their headers if not given.

    Size: the common size of all images if they have one and no side is over 256, otherwise 64×64.
    Channels: 1 if every image is grey, otherwise 3. Both choices look at all the images; where even
    that should not depend on private data, give them.
    """
    folder = locate.cache_folder()
    key = _key(root, files, size, channels, skip_unreadable) if cache else ""
    entry = open_entry(folder, key) if cache else None
    if entry is not None:
        return _decoded(entry[0], len(files), entry[1])

    kept = np.ones(len(files), dtype=bool)
    description: dict[str, Any] = {"notes": []}
    if size is None or channels is None:
        headers = _read_headers(root, files, kept, skip_unreadable)
        size = size or _choose_size(headers, description["notes"])
        channels = channels or (1 if all(header.grey for header in headers) else 3)
    shape = (channels, *size)

    def rows() -> Iterator[Array]:
        yield from _decode_rows(root, files, kept, size, channels, skip_unreadable)
        if not kept.any():
            raise UserError(f"None of the {len(files)} images in {root} can be read.")
        description["skipped"] = np.flatnonzero(~kept).tolist()

    start = kept.copy()
    if cache:
        try:
            images = store_entry(folder, key, rows(), shape, description)
            return _decoded(images, len(files), description)
        except OSError as error:
            kept[:] = start
            description["notes"].append(
                f"The decoded images could not be kept in the cache {folder} "
                f"({error.strerror or error}); they are decoded again at every start."
            )
    stacked = np.empty((int(kept.sum()), *shape), dtype=np.uint8)
    count = 0
    for count, row in enumerate(rows(), start=1):
        stacked[count - 1] = row
    return _decoded(stacked[:count], len(files), description)


def _decoded(images: Array, count: int, description: dict[str, Any]) -> Decoded:
    kept = np.ones(count, dtype=bool)
    kept[description["skipped"]] = False
    return Decoded(images, kept, tuple(description["notes"]))


def _key(
    root: Path,
    files: Sequence[str],
    size: tuple[int, int] | None,
    channels: int | None,
    skip_unreadable: bool,
) -> str:
    digest = hashlib.sha256()
    options = (_FORMAT, PIL.__version__, str(root.resolve()), size, channels, skip_unreadable)
    digest.update(repr(options).encode("utf-8", "surrogateescape"))
    for file in files:
        try:
            status = os.stat(root / file)
            state = (file, status.st_size, status.st_mtime_ns)
        except OSError:
            state = (file, -1, -1)
        digest.update(repr(state).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:40]


def _read_headers(
    root: Path, files: Sequence[str], kept: Array, skip_unreadable: bool
) -> list[Header]:
    headers = []
    for position, result in _parallel(_try_header, root, files, "reading image sizes"):
        if isinstance(result, Header):
            headers.append(result)
        else:
            _refuse_or_skip(root / files[position], result, skip_unreadable)
            kept[position] = False
    if not headers:
        raise UserError(f"None of the {len(files)} images in {root} can be read.")
    return headers


def _decode_rows(
    root: Path,
    files: Sequence[str],
    kept: Array,
    size: tuple[int, int],
    channels: int,
    skip_unreadable: bool,
) -> Iterator[Array]:
    positions = np.flatnonzero(kept).tolist()
    work = partial(_try_decode, size=size, channels=channels)
    chosen = [files[position] for position in positions]
    for index, result in _parallel(work, root, chosen, "decoding images"):
        if isinstance(result, np.ndarray):
            yield result
        else:
            _refuse_or_skip(root / chosen[index], result, skip_unreadable)
            kept[positions[index]] = False


def _try_header(path: Path) -> Header | UnreadableError:
    try:
        return read_header(path)
    except UnreadableError as error:
        return error


def _try_decode(path: Path, *, size: tuple[int, int], channels: int) -> Array | UnreadableError:
    try:
        return decode(path, size=size, channels=channels)
    except UnreadableError as error:
        return error


def _parallel(work: Any, root: Path, files: Sequence[str], label: str) -> Iterator[tuple[int, Any]]:
    """Results in the order of the files, with no more than a window of them held at a time."""
    workers = min(16, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers) as pool, progress(label, len(files)) as advance:
        for start in range(0, len(files), _WINDOW):
            window = [root / file for file in files[start : start + _WINDOW]]
            yield from enumerate(pool.map(work, window), start)
            advance(len(window))


def _refuse_or_skip(path: Path, error: Any, skip_unreadable: bool) -> None:
    if not skip_unreadable:
        raise UserError(
            f"The image {path} cannot be read ({error}): repair or remove it, or give "
            "--skip-unreadable to go on without such images."
        )


def _choose_size(headers: list[Header], notes: list[str]) -> tuple[int, int]:
    sizes = {(header.height, header.width) for header in headers}
    if len(sizes) == 1:
        height, width = next(iter(sizes))
        if max(height, width) <= LARGEST_KEPT_SIDE:
            notes.append(f"All images are {height}×{width} and keep that size.")
            return height, width
        found = f"All images are {height}×{width}"
    else:
        shorter = [min(size) for size in sizes]
        longer = [max(size) for size in sizes]
        found = (
            f"The images have {len(sizes)} sizes, with sides from {min(shorter)} to {max(longer)}"
        )
    notes.append(f"{found}; they are scaled to {MIXED_SIZE}×{MIXED_SIZE}. Give --size for another.")
    return MIXED_SIZE, MIXED_SIZE
