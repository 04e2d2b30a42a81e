"""Decoding of many image files to one cached array, by a thread pool."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import PIL

from sfumato.data import locate
from sfumato.data.cache import open_entry, store_entry
from sfumato.data.decode import Header, Read, UnreadableError, depth_note, read, read_header
from sfumato.data.imageset import Array
from sfumato.data.progress_bar import progress
from sfumato.errors import UserError

LARGEST_KEPT_SIDE = 64
"""Images that all have one size keep it if no side is longer than this."""

MIXED_SIZE = 64
"""Images of several sizes, or larger ones, become squares of this side unless a size is given."""

_FORMAT = 2
_WINDOW = 256
_MOST_NAMED = 10


@dataclass(frozen=True, eq=False)
class Decoded:
    """The images that could be read.

    Attributes:
        images: ``(N, C, H, W)`` uint8 in the order of the files.
        kept: one flag per file, true if it is among the images.
        notes: decisions, in sentences for the user.
    """

    images: Array
    kept: Array
    notes: tuple[str, ...]


@dataclass
class _Seen:
    """Observations made while files were read.

    Attributes:
        sizes: heights and widths of the images in their files.
        highest: the largest value of 16-bit images.
        unreadable: reasons why files could not be read, by their positions.
    """

    sizes: set[tuple[int, int]] = field(default_factory=set)
    highest: int = 0
    unreadable: dict[int, UnreadableError] = field(default_factory=dict)


def decode_files(
    root: Path,
    files: Sequence[str],
    *,
    size: tuple[int, int] | None,
    channels: int | None,
    bits: int,
    skip_unreadable: bool,
    cache: bool = True,
) -> Decoded:
    """Decode files below ``root``; size and channels are chosen from their headers if not given.

    Size: the common size of all images if they have one and no side is over 64, otherwise 64×64.
    Channels: 1 if every image is grey, otherwise 3. Both choices look at all the images; where even
    that should not depend on private data, give them.
    """
    folder = locate.cache_folder()
    key = _key(root, files, size, channels, bits, skip_unreadable) if cache else ""
    entry = open_entry(folder, key) if cache else None
    if entry is not None:
        return _decoded(entry[0], len(files), entry[1])

    damaged: dict[int, UnreadableError] = {}
    own_size = size is None
    if size is None or channels is None:
        headers = _read_headers(root, files, damaged)
        if not headers:
            _refuse(root, files, damaged, skip_unreadable)
        size = size or _choose_size(headers)
        channels = channels or (1 if all(header.grey for header in headers) else 3)
    shape = (channels, *size)
    work = partial(_try_read, size=size, channels=channels, bits=bits)
    description: dict[str, Any] = {"of": _kind(root, size, channels, bits, skip_unreadable)}

    def rows() -> Iterator[Array]:
        seen = _Seen(unreadable=dict(damaged))
        yield from _decode_rows(root, files, work, seen)
        if len(seen.unreadable) == len(files) or not skip_unreadable:
            _refuse(root, files, seen.unreadable, skip_unreadable)
        notes = (_size_note(seen.sizes, size, own=own_size), depth_note(seen.highest, bits))
        description["notes"] = [note for note in notes if note]
        description["skipped"] = sorted(seen.unreadable)

    trouble = []
    if cache:
        try:
            images = store_entry(folder, key, rows(), shape, description)
            return _decoded(images, len(files), description)
        except OSError as error:
            trouble.append(
                f"The decoded images could not be kept in the cache {folder} "
                f"({error.strerror or error}); they are decoded again at every start."
            )
    stacked = np.empty((len(files) - len(damaged), *shape), dtype=np.uint8)
    count = 0
    for count, row in enumerate(rows(), start=1):
        stacked[count - 1] = row
    description["notes"] += trouble
    return _decoded(stacked[:count], len(files), description)


def _decoded(images: Array, count: int, description: dict[str, Any]) -> Decoded:
    kept = np.ones(count, dtype=bool)
    kept[description["skipped"]] = False
    return Decoded(images, kept, tuple(description["notes"]))


def _kind(root: Path, *options: object) -> str:
    """The part of a cache key that does not depend on the state of the files."""
    text = repr((str(root.resolve()), *options))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:40]


def _key(
    root: Path,
    files: Sequence[str],
    size: tuple[int, int] | None,
    channels: int | None,
    bits: int,
    skip_unreadable: bool,
) -> str:
    digest = hashlib.sha256()
    options = (_FORMAT, PIL.__version__, str(root.resolve()), size, channels, bits, skip_unreadable)
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
    root: Path, files: Sequence[str], unreadable: dict[int, UnreadableError]
) -> list[Header]:
    headers = []
    for position, result in _parallel(_try_header, root, files, "reading image sizes"):
        if isinstance(result, Header):
            headers.append(result)
        else:
            unreadable[position] = result
    return headers


def _decode_rows(root: Path, files: Sequence[str], work: Any, seen: _Seen) -> Iterator[Array]:
    positions = [position for position in range(len(files)) if position not in seen.unreadable]
    chosen = [files[position] for position in positions]
    for index, result in _parallel(work, root, chosen, "decoding images"):
        if isinstance(result, Read):
            seen.sizes.add(result.size)
            seen.highest = max(seen.highest, result.highest or 0)
            yield result.pixels
        else:
            seen.unreadable[positions[index]] = result


def _try_header(path: Path) -> Header | UnreadableError:
    try:
        return read_header(path)
    except UnreadableError as error:
        return error


def _try_read(
    path: Path, *, size: tuple[int, int], channels: int, bits: int
) -> Read | UnreadableError:
    try:
        return read(path, size=size, channels=channels, bits=bits)
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


def _refuse(
    root: Path,
    files: Sequence[str],
    unreadable: dict[int, UnreadableError],
    skip_unreadable: bool,
) -> None:
    """Raise a `UserError` that names the unreadable files, or says that none can be read."""
    if skip_unreadable:
        raise UserError(f"None of the {len(files)} images in {root} can be read.")
    named = sorted(f"{root / files[at]} ({error})" for at, error in unreadable.items())
    advice = "or give --skip-unreadable to go on without such images."
    if len(named) == 1:
        (at,) = unreadable
        raise UserError(
            f"The image {root / files[at]} cannot be read ({unreadable[at]}): repair or remove it, "
            f"{advice}"
        )
    if named:
        more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
        raise UserError(
            f"{len(named)} of {len(files)} images cannot be read: "
            f"{', '.join(named[:_MOST_NAMED])}{more}. Repair or remove them, {advice}"
        )


def _choose_size(headers: list[Header]) -> tuple[int, int]:
    sizes = {(header.height, header.width) for header in headers}
    common = next(iter(sizes))
    if len(sizes) == 1 and max(common) <= LARGEST_KEPT_SIDE:
        return common
    return MIXED_SIZE, MIXED_SIZE


def _size_note(sizes: set[tuple[int, int]], size: tuple[int, int], *, own: bool) -> str:
    """A sentence about the old and new sizes of the images; ``own`` if no size was given."""
    height, width = next(iter(sizes))
    if sizes == {size}:
        return f"All images are {height}×{width} and keep that size."
    if len(sizes) == 1:
        found = f"All images are {height}×{width}"
    else:
        low, high = min(map(min, sizes)), max(map(max, sizes))
        found = f"The images have {len(sizes)} sizes, with sides from {low} to {high}"
    other = " Give --size (or --set data.size=) for another." if own else ""
    return f"{found}; they are scaled to {size[0]}×{size[1]}.{other}"
