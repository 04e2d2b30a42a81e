"""A linear layer that reads blocks in the middle of a network, and wavelets beside them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from sfumato.errors import UserError
from sfumato.models.scatternet import wavelet_features, whitened
from sfumato.nn.equivariant import MirrorMean
from sfumato.nn.groups import Regular, Representation

Read = Literal["conv1", "conv2", "res1", "conv3", "conv4", "res2", "wavelets"]


def reading(
    parts: OrderedDict[str, nn.Module],
    blocks: Iterator[tuple[str, nn.Module, Representation, int]],
    reads: tuple[Read, ...],
    sides: Mapping[str, tuple[int, int]],
    *,
    classes: int,
    size: tuple[int, int],
    grid: int,
    whiten: float,
    mirror: bool,
) -> nn.Module:
    """The network whose head reads these blocks, and no others behind the last of them."""
    left = set(reads) - {"wavelets"}
    if not reads or len(set(reads)) < len(reads):
        raise UserError("The option 'reads' names what the last layer reads, each part once.")
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
    wavelets: nn.Module | None = None
    if "wavelets" in reads:
        filters, coefficients = wavelet_features(size, channels=1, whiten=whiten)
        wavelets, seen = nn.Sequential(filters), seen + coefficients
    return Reading(parts, readers, wavelets, nn.Linear(seen, classes), mirror=mirror)


def _mirror_mean(field: Representation, fields: int) -> nn.Module:
    if not isinstance(field, Regular) or not field.group.mirror:
        raise UserError(
            "The option 'mirror' needs a group with mirror images, such as d4: set the option "
            "'group', or leave 'mirror' out."
        )
    return MirrorMean(field, fields)


class Reading(nn.Module):
    """Blocks in a row, some of which a linear layer reads, with or without wavelets beside them.

    The blocks keep the names that they have in the whole network, so that its weights fit.
    """

    def __init__(
        self,
        blocks: OrderedDict[str, nn.Module],
        readers: dict[str, nn.Module],
        wavelets: nn.Module | None,
        head: nn.Linear,
        *,
        mirror: bool,
    ) -> None:
        super().__init__()
        self._mirror = mirror
        for name, block in blocks.items():
            self.add_module(name, block)
        self._in_a_row = tuple(blocks)
        self.readers = nn.ModuleDict(readers)
        self.wavelets = wavelets
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        seen, found = x, []
        for name in self._in_a_row:
            seen = self.get_submodule(name)(seen)
            if name in self.readers:
                found.append(self.readers[name](seen).flatten(1))
        if self.wavelets is not None:
            grey = x.mean(1, keepdim=True)
            waves = self.wavelets(grey)
            found.append((waves + self.wavelets(grey.flip(3))) / 2 if self._mirror else waves)
        logits: Tensor = self.head(torch.cat(found, 1))
        return logits
