"""Decoded images in the user's cache as memory-mapped arrays, so that a second start is fast.

An entry is a `.npy` file with a `.json` file beside it that is written last: an entry without its
`.json` does not count, so a process that is killed leaves nothing that could be mistaken for data.
While an entry is written its rows are in a `.partial` file, and a `.journal` beside it names the
blocks of rows that are on the disk, so that work that was interrupted goes on where it stopped.
The files can be read by their owner only, since they are copies of images that may be private.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.data.imageset import Array
from sfumato.io import json_lines, locks
from sfumato.io.atomic import write_whole

HEADER_BYTES = 128
SUBFOLDER = "decoded"
INDEX = ".index"
"""Ending of the contents of tar shards, which lie beside the images."""

_SUFFIXES = (".json", ".npy", ".partial", ".journal", INDEX)
_BETWEEN_SYNCS = 5.0
_SPARE_BYTES = 1 << 26
"""Room to leave on the disk for everything else."""

_CHUNK_BYTES = 1 << 24


def open_entry(folder: Path, key: str) -> tuple[Array, dict[str, Any]] | None:
    """The array and the description stored under a key, or None if there is no whole entry."""
    try:
        description = json_lines.parse((folder / SUBFOLDER / f"{key}.json").read_text("utf-8"))
        array = np.load(folder / SUBFOLDER / f"{key}.npy", mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    if not isinstance(description, dict) or list(array.shape) != description.get("shape"):
        return None
    return array, description


@contextmanager
def being_written(folder: Path, key: str) -> Iterator[Unfinished]:
    """An entry to write, by this process alone; another one that writes it is waited for.

    Raises:
        OSError: the cache cannot be written.
    """
    home = folder / SUBFOLDER
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not os.access(home, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    with ExitStack() as lock:
        try:
            lock.enter_context(locks.alone(home / key))
        except locks.InUse:
            print("Waiting for another process that decodes the same images.", file=sys.stderr)
            lock.enter_context(locks.alone(home / key, wait=True))
        yield Unfinished(home, key)


class Unfinished:
    """An entry whose rows are written in any order, block by block, perhaps by several processes.

    Attributes:
        path: the file that rows are written to, the first one at byte `HEADER_BYTES`.
    """

    def __init__(self, home: Path, key: str) -> None:
        """Name an entry; nothing is written yet."""
        self.path = home / f"{key}.partial"
        self._journal = home / f"{key}.journal"
        self._home, self._key = home, key
        self._unsynced: list[str] = []
        self._synced = time.monotonic()

    def earlier(self) -> dict[str, Any]:
        """The values given to `begin` by a process that was interrupted; none if there was none."""
        found = self._records()
        return found[0] if found else {}

    def begin(self, rows: int, shape: tuple[int, ...], about: dict[str, Any]) -> dict[int, Any]:
        """Make room for the rows, or go on with those that were written before.

        Args:
            rows: number of rows.
            shape: shape of one row.
            about: JSON values that earlier rows must have been written with; ``of`` names what is
                decoded, and other unfinished entries of that name are removed.

        Returns:
            The records of blocks that are on the disk, by their numbers.

        Raises:
            OSError: the cache cannot be written or has no room; nothing is left behind.
        """
        total = HEADER_BYTES + rows * int(np.prod(shape))
        first = {**about, "bytes": total}
        records = self._records()
        if records and records[0] == first:
            return {int(record["block"]): record["seen"] for record in records[1:]}
        self.discard()
        self._drop_others(about.get("of"), (".journal", ".partial"))
        if total + _SPARE_BYTES > shutil.disk_usage(self._home).free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with _private(self.path) as file:
            file.truncate(total)
        with _private(self._journal) as file:
            file.write(json.dumps(first).encode() + b"\n")
        return {}

    def record(self, block: int, seen: dict[str, Any]) -> None:
        """Note that the rows of a block are written; every few seconds such notes are kept.

        Rows are on the disk before their block is in the journal.
        """
        self._unsynced.append(json.dumps({"block": block, "seen": seen}))
        if time.monotonic() - self._synced >= _BETWEEN_SYNCS:
            self.keep()

    def keep(self) -> None:
        """Bring what is written to the disk, and note it in the journal."""
        if self._unsynced:
            _sync(self.path)
            with open(self._journal, "ab") as file:
                file.write("".join(f"{line}\n" for line in self._unsynced).encode())
            self._unsynced.clear()
        self._synced = time.monotonic()

    def finish(self, kept: Array, shape: tuple[int, ...], description: dict[str, Any]) -> Array:
        """Turn the rows into an entry and return them as a memory map.

        Args:
            kept: one flag per row; the other rows are left out.
            shape: shape of one row.
            description: JSON values to store with the array.
        """
        count = int(kept.sum())
        if count < len(kept):
            self._journal.unlink()  # It is wrong as soon as rows move.
            rows = np.memmap(self.path, np.uint8, "r+", HEADER_BYTES, (len(kept), *shape))
            moved_together(rows, kept)
            rows.flush()
            del rows
        with open(self.path, "r+b") as file:
            file.write(_npy_header((count, *shape)))
            file.truncate(HEADER_BYTES + count * int(np.prod(shape)))
        _sync(self.path)
        place = self._home / f"{self._key}.npy"
        os.replace(self.path, place)
        self._journal.unlink(missing_ok=True)
        text = json.dumps({**description, "shape": [count, *shape]})
        write_whole(place.with_suffix(".json"), text.encode(), mode=0o600)
        self._drop_others(description.get("of"), (".json", ".npy"))
        array: Array = np.load(place, mmap_mode="r", allow_pickle=False)
        return array

    def discard(self) -> None:
        """Remove what was written."""
        for path in (self._journal, self.path):
            path.unlink(missing_ok=True)
        self._unsynced.clear()

    def _records(self) -> list[dict[str, Any]]:
        """The lines of the journal, the first of which is about all; none if rows are missing."""
        try:
            records = [json_lines.parse(line) for _, line in json_lines.read(self._journal)]
            whole = bool(records) and self.path.stat().st_size == records[0]["bytes"]
        except (OSError, ValueError, LookupError, TypeError):
            return []
        return records if whole else []

    def _drop_others(self, kind: str | None, suffixes: tuple[str, str]) -> None:
        """Remove entries of the same data with the same options that are of another time."""
        about, rows = suffixes
        for path in self._home.glob(f"*{about}") if kind else ():
            if path.stem == self._key:
                continue
            with suppress(OSError, ValueError, IndexError, locks.InUse):
                if json_lines.parse(json_lines.read(path)[0][1]).get("of") == kind:
                    with locks.alone(path.with_suffix("")):
                        path.unlink()
                        path.with_suffix(rows).unlink()


def moved_together(rows: Array, kept: Array) -> None:
    """Move the rows that are kept to the beginning, in their order and in little memory."""
    step = max(1, _CHUNK_BYTES // max(1, rows[:1].nbytes))
    count = 0
    for start in range(0, len(rows), step):
        block = rows[start : start + step][kept[start : start + step]]
        rows[count : count + len(block)] = block
        count += len(block)


def forget(folder: Path) -> int:
    """Remove every entry and return the bytes that they took."""
    home, freed = folder / SUBFOLDER, 0
    for path in sorted(home.iterdir()) if home.is_dir() else ():
        if path.suffix in _SUFFIXES:
            status = path.stat()  # A partial file has holes, and Windows does not count blocks.
            freed += min(status.st_size, 512 * getattr(status, "st_blocks", status.st_size))
            path.unlink()
    return freed


def _private(path: Path) -> Any:
    """A new file that its owner alone can read, open for writing."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDWR)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _npy_header(shape: tuple[int, ...]) -> bytes:
    """A version 1.0 `.npy` header of one fixed length, so it can be written after the rows."""
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}"
    length = HEADER_BYTES - 10
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", length) + f"{text:<{length - 1}}\n".encode()
