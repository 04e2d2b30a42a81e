"""Random inputs and targets like real ones, and what an example might be instead."""

from __future__ import annotations

import torch
from torch import Tensor

from sfumato.privacy.state import PROBE_SEED


def random_rows(
    like: Tensor, rows: int, *, seed: int = PROBE_SEED, positive: bool = False
) -> Tensor:
    """Random inputs with the shape, type, device and memory format of real ones.

    Standard normal, or uniform between 0 and 1 for models that accept nothing negative. Whole
    numbers lie between the smallest and the largest of the real ones, since they may be places in a
    table; a quarter is the smallest and a quarter the largest, since these may have a meaning.
    """
    generator = torch.Generator().manual_seed(seed)
    if not like.is_floating_point() and not like.is_complex():
        low, high = (int(like.min()), int(like.max())) if like.numel() else (0, 0)
        shape = (rows, *like.shape[1:])
        drawn = torch.randint(low, high + 1, shape, generator=generator)
        place = torch.randint(4, shape, generator=generator)
        drawn = drawn.where(place != 0, low).where(place != 1, high)
        return drawn.to(device=like.device, dtype=like.dtype)
    draw = torch.rand if positive else torch.randn
    x = draw((rows, *like.shape[1:]), generator=generator, dtype=torch.float64)
    x = x.to(device=like.device, dtype=like.dtype)
    if like.dim() == 4 and like.is_contiguous(memory_format=torch.channels_last):
        x = x.contiguous(memory_format=torch.channels_last)
    return x


def random_targets(like: Tensor, outputs: Tensor, examples: int) -> Tensor:
    """Random targets of the shape and type of real ones: classes, or numbers between 0 and 1."""
    generator = torch.Generator().manual_seed(PROBE_SEED)
    shape = (examples, *like.shape[1:])
    if like.is_floating_point():
        y = torch.rand(shape, generator=generator, dtype=torch.float64)
    else:
        classes = outputs.shape[1] if outputs.dim() > 1 else 2
        y = torch.randint(classes, shape, generator=generator)
    return y.to(device=like.device, dtype=like.dtype)


KINDS = ("other", "zeros", "opposite", "large", "not finite")

CUT = "half of it zeros"
"""Another kind: a series that ends early, padded."""


def replacement(x: Tensor, j: int, kind: str) -> Tensor:
    """The batch with row j replaced: what an example might be instead."""
    own = x[j]
    other = random_rows(x, 1, seed=j + 1)[0]
    if not x.is_floating_point():
        low, high = (torch.full_like(own, int(end)) for end in (x.min(), x.max()))
        changed = x.clone()
        changed[j] = {"zeros": low, "large": high, CUT: _cut(own, low)}.get(kind, other)
        return changed
    row = {
        CUT: lambda: _cut(own, torch.zeros_like(own)),
        "other": lambda: 3 * other,
        "zeros": lambda: torch.zeros_like(own),
        "opposite": lambda: 1 - 7 * own,
        "large": lambda: 1e3 * other,
        "not finite": lambda: torch.full_like(own, float("nan")),
    }[kind]()
    changed = x.clone()
    changed[j] = row
    return changed


def _cut(own: Tensor, end: Tensor) -> Tensor:
    """The first half of an example, and the end's second half."""
    half = own.shape[0] // 2 if own.dim() else 0
    return torch.cat([own[:half], end[half:]]) if own.dim() else end
