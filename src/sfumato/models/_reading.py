"""A linear layer that reads blocks in the middle of one or two networks, and wavelets."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from sfumato.errors import UserError
from sfumato.models.scatternet import wavelet_features, whitened
from sfumato.nn.equivariant import MirrorMean
from sfumato.nn.groups import Regular, Representation

Read = Literal["conv1", "conv2", "res1", "conv3", "conv4", "res2", "wavelets"]
Network: TypeAlias = tuple[
    OrderedDict[str, nn.Module], Iterator[tuple[str, nn.Module, Representation, int]]
]
"""Layers that come first, and the blocks after them: name, block, field and number of fields."""


def reading(
    networks: Sequence[Network],
    reads: tuple[Read, ...],
    sides: Mapping[str, tuple[int, int]],
    *,
    classes: int,
    size: tuple[int, int],
    grid: int,
    whiten: float,
    mirror: bool,
) -> nn.Module:
    """The first network, with a second beside it if there is one; the head reads their blocks."""
    if not reads or len(set(reads)) < len(reads):
        raise UserError("The option 'reads' names what the last layer reads, each part once.")
    if len(networks) > 1 and set(reads) == {"wavelets"}:
        raise UserError(
            "The option 'beside' adds blocks of a second network: name some in 'reads'."
        )
    blocks = [
        _read_blocks(network, reads, sides, grid=grid, whiten=whiten, mirror=mirror)
        for network in networks
    ]
    seen = sum(features for _, features in blocks)
    wavelets: nn.Module | None = None
    if "wavelets" in reads:
        filters, coefficients = wavelet_features(size, channels=1, whiten=whiten)
        wavelets, seen = nn.Sequential(filters), seen + coefficients
    own, *beside = (read for read, _ in blocks)
    return Reading(own, beside, wavelets, nn.Linear(seen, classes), mirror=mirror)


def _read_blocks(
    network: Network,
    reads: tuple[Read, ...],
    sides: Mapping[str, tuple[int, int]],
    *,
    grid: int,
    whiten: float,
    mirror: bool,
) -> tuple[ReadBlocks, int]:
    """The blocks of a network up to the last that is read, and the number of their features."""
    parts, blocks = network
    left = set(reads) - {"wavelets"}
    readers: dict[str, nn.Module] = {}
    seen = 0
    while left:
        name, block, field, fields = next(blocks)
        parts[name] = block
        if name not in left:
            continue
        left.remove(name)
        # A grid that is finer than the block's own would repeat positions.
        height, width = (min(grid, side) for side in sides[name])
        channels = fields * field.dimension
        reader = OrderedDict[str, nn.Module](pool=nn.AdaptiveAvgPool2d((height, width)))
        if mirror:
            reader["mirror"] = _mirror_mean(field, fields)
        reader["norm"] = nn.GroupNorm(1, channels, affine=False)
        reader.update(whitened(channels, whiten))
        readers[name] = nn.Sequential(reader)
        seen += channels * height * width
    return ReadBlocks(parts, readers), seen


def _mirror_mean(field: Representation, fields: int) -> nn.Module:
    if not isinstance(field, Regular) or not field.group.mirror:
        raise UserError(
            "The option 'mirror' needs a group with mirror images, such as d4: set the option "
            "'group', or leave 'mirror' out."
        )
    return MirrorMean(field, fields)


class ReadBlocks(nn.Module):
    """Blocks in a row, some of which are read; they keep the names of the whole network's."""

    def __init__(self, blocks: Mapping[str, nn.Module], readers: Mapping[str, nn.Module]) -> None:
        super().__init__()
        for name, block in blocks.items():
            self.add_module(name, block)
        self._in_a_row = tuple(blocks)
        self.readers = nn.ModuleDict(readers)

    @property
    def blocks(self) -> dict[str, nn.Module]:
        """The blocks by name, in their order."""
        return {name: self.get_submodule(name) for name in self._in_a_row}

    def read(self, x: Tensor) -> list[Tensor]:
        """The features of each block that is read."""
        found = []
        for name, block in self.blocks.items():
            x = block(x)
            if name in self.readers:
                found.append(self.readers[name](x).flatten(1))
        return found


class Reading(ReadBlocks):
    """Blocks that a linear layer reads, with or without another network and wavelets beside them.

    The blocks keep the names that they have in the whole network, so that its weights fit. Those of
    the other network begin with `beside`.
    """

    def __init__(
        self,
        own: ReadBlocks,
        beside: Sequence[ReadBlocks],
        wavelets: nn.Module | None,
        head: nn.Linear,
        *,
        mirror: bool,
    ) -> None:
        super().__init__(own.blocks, dict(own.readers.items()))
        self._mirror = mirror
        self.beside = beside[0] if beside else None
        self.wavelets = wavelets
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        found = self.read(x)
        if self.beside is not None:
            found += self.beside.read(x)
        if self.wavelets is not None:
            grey = x.mean(1, keepdim=True)
            waves = self.wavelets(grey)
            found.append((waves + self.wavelets(grey.flip(3))) / 2 if self._mirror else waves)
        logits: Tensor = self.head(torch.cat(found, 1))
        return logits
