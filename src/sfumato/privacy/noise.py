"""Gaussian noise, and where its randomness comes from."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

import torch
from torch import Tensor

from sfumato.errors import UserError


@dataclass(frozen=True)
class GaussianNoise:
    """Noise of standard deviation `multiplier * sensitivity` on every coordinate of a sum.

    Guarantee: With sensitivity S the released sum is the Gaussian mechanism with noise multiplier
    `multiplier`; the accountants' events are made from this same number.
    """

    multiplier: float

    def __post_init__(self) -> None:
        if not 0 <= self.multiplier < float("inf"):
            raise UserError(f"The noise multiplier must be at least 0, not {self.multiplier}.")

    def add(
        self, total: Tensor, *, sensitivity: float, generator: torch.Generator | None = None
    ) -> Tensor:
        """The sum with noise added, drawn in the sum's own precision on the generator's device."""
        if self.multiplier == 0:
            return total
        device = total.device if generator is None else generator.device
        noise = torch.randn(total.shape, generator=generator, device=device, dtype=total.dtype)
        return total + (self.multiplier * sensitivity) * noise.to(total.device)


@dataclass(frozen=True)
class Randomness:
    """One key from which the random numbers of every step and purpose follow.

    A step can so be repeated after an interruption with the very same draw and noise, and nothing
    new about the data is released by repeating it.

    Attributes:
        key: At least 16 bytes. Whoever knows it can subtract the noise.
        seeded: Whether the key follows from a small number that a recipe states.
    """

    key: bytes
    seeded: bool

    @classmethod
    def from_seed(cls, seed: int) -> Randomness:
        """Reproducible randomness, for experiments on data that is not secret."""
        return cls(hashlib.sha256(f"sfumato seed {seed}".encode()).digest(), True)

    @classmethod
    def fresh(cls) -> Randomness:
        """A key from the operating system's entropy."""
        return cls(secrets.token_bytes(32), False)

    def generator(
        self, step: int, purpose: str, device: torch.device | str = "cpu"
    ) -> torch.Generator:
        """The generator of one purpose ('sample', 'augment', 'noise', ...) in one step."""
        digest = hashlib.sha256(self.key + f"|{step}|{purpose}".encode()).digest()
        seed = int.from_bytes(digest[:8], "little") >> 1
        return torch.Generator(device=device).manual_seed(seed)
