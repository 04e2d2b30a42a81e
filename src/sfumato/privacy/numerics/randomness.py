"""The random numbers of a run: one key, from which those of every step and purpose follow."""

from __future__ import annotations

import hashlib
import os
import secrets
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sfumato.distributed.ranks import Ranks
from sfumato.errors import UserError
from sfumato.kernels import chacha20


class Keystream:
    """A stream of random numbers that must stay secret: draws of examples, and noise.

    Each call continues where the last one ended, at the next block of the cipher.

    Guarantee: The stream is that of ChaCha20 with a key of 256 bits. Whoever sees any part of it
    cannot tell the rest from coin flips without the key, unless the cipher is broken; a known
    part of a step's noise (a parameter that gets no gradient) says nothing about the other parts.

    Args:
        key: 32 bytes that nothing else uses.
    """

    def __init__(self, key: bytes) -> None:
        if len(key) != chacha20.KEY_BYTES:
            raise ValueError(f"a key stream needs {chacha20.KEY_BYTES} bytes, not {len(key)}")
        self._key, self._block = key, 0

    @property
    def fingerprint(self) -> str:
        """Text that is equal for equal streams and says nothing about their numbers."""
        return hashlib.shake_256(self._key + f"|{self._block}|fingerprint".encode()).hexdigest(8)

    def _take(self, count: int) -> int:
        """The first of the next blocks, which hold `count` words."""
        first = self._block
        self._block += chacha20.blocks_of(count)
        return first

    def skip(self, count: int) -> None:
        """Continue after the next `count` words, as if they had been drawn."""
        self._take(count)

    def trials(self, count: int, probability: float) -> Tensor:
        """Outcomes of independent trials, `(count,)` bool on the CPU.

        Guarantee: Each succeeds with `probability`, exact to 2^-64.
        """
        drawn = chacha20.words(self._key, count, block=self._take(count))
        if probability >= 1:
            return torch.ones(count, dtype=torch.bool)
        threshold = int(probability * 2.0**64)  # A float64 times a power of two is exact.
        return torch.from_numpy(drawn < threshold)

    def words(self, count: int) -> Tensor:
        """Independent uniform numbers `(count,)` of 64 bits, int64 on the CPU."""
        drawn = chacha20.words(self._key, count, block=self._take(count))
        return torch.from_numpy(drawn.astype("int64"))

    def uniforms(self, count: int) -> list[float]:
        """Independent uniform numbers from [0, 1), multiples of 2^-53."""
        drawn = chacha20.words(self._key, count, block=self._take(count))
        return [int(word >> 11) * 2.0**-53 for word in drawn.tolist()]

    def normals(self, count: int, device: torch.device) -> Tensor:
        """Independent standard normal numbers `(count,)` in float64.

        They lie on the device, or on the CPU where the device has no float64.
        """
        return chacha20.normals(self._key, count, device, block=self._take(count))


@dataclass(frozen=True)
class Randomness:
    """One key from which the random numbers of every step and purpose follow.

    So a step can be repeated after an interruption with the very same draw and noise, and repeating
    it releases nothing new about the data.

    Attributes:
        key: 32 bytes. Whoever knows it can subtract the noise.
        seeded: Whether the key follows from a small number that a recipe states. Such a run is not
            private: anyone can try the numbers.

    Guarantee: The numbers of different steps or purposes are those of unrelated keys, hashed from
    this one by SHAKE-256. PyTorch's own generators are never used for what must stay secret: the
    state of its Mersenne twister follows from 2 000 to 3 000 of its numbers.
    """

    key: bytes = field(repr=False)
    seeded: bool
    _process: int = field(default_factory=os.getpid, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.key) != chacha20.KEY_BYTES:
            raise UserError(
                f"A key for random numbers has {chacha20.KEY_BYTES} bytes, not {len(self.key)}: "
                "make one with Randomness.fresh()."
            )

    @classmethod
    def from_seed(cls, seed: int, *, after: str = "") -> Randomness:
        """Reproducible randomness, for experiments on data that is not secret.

        The key is SHA-256 of the text `sfumato seed N`, so equal seeds give equal runs.

        Args:
            seed: The number N.
            after: The hash of noisy weights that a run starts from. The text is then `sfumato seed
                N after HASH`: budgets add up for independent noise alone, and a run with the same
                seed would have the same noise again.
        """
        text = f"sfumato seed {seed}" + (f" after {after}" if after else "")
        return cls(hashlib.sha256(text.encode()).digest(), True)

    @classmethod
    def fresh(cls) -> Randomness:
        """A key from the operating system's entropy."""
        return cls(secrets.token_bytes(chacha20.KEY_BYTES), False)

    @classmethod
    def shared(cls) -> Randomness:
        """A key from the operating system's entropy; in a process group all ranks have rank 0's."""
        ranks, own = Ranks.current(), cls.fresh()
        return (
            own if ranks.size == 1 else cls(bytes.fromhex(ranks.from_leader(own.key.hex())), False)
        )

    @property
    def fingerprint(self) -> str:
        """Text that is equal for equal keys and says nothing about their numbers."""
        return self._derived(0, "fingerprint", 8).hex()

    def _derived(self, step: int, purpose: str, size: int) -> bytes:
        return hashlib.shake_256(self.key + f"|{step}|{purpose}".encode()).digest(size)

    def subkey(self, purpose: str) -> Randomness:
        """A key of its own for one purpose, which says nothing about this one."""
        key = self._derived(0, f"key of {purpose}", chacha20.KEY_BYTES)
        return Randomness(key, self.seeded)

    def stream(self, step: int, purpose: str) -> Keystream:
        """The key stream of one purpose (`sample`, `noise`) in one step.

        Raises:
            UserError: The process was forked since the key was made. Both processes would draw
                the same noise, and the difference of what they release would have none.
        """
        if not self.seeded and os.getpid() != self._process:
            raise UserError(
                "This process was forked from one that has the same key for its random numbers, "
                "and two releases with the same noise give each other away: make the mechanism "
                "and the sampler's batches after the fork, in each process for itself."
            )
        return Keystream(self._derived(step, purpose, chacha20.KEY_BYTES))

    def generator(
        self, step: int, purpose: str, device: torch.device | str = "cpu"
    ) -> torch.Generator:
        """A PyTorch generator for numbers that need not stay secret.

        These are augmentations, initial weights and dropout: the guarantee holds for an attacker
        who knows them. Its seed says nothing about the key.
        """
        generator = torch.Generator(device=device)
        generator.manual_seed(int.from_bytes(self._derived(step, purpose, 8), "little"))
        return generator


SOURCE = "chacha20"
"""The name of the source of noise, as ledgers have it."""
