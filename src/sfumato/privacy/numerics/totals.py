"""The sum over the physical batches of a step, in float64."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sfumato.distributed.ranks import Ranks
from sfumato.privacy.noise import GaussianNoise, shaped_like
from sfumato.privacy.numerics.randomness import Keystream


@dataclass
class _Vector:
    """The sums of some parameters, concatenated."""

    names: list[str]
    numbers: Tensor
    parts: list[Tensor]


class Totals(Mapping[str, Tensor]):
    """Sums by parameter, stored in one vector for each device.

    Guarantee: Sums are accumulated in float64, in which the order of 10^5 examples changes them by
    less than the clipping rules' margin. (Apple's GPUs have no float64: their sums are on the CPU.)

    Args:
        parameters: The parameters, by name.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        homes: dict[torch.device, list[str]] = {}
        for name, p in parameters.items():
            home = torch.device("cpu") if p.device.type == "mps" else p.device
            homes.setdefault(home, []).append(name)
        self._vectors = [
            _vector(names, [parameters[name] for name in names], home)
            for home, names in homes.items()
        ]
        by_name = {n: part for v in self._vectors for n, part in zip(v.names, v.parts, strict=True)}
        self._parts = {name: by_name[name] for name in parameters}

    @property
    def home(self) -> torch.device:
        """The device of the first vector, on which ranks exchange sums."""
        return self._vectors[0].numbers.device if self._vectors else torch.device("cpu")

    def __getitem__(self, name: str) -> Tensor:
        return self._parts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def check_fits(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Refuse parameters other than those that were summed."""
        if self.keys() != parameters.keys() or any(
            part.shape != parameters[name].shape for name, part in self.items()
        ):
            raise RuntimeError(
                "parameters were frozen or unfrozen, or replaced, between accumulate and release"
            )

    def add(self, names: Sequence[str], sums: Sequence[Tensor]) -> None:
        """Add the sums of a physical batch; nothing is added if this raises."""
        found = dict(zip(names, sums, strict=True))
        more = [
            torch.cat(
                [_in_memory_order(found[n], part) for n, part in zip(v.names, v.parts, strict=True)]
            )
            for v in self._vectors
        ]
        # Nothing may fail from here on: a retry would add the same sums again.
        for vector, numbers in zip(self._vectors, more, strict=True):
            vector.numbers += numbers

    def add_over_ranks(self, ranks: Ranks, *others: Tensor) -> list[Tensor]:
        """Replace the sums by those over all ranks, by one sum of one vector.

        Returns:
            Other tensors, summed over all ranks as well, in float64.
        """
        own = [*(vector.numbers for vector in self._vectors), *others]
        flat = torch.cat([t.to(device=self.home, dtype=torch.float64).reshape(-1) for t in own])
        parts = torch.split(ranks.total(flat), [t.numel() for t in own])
        for vector, part in zip(self._vectors, parts, strict=False):
            vector.numbers.copy_(part)
        rest = parts[len(self._vectors) :]
        return [part.view_as(t) for t, part in zip(others, rest, strict=True)]

    def noisy_means(
        self,
        parameters: Mapping[str, nn.Parameter],
        noise: GaussianNoise,
        *,
        sensitivity: float,
        stream: Keystream,
        batch: float,
    ) -> dict[str, Tensor]:
        """The sums with noise, divided by the expected batch, as gradients of the parameters.

        An entry of a parameter gets the same noise in any memory format.
        """
        sums = [_in_shape_order(v) for v in self._vectors]
        noisy = noise.add_all(sums, sensitivity=sensitivity, stream=stream)
        found: dict[str, Tensor] = {}
        for vector, numbers in zip(self._vectors, noisy, strict=True):
            own = [parameters[name] for name in vector.names]
            # A single conversion in the usual case of one precision.
            kinds = {(p.device, p.dtype) for p in own}
            means = numbers / batch
            if len(kinds) == 1:
                (device, dtype) = next(iter(kinds))
                means = means.to(device=device, dtype=dtype)
            parts = torch.split(means, [p.numel() for p in own])
            for name, p, part in zip(vector.names, own, parts, strict=True):
                mean = part.view(p.shape).to(device=p.device, dtype=p.dtype)
                if not p.is_contiguous() and p.is_contiguous(memory_format=torch.channels_last):
                    mean = mean.contiguous(memory_format=torch.channels_last)
                found[name] = mean
        return found


def _vector(names: list[str], parameters: list[nn.Parameter], home: torch.device) -> _Vector:
    sizes = [p.numel() for p in parameters]
    numbers = torch.zeros(sum(sizes), device=home, dtype=torch.float64)
    parts = torch.split(numbers, sizes)
    views = [shaped_like(part, p) for part, p in zip(parts, parameters, strict=True)]
    return _Vector(names, numbers, views)


def _in_memory_order(t: Tensor, like: Tensor) -> Tensor:
    """The numbers of a tensor in the memory order of another."""
    t = t.to(like.device)
    return t.reshape(-1) if like.is_contiguous() else t.permute(0, 2, 3, 1).reshape(-1)


def _in_shape_order(vector: _Vector) -> Tensor:
    """The numbers of a vector, those of each parameter in the order of its dimensions."""
    if all(part.is_contiguous() for part in vector.parts):
        return vector.numbers
    return torch.cat([part.reshape(-1) for part in vector.parts])
