"""The sum over the physical batches of a step, in float64."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sfumato.privacy.noise import shaped_like


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
        more = [_alike([found[n] for n in v.names], v) for v in self._vectors]
        totals, parts = ([t for pair in more for t in pair[k]] for k in (0, 1))
        if totals:  # One call, which no interrupt divides: a retry would add the same sums again.
            torch._foreach_add_(totals, parts)

    def vector(self) -> Tensor:
        """All sums in one vector, those of each parameter in the order of its dimensions."""
        own = [_in_shape_order(v).to(self.home) for v in self._vectors]
        if len(own) == 1:
            return own[0]
        return torch.cat([torch.zeros(0, device=self.home, dtype=torch.float64), *own])

    def split(self, numbers: Tensor, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
        """A vector in the order of `vector`, as gradients of the parameters."""
        names = [name for v in self._vectors for name in v.names]
        own = [parameters[name] for name in names]
        # A single conversion in the usual case of one precision.
        kinds = {(p.device, p.dtype) for p in own}
        if len(kinds) == 1:
            (device, dtype) = next(iter(kinds))
            numbers = numbers.to(device=device, dtype=dtype)
        found: dict[str, Tensor] = {}
        for name, p, part in zip(
            names, own, torch.split(numbers, [p.numel() for p in own]), strict=True
        ):
            gradient = part.view(p.shape).to(device=p.device, dtype=p.dtype)
            if not p.is_contiguous() and p.is_contiguous(memory_format=torch.channels_last):
                gradient = gradient.contiguous(memory_format=torch.channels_last)
            found[name] = gradient
        return found


def _vector(names: list[str], parameters: list[nn.Parameter], home: torch.device) -> _Vector:
    sizes = [p.numel() for p in parameters]
    numbers = torch.zeros(sum(sizes), device=home, dtype=torch.float64)
    parts = torch.split(numbers, sizes)
    views = [shaped_like(part, p) for part, p in zip(parts, parameters, strict=True)]
    return _Vector(names, numbers, views)


def _alike(sums: Sequence[Tensor], vector: _Vector) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Parts of a vector and sums that can be added to them: all at once where launches count."""
    if vector.numbers.device.type != "cpu":
        pairs = zip(sums, vector.parts, strict=True)
        return [vector.numbers], [torch.cat([_in_memory_order(t, part) for t, part in pairs])]
    own = [t.to(part.device) for t, part in zip(sums, vector.parts, strict=True)]
    if any(t.shape != part.shape for t, part in zip(own, vector.parts, strict=True)):
        raise RuntimeError("a sum has another shape than its parameter")
    return vector.parts, own


def _in_memory_order(t: Tensor, like: Tensor) -> Tensor:
    """The numbers of a tensor in the memory order of another."""
    t = t.to(like.device)
    return t.reshape(-1) if like.is_contiguous() else t.permute(0, 2, 3, 1).reshape(-1)


def _in_shape_order(vector: _Vector) -> Tensor:
    """The numbers of a vector, those of each parameter in the order of its dimensions."""
    if all(part.is_contiguous() for part in vector.parts):
        return vector.numbers
    return torch.cat([part.reshape(-1) for part in vector.parts])
