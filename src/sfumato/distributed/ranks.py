"""The ranks of a process group: shares of work, sums over ranks, and messages between them."""

from __future__ import annotations

import json
import math
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sfumato.errors import UserError

_FRAME = 1024
"""Bytes of a message that are sent at once, of which 8 are its length."""


class OtherRankError(UserError):
    """An error of another rank, or its end, which ends the work on this rank as well."""


@dataclass(frozen=True)
class Ranks:
    """The processes that share the work of one mechanism.

    Guarantee: Messages and sums are the same on every rank. An error on one rank that
    `sharing_errors` sees is an error on all of them at their next exchange of messages, so that
    none waits for a rank that has failed.

    Attributes:
        rank: Number of this process, from 0.
        size: Number of processes; 1 without a process group.
        group: Process group on the CPU for messages; None for a process alone.
    """

    rank: int = 0
    size: int = 1
    group: Any = None

    @classmethod
    def current(cls) -> Ranks:
        """The ranks of the process group that is initialised now; one rank without a group.

        The first call in a process group is made by all ranks.
        """
        if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
            return cls()
        world = dist.group.WORLD
        if world not in _known:
            with _connected():
                group = dist.new_group(backend="gloo")
            _known[world] = cls(dist.get_rank(), dist.get_world_size(), group)
        return _known[world]

    @property
    def leader(self) -> bool:
        """Tell whether this is rank 0, which alone prints and writes."""
        return self.rank == 0

    def share(self, count: int, size: int = 1) -> Tensor:
        """The positions among `count` that this rank works on, in increasing order.

        Ranks take turns at blocks of `size` positions, so that shares differ by one block at most.

        Guarantee: Each position is in the share of exactly one rank.
        """
        positions = torch.arange(count)
        return positions[positions // size % self.size == self.rank]

    def total(self, numbers: Tensor) -> Tensor:
        """The sum of a vector over all ranks, added in the order of ranks.

        Each rank adds one part of the vector, and sends the result to all.
        """
        if self.size == 1:
            return numbers
        return self.gather(self.own_total(self.parts(numbers))).flatten()[: len(numbers)]

    def parts(self, numbers: Tensor, *, multiple: int = 1) -> Tensor:
        """A vector in equal parts `(ranks, length)`, one for each rank, padded with zeros.

        Args:
            numbers: The vector.
            multiple: The length of a part is a multiple of this.
        """
        length = math.ceil(len(numbers) / (self.size * multiple)) * multiple
        padded = numbers.new_zeros(self.size * length)
        padded[: len(numbers)] = numbers
        return padded.view(self.size, length)

    def own_total(self, parts: Tensor) -> Tensor:
        """This rank's row of a matrix `(ranks, length)`, summed over all ranks in their order.

        The ranks have exchanged a message before, and have done nothing since that can fail on some
        of them; the same holds for `gather`.
        """
        through, mine = self._sent(parts)
        theirs = torch.empty_like(mine)
        with _connected():
            dist.all_to_all_single(theirs, mine, group=through)
        own = theirs[0]
        for other in theirs[1:]:
            own = own + other
        return own.to(parts.device)

    def gather(self, own: Tensor) -> Tensor:
        """The vectors of all ranks, of one length, as rows `(ranks, length)`."""
        through, mine = self._sent(own)
        found = mine.new_empty(self.size, len(own))
        with _connected():
            dist.all_gather(list(found), mine, group=through)
        return found.to(own.device)

    def _sent(self, numbers: Tensor) -> tuple[Any, Tensor]:
        """The process group that numbers are sent through, and the numbers where it takes them."""
        if numbers.is_cuda and "nccl" in dist.get_backend_config():
            return None, numbers.contiguous()
        return self.group, numbers.cpu().contiguous()

    def exchange(self, message: Any = None, *, error: str | None = None) -> list[Any]:
        """The messages of all ranks, in their order.

        Args:
            message: Plain data that JSON can hold.
            error: A sentence about the failure of this rank, for all others.

        Raises:
            OtherRankError: Another rank has failed, or does not answer.
        """
        if self.size == 1:
            return [message]
        found = [json.loads(raw) for raw in self._gather(json.dumps([message, error]).encode())]
        for rank, (_, sentence) in enumerate(found):
            if sentence is not None and error is None:
                where = f"Rank {rank} of {self.size}: " if rank else ""
                raise OtherRankError(f"{where}{sentence}")
        return [theirs for theirs, _ in found]

    def from_leader(self, message: Any = None) -> Any:
        """The message of rank 0, on every rank."""
        return self.exchange(message if self.leader else None)[0]

    def bytes_from_leader(self, content: bytes = b"") -> bytes:
        """Bytes of any length that rank 0 has, on every rank."""
        if self.size == 1:
            return content
        numbers = torch.empty(self.from_leader(len(content)), dtype=torch.uint8)
        if self.leader and content:
            numbers = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        with _connected():
            dist.broadcast(numbers, 0, group=self.group)
        return numbers.numpy().tobytes()

    def agree(self, facts: Mapping[str, str], message: Any = None) -> list[Any]:
        """Raise an error on every rank unless all have the same facts, which are given by name.

        Returns:
            The messages of all ranks, in their order.
        """
        found = self.exchange([dict(facts), message])
        for rank, (theirs, _) in enumerate(found):
            for name, value in found[0][0].items():
                if theirs.get(name) != value:
                    raise UserError(
                        f"Rank {rank} of {self.size} has another {name} than rank 0 "
                        f"({theirs.get(name)} instead of {value}): all ranks must have the same."
                    )
        return [message for _, message in found]

    def _gather(self, raw: bytes) -> list[bytes]:
        """The bytes of all ranks."""
        frames = self._frames(len(raw).to_bytes(8, "little") + raw[: _FRAME - 8], _FRAME)
        lengths = [int.from_bytes(frame[:8], "little") for frame in frames]
        if (most := max(lengths)) > _FRAME - 8:
            rest = self._frames(raw[_FRAME - 8 :], most)
            frames = [frame + more for frame, more in zip(frames, rest, strict=True)]
        return [frame[8 : 8 + n] for frame, n in zip(frames, lengths, strict=True)]

    def _frames(self, raw: bytes, size: int) -> list[bytes]:
        mine = torch.frombuffer(bytearray(raw.ljust(size, b"\0")), dtype=torch.uint8)
        found = [torch.empty_like(mine) for _ in range(self.size)]
        with _connected():
            dist.all_gather(found, mine, group=self.group)
        return [part.numpy().tobytes() for part in found]


_known: weakref.WeakKeyDictionary[Any, Ranks] = weakref.WeakKeyDictionary()
"""The ranks of process groups that are in use."""


@contextmanager
def sharing_errors() -> Iterator[None]:
    """Tell all ranks about an error within a `with` block, which ends the work on all of them."""
    ranks = Ranks.current()
    try:
        yield
    except OtherRankError:
        raise
    except BaseException as error:
        if ranks.size > 1 and not hasattr(error, _TOLD):
            setattr(error, _TOLD, True)
            kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
            with suppress(OtherRankError):
                ranks.exchange(error=f"{kind}{error}".removesuffix(": "))
        raise


_TOLD = "_known_to_all_ranks"


@contextmanager
def _connected() -> Iterator[None]:
    """Turn the failure of a connection into a sentence."""
    try:
        yield
    except RuntimeError as error:
        raise OtherRankError(
            "Another process of this run has ended, or does not answer, and the run cannot go on "
            "without it. If the run has a folder, `sfumato train --resume FOLDER` continues it "
            "with any number of processes."
        ) from error
