"""Plan of what to store of each convolution's per-example gradients, by estimated cost.

- *materialise*: store every example's gradient; the norm and the weighted sum are read from it;
- *norm-only*: compute every example's gradient but store its norm alone, then compute the weighted
  sum as one more product (book-keeping, Bu et al., 2022);
- *ghost*: compute the norm from products of patches (Li et al., 2021), cheap where views and
  spatial positions are few, then the weighted sum as in *norm-only*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from sfumato.kernels.definitions import GHOST_LONGEST, Geometry

Storage = Literal["materialise", "norm-only", "ghost"]
STORAGES: tuple[Storage, ...] = ("materialise", "norm-only", "ghost")

PRODUCTS = 3.5e14
"""Multiplications and additions per second that the kernels reach on an H200 in bfloat16."""
BYTES = 3.5e12
"""Bytes per second of its memory."""
_NARROW_BYTES = 2
"""Bytes of a number in bfloat16."""
SHARE = 2 / 3
"""Bytes of stored gradients for each byte that the backward pass stores anyway."""
_PARAMETER_BYTES = 16
"""Bytes of a step for each trained number: sum and mean in float32, the total in float64."""


@dataclass(frozen=True)
class Convolution:
    """A convolution as the planner sees it, or a product of a matrix and several vectors.

    Attributes:
        name: Name of the module that owns the filters or the matrix.
        at: Its geometry, and the views.
        channels: Input channels; `filters` are the output channels, `positions` the spatial
            positions of an output.
    """

    name: str
    at: Geometry
    channels: int
    filters: int
    positions: int

    @property
    def entries(self) -> int:
        """Numbers in one example's gradient."""
        return self.filters * self.channels * self.at.kernel[0] * self.at.kernel[1]

    @property
    def length(self) -> int:
        """Views times positions, the length of the product that makes a gradient."""
        return self.at.views * self.positions

    def seconds(self, storage: Storage, examples: int) -> float:
        """Estimated time on an H200 for this number of examples."""
        product = 2 * self.entries * self.length * examples / PRODUCTS
        moved = 2 * self.entries * examples / BYTES
        if storage == "materialise":
            return max(product, moved) + moved
        if storage == "norm-only":
            return 2 * product
        taps = self.at.kernel[0] * self.at.kernel[1]
        patches = 2 * self.length**2 * (taps * self.channels + self.filters) * examples / PRODUCTS
        return patches + product

    def bytes(self, storage: Storage, examples: int) -> int:
        """Memory in bytes that is occupied until the weighted sum; inputs are stored anyway."""
        if storage == "materialise":
            return 2 * self.entries * examples
        return 2 * self.filters * self.length * examples

    def possible(self) -> tuple[Storage, ...]:
        """The choices of storage that this layer allows."""
        return STORAGES[:2] if self.length > GHOST_LONGEST else STORAGES


def plan(layers: Sequence[Convolution], examples: int, *, memory: int) -> dict[str, Storage]:
    """The fastest storage for each layer, within a limit of memory.

    Args:
        layers: The convolutions.
        examples: The physical batch.
        memory: Bytes that gradients may take. Where the fastest choices need more, layers change
            one by one: the change that loses the least time among those that are enough by
            themselves, or else the one that frees the most bytes for the time it loses.
    """
    chosen: dict[str, Storage] = {
        layer.name: min(layer.possible(), key=lambda storage: layer.seconds(storage, examples))
        for layer in layers
    }
    while (
        excess := sum(layer.bytes(chosen[layer.name], examples) for layer in layers) - memory
    ) > 0:
        savings: list[tuple[float, int, str, Storage]] = []
        for layer in layers:
            now = chosen[layer.name]
            for storage in layer.possible():
                freed = layer.bytes(now, examples) - layer.bytes(storage, examples)
                if freed > 0:
                    lost = layer.seconds(storage, examples) - layer.seconds(now, examples)
                    savings.append((lost, freed, layer.name, storage))
        if not savings:
            break
        enough = [saving for saving in savings if saving[1] >= excess]
        _, _, name, storage = min(enough) if enough else min(savings, key=lambda s: s[0] / s[1])
        chosen[name] = storage
    return chosen


@torch.enable_grad()
def room(model: nn.Module, row: Tensor, rows: int) -> int:
    """Bytes that stored gradients may take beside what a backward pass stores for these rows.

    What a private step keeps of every parameter is taken from them: with few rows and many
    parameters it is most of the memory that privacy costs.

    Args:
        model: The model.
        row: An input of one row; its values are not used.
        rows: Rows of a physical batch.
    """

    def kept(count: int) -> int:
        """Numbers that a backward pass over this many rows stores, weights among them."""
        found: dict[int, Tensor] = {}

        def note(t: Tensor) -> Tensor:
            return found.setdefault(t.untyped_storage().data_ptr(), t)

        with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
            output = model(torch.zeros_like(row).repeat_interleave(count, 0))
        del output
        return sum(t.numel() for t in found.values())

    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    beside = SHARE * _NARROW_BYTES * (kept(2) - kept(1)) * rows
    return max(0, int(beside) - _PARAMETER_BYTES * trained)


def by_outputs(inputs: int, outputs: int, views: int) -> bool:
    """Tell whether storing a linear layer's output gradients is cheaper than its weight's."""
    return inputs * outputs >= 16 * views * (inputs + outputs)
