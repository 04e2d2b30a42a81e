"""Groups of parameters that are clipped separately: assignment, and shares of the clipping norm."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import lru_cache

import torch
from torch import Tensor

from sfumato.errors import UserError, nearest


def group_parameters(names: Sequence[str], patterns: Sequence[str] = ()) -> tuple[int, ...]:
    """A group for each parameter: by the first matching pattern, or by layer without patterns.

    Groups are numbered from 0 without gaps, in the order of the patterns or of the layers.
    """
    if patterns:
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise UserError(
                    f"No trainable parameter matches '{pattern}' (privacy.groups)."
                    f"{nearest(pattern, names)}"
                )
        labels = [
            next((i for i, p in enumerate(patterns) if fnmatchcase(name, p)), len(patterns))
            for name in names
        ]
        order = {label: i for i, label in enumerate(sorted(set(labels)))}
        return tuple(order[label] for label in labels)
    layers: dict[str, int] = {}
    return tuple(layers.setdefault(layer_of(name), len(layers)) for name in names)


def layer_of(name: str) -> str:
    """The path of the module that owns a parameter, reparametrised or not."""
    owner, reparametrised, _ = name.partition(".parametrizations.")
    return owner if reparametrised else name.rpartition(".")[0]


def split_evenly(
    groups: Sequence[int], shapes: Sequence[torch.Size], split: str
) -> tuple[float, ...]:
    """The share of each group in C²: equal, or in proportion to its number of parameters."""
    sizes = [0] * (max(groups, default=-1) + 1)
    for group, shape in zip(groups, shapes, strict=True):
        sizes[group] += max(1, shape.numel()) if split == "dimension" else 0
    if split == "uniform":
        sizes = [1] * len(sizes)
    return tuple(size / sum(sizes) for size in sizes)


def norms_by_group(squared_norms: Tensor, groups: Sequence[int], count: int) -> Tensor:
    """Norms `(examples, count)` of each group of columns."""
    if len(groups) != squared_norms.shape[1]:
        raise RuntimeError("a clipping rule with groups must be bound to the parameters first")
    index = on_device(tuple(groups), squared_norms.device, torch.long)
    totals = squared_norms.new_zeros(squared_norms.shape[0], count)
    return totals.index_add_(1, index, squared_norms).sqrt_()


@lru_cache(maxsize=64)
def on_device(numbers: tuple[float, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """A cached tensor of these numbers, because copying them each time would wait for the device.

    It is not to be written to.
    """
    return torch.tensor(numbers, device=device, dtype=dtype)
