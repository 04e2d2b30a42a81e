"""Batches that are padded to few sizes, since every size is checked."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def with_room(examples: int) -> int:
    """A batch size with room for draws that are larger by two standard deviations or a quarter."""
    return examples + min(2 * math.isqrt(examples), examples // 4)


def padded(x: Tensor, y: Tensor, size: int, views: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of `size` examples, the last of which repeat the first."""
    examples = y.shape[0]
    if size == examples:
        return x, y
    more = torch.arange(size - examples, device=y.device) % examples
    rows = torch.arange((size - examples) * views, device=x.device) % x.shape[0]
    found = torch.cat([x, x[rows]])
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
        found = found.contiguous(memory_format=torch.channels_last)
    return found, torch.cat([y, y[more]])
