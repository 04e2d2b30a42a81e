"""Gaussian noise, and where its randomness comes from."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sfumato.errors import UserError
from sfumato.privacy.precision import widest


@dataclass(frozen=True)
class GaussianNoise:
    """Noise of standard deviation `multiplier * sensitivity` on every coordinate of a sum.

    Guarantee: With sensitivity S the released sum is the Gaussian mechanism with noise multiplier
    `multiplier`; the accountants' events are made from this same number. Noise is drawn in float64,
    where its tails end at 8.5 standard deviations, and then rounded: PyTorch's float32 numbers end
    at 5.77 on a CPU, and what lies beyond would give an image away with a chance that at small
    multipliers exceeds delta. (Apple's GPUs have float32 only.)
    """

    multiplier: float

    def __post_init__(self) -> None:
        if not 0 <= self.multiplier < float("inf"):
            raise UserError(f"The noise multiplier must be at least 0, not {self.multiplier}.")

    def add(
        self, total: Tensor, *, sensitivity: float, generator: torch.Generator | None = None
    ) -> Tensor:
        """The sum with noise added, drawn on the generator's device."""
        if self.multiplier == 0:
            return total
        device = total.device if generator is None else generator.device
        noise = self._draw(total.shape, sensitivity, generator, device)
        return total + noise.to(total.dtype).to(total.device)

    def add_all(
        self,
        totals: Sequence[Tensor],
        *,
        sensitivity: float,
        generator: torch.Generator | None = None,
    ) -> list[Tensor]:
        """The parts of one sum with noise added to each coordinate.

        A generator on an accelerator draws for all parts at once, which takes a few kernels instead
        of a few for each part.
        """
        kinds = {(t.device, t.dtype) for t in totals}
        if generator is None or generator.device.type == "cpu" or len(kinds) != 1:
            return [self.add(t, sensitivity=sensitivity, generator=generator) for t in totals]
        if self.multiplier == 0:
            return list(totals)
        (device, dtype), sizes = kinds.pop(), [t.numel() for t in totals]
        noise = self._draw(torch.Size([sum(sizes)]), sensitivity, generator, device)
        drawn = torch.split(noise.to(dtype), sizes)
        parts = [shaped_like(n, t) for n, t in zip(drawn, totals, strict=True)]
        return list(torch._foreach_add(list(totals), parts))

    def _draw(
        self,
        shape: torch.Size,
        sensitivity: float,
        generator: torch.Generator | None,
        device: torch.device,
    ) -> Tensor:
        """Noise in the widest precision that the device has."""
        noise = torch.randn(shape, generator=generator, device=device, dtype=widest(device))
        return noise.mul_(self.multiplier * sensitivity)


def shaped_like(numbers: Tensor, like: Tensor) -> Tensor:
    """As many numbers in the shape of a tensor, and where they can be in its order of memory.

    Tensors that lie alike are added in a few kernels; others in one for each.
    """
    if like.is_contiguous() or not like.is_contiguous(memory_format=torch.channels_last):
        return numbers.view(like.shape)
    return numbers.as_strided(like.shape, like.stride(), numbers.storage_offset())


@dataclass(frozen=True)
class Randomness:
    """One key from which the random numbers of every step and purpose follow.

    A step can so be repeated after an interruption with the very same draw and noise, and nothing
    new about the data is released by repeating it.

    Attributes:
        key: At least 16 bytes. Whoever knows it can subtract the noise.
        seeded: Whether the key follows from a small number that a recipe states.

    Guarantee: Generators of different steps or purposes start from unrelated states, hashed from
    the whole key: on the CPU all 19 968 bits of the Mersenne twister's state, elsewhere a 64-bit
    seed. (PyTorch's own CPU seeds have 32 effective bits: noise could be found by trying them all,
    and among 77 000 generators two would be expected to agree.)
    """

    key: bytes
    seeded: bool

    def __post_init__(self) -> None:
        if len(self.key) < 16:
            raise UserError(f"A key for random numbers needs 16 bytes, not {len(self.key)}.")

    @classmethod
    def from_seed(cls, seed: int, *, after: str = "") -> Randomness:
        """Reproducible randomness, for experiments on data that is not secret.

        The key is SHA-256 of the text `sfumato seed N`, so equal seeds give equal runs.

        Args:
            seed: The number N.
            after: The hash of weights with noise of their own that a run starts from. The text is
                `sfumato seed N after HASH` then: budgets add up for independent noise alone, and
                that of a run with the same seed would be the same again.
        """
        text = f"sfumato seed {seed}" + (f" after {after}" if after else "")
        return cls(hashlib.sha256(text.encode()).digest(), True)

    @classmethod
    def fresh(cls) -> Randomness:
        """A key from the operating system's entropy."""
        return cls(secrets.token_bytes(32), False)

    def generator(
        self, step: int, purpose: str, device: torch.device | str = "cpu"
    ) -> torch.Generator:
        """The generator of one purpose ('sample', 'augment', 'noise', ...) in one step."""
        stream = hashlib.shake_256(self.key + f"|{step}|{purpose}".encode())
        generator = torch.Generator(device=device)
        generator.manual_seed(int.from_bytes(stream.digest(8), "little"))
        if generator.device.type == "cpu":
            fill_twister(generator, stream.digest(8 + 4 * _WORDS)[8:])
        return generator


_WORDS = 624
_START, _BYTES = 24, 5056
"""Where the twister's words lie in `torch.Generator.get_state()`, eight bytes for each, and the
size of that state."""


def fill_twister(generator: torch.Generator, material: bytes) -> None:
    """Give a CPU generator a whole state of random words instead of one grown from 32 bits.

    Raises:
        RuntimeError: This version of PyTorch keeps its generator in another form.
    """
    state = generator.get_state().numpy()
    words = np.frombuffer(material, dtype="<u4").astype("<u8")
    inside = state[_START : _START + 8 * _WORDS].view("<u8")
    if state.size != _BYTES or inside[0] != generator.initial_seed() % 2**32:
        raise RuntimeError(
            f"PyTorch {torch.__version__} keeps its random state in a form unknown to sfumato"
        )
    inside[:] = words
    generator.set_state(torch.from_numpy(state))
