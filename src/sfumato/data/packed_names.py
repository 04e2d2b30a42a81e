"""Many names in little memory: one block of bytes and where each name ends in it."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator

import numpy as np

from sfumato.data.imageset import Array


class PackedNames:
    """A sequence of names that takes their bytes and eight more each.

    A list of strings takes about a hundred bytes more for each, which for millions of files is more
    than the rest of a program.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        """Pack names, which may come from a generator."""
        self._block = bytearray()
        self._ends = array("q", (0,))
        self.extend(names)

    @classmethod
    def joined(cls, parts: Iterable[PackedNames]) -> PackedNames:
        """The names of several sequences, one after another."""
        whole = cls()
        for part in parts:
            start = len(whole._block)
            whole._block += part._block
            whole._ends.extend(start + end for end in part._ends[1:])
        return whole

    def extend(self, names: Iterable[str]) -> None:
        """Add names at the end."""
        for name in names:
            self._block += name.encode("utf-8", "surrogateescape")
            self._ends.append(len(self._block))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, position: int) -> str:
        if not 0 <= position < len(self):
            raise IndexError(position)
        name = self._block[self._ends[position] : self._ends[position + 1]]
        return name.decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        for position in range(len(self)):
            yield self[position]

    def at(self, positions: Array) -> Iterator[str]:
        """The names at these positions, one after another."""
        for start in range(0, len(positions), 1 << 16):
            for position in positions[start : start + (1 << 16)].tolist():
                yield self[position]

    def repeated(self, positions: Array | None = None) -> tuple[int, int] | None:
        """Two positions of the same name, among these positions or all; None if all differ."""
        among = np.arange(len(self)) if positions is None else positions
        digests = np.fromiter(
            (
                hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest()
                for name in self.at(among)
            ),
            dtype="V8",
            count=len(among),
        ).view(np.uint64)
        order = np.argsort(digests, kind="stable")
        for again in np.flatnonzero(digests[order][1:] == digests[order][:-1]).tolist():
            one, other = (int(among[order[again + k]]) for k in (0, 1))
            if self[one] == self[other]:
                return one, other
        return None

    @property
    def nbytes(self) -> int:
        """Bytes that the names take."""
        return len(self._block) + self._ends.itemsize * len(self._ends)
