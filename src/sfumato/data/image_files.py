"""The encoded images of a data set, where they lie: in files of a folder, or in tar shards.

Both can say what an image is called, tell by a digest whether anything has changed, and cut the
work of decoding into blocks that a worker reads from one end to the other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from sfumato.data.imageset import Array
from sfumato.data.packed_names import PackedNames
from sfumato.data.tar_members import shard_open

BLOCK = 256
"""Images of a block: enough to hide the cost of handing it to a worker, few enough for a bar."""


class Frame(NamedTuple):
    """One image of a DICOM file."""

    path: Path
    number: int


class Span(NamedTuple):
    """One image in a tar shard: its first byte there, and its length."""

    path: Path
    first: int
    length: int

    def content(self) -> BytesIO:
        """The bytes of the image.

        Raises:
            UserError: The shard cannot be read.
        """
        with shard_open(self.path) as shard:
            shard.seek(self.first)
            return BytesIO(shard.read(self.length))


class Block(NamedTuple):
    """Images that one worker reads one after another.

    Attributes:
        path: the folder that ``files`` are below, or the shard that holds the images.
        files: paths below the folder; empty for a shard.
        spans: the first byte of each image in the shard, and its length; empty for a folder.
        rows: the row of the decoded array that each image is written to.
        frames: number of the frame in each of ``files``, for DICOM; empty for others.
    """

    path: str
    files: list[str]
    spans: list[list[int]]
    rows: list[int]
    frames: Sequence[int] = ()

    def contents(self) -> Iterator[Path | BytesIO | Frame]:
        """The images of the block, as Pillow opens them, or frames."""
        for file, number in zip_longest(self.files, self.frames):
            path = Path(self.path, file)
            yield path if number is None else Frame(path, number)
        if self.spans:
            with shard_open(Path(self.path)) as shard:
                for first, length in self.spans:
                    shard.seek(first)
                    yield BytesIO(shard.read(length))


class ImageFiles(Protocol):
    """The encoded images of a data set, in a fixed order."""

    def __len__(self) -> int: ...

    def names(self, positions: Array) -> Iterator[str]:
        """The names of the images at these positions, the same wherever the data set lies."""

    def place(self, position: int) -> str:
        """The place of an image, for people."""

    def root(self) -> Path:
        """The folder or file that the user named."""

    def state(self, order: Array) -> Iterator[bytes]:
        """Bytes that differ if an image, its name or the order has changed; no image is read."""

    def blocks(self, order: Array) -> Iterator[Block]:
        """Blocks that hold every image once; row ``k`` belongs to the image ``order[k]``."""


@dataclass(frozen=True, eq=False)
class FolderFiles:
    """Image files below a folder.

    Attributes:
        folder: the folder.
        paths: paths below it, with forward slashes.
        given: the file that names them; the folder itself if None.
    """

    folder: Path
    paths: PackedNames
    given: Path | None = None

    def __len__(self) -> int:
        return len(self.paths)

    def names(self, positions: Array) -> Iterator[str]:
        """Paths below the folder."""
        return self.paths.at(positions)

    def place(self, position: int) -> str:
        """The path of a file."""
        return str(self.folder / self.paths[position])

    def root(self) -> Path:
        """The folder, or the file that names the images."""
        return self.given or self.folder

    def state(self, order: Array) -> Iterator[bytes]:
        """Path, size and time of each file."""
        folder = str(self.folder)
        for file in self.names(order):
            try:
                status = os.stat(os.path.join(folder, file))
                state: tuple[Any, ...] = (file, status.st_size, status.st_mtime_ns)
            except OSError:
                state = (file, -1, -1)
            yield repr(state).encode("utf-8", "surrogateescape")

    def blocks(self, order: Array) -> Iterator[Block]:
        """Files in the order of their rows."""
        for start in range(0, len(order), BLOCK):
            some = order[start : start + BLOCK]
            rows = list(range(start, start + len(some)))
            yield Block(str(self.folder), list(self.names(some)), [], rows)


@dataclass(frozen=True, eq=False)
class ShardMembers:
    """Images in tar files, which are read where they lie.

    Attributes:
        given: the folder, file or pattern that the user named.
        shards: the tar files.
        keys: what each image is called: its name without the ending.
        shard: number of the shard of each image, ascending.
        first: the first byte of each image in its shard, ascending within a shard.
        length: bytes of each image.
    """

    given: Path
    shards: tuple[Path, ...]
    keys: PackedNames
    shard: Array
    first: Array
    length: Array

    def __len__(self) -> int:
        return len(self.keys)

    def names(self, positions: Array) -> Iterator[str]:
        """The keys, which do not depend on the shard."""
        return self.keys.at(positions)

    def place(self, position: int) -> str:
        """The key and its shard."""
        return f"'{self.keys[position]}' in {self.shards[self.shard[position]]}"

    def root(self) -> Path:
        """The folder, file or pattern."""
        return self.given

    def state(self, order: Array) -> Iterator[bytes]:
        """Path, size and time of each shard, and the order."""
        for path in self.shards:
            status = os.stat(path)
            state = (str(path), status.st_size, status.st_mtime_ns)
            yield repr(state).encode("utf-8", "surrogateescape")
        yield np.ascontiguousarray(order, dtype="<i8").tobytes()

    def blocks(self, order: Array) -> Iterator[Block]:
        """Images in the order of the shards, so that each shard is read from end to end."""
        row = np.empty(len(order), dtype=np.int64)
        row[order] = np.arange(len(order))
        ends = np.searchsorted(self.shard, np.arange(len(self.shards)), side="right").tolist()
        start = 0
        for path, end in zip(self.shards, ends, strict=True):
            for begin in range(start, end, BLOCK):
                some = slice(begin, min(begin + BLOCK, end))
                spans = np.stack([self.first[some], self.length[some]], axis=1)
                yield Block(str(path), [], spans.tolist(), row[some].tolist())
            start = end
