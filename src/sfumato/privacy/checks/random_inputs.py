"""Random inputs and targets like real ones, and replacements of single examples."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.privacy.numerics.model_state import PROBE_SEED


def random_rows(
    like: Tensor, rows: int, *, seed: int = PROBE_SEED, positive: bool = False
) -> Tensor:
    """Random inputs with the shape, type, device and memory format of real ones.

    Standard normal, or uniform between 0 and 1 for models that accept nothing negative. Integers
    lie between the smallest and the largest of the real ones, since they may be indices of a table;
    a quarter is the smallest and a quarter the largest, since these may have a meaning.
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
    return _like(x, like)


def image_rows(like: Tensor, rows: int, *, seed: int = PROBE_SEED) -> Tensor:
    """Random inputs between 0 and 1 that look like photographs: low frequencies and an edge.

    Every row is darker than the one before, and none reaches 1. Integers are those of
    `random_rows`.
    """
    if not like.is_floating_point():
        return random_rows(like, rows, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    shape = tuple(like.shape[1:])
    height, width = (1, 1, *shape)[-2:]
    channels = max(1, math.prod(shape[:-2]))
    coarse = torch.rand((rows, channels, 3, 3), generator=generator, dtype=torch.float64)
    x = F.interpolate(coarse, size=(height, width), mode="bilinear", align_corners=True)
    across = torch.linspace(0, 1, width, dtype=torch.float64).expand(height, width)
    down = torch.linspace(0, 1, height, dtype=torch.float64).unsqueeze(1)
    lean, place = torch.rand((2, rows, 1, 1, 1), generator=generator, dtype=torch.float64)
    x = (x + (lean * across + (1 - lean) * down > place)).reshape(rows, -1)
    x = x / x.amax(1, keepdim=True).clamp_min(1e-3)
    x = x * torch.linspace(0.95, 0.6, rows, dtype=torch.float64).unsqueeze(1)
    return _like(x.reshape(rows, *shape), like)


def _like(x: Tensor, like: Tensor) -> Tensor:
    """A tensor with the type, device and memory format of another."""
    x = x.to(device=like.device, dtype=like.dtype)
    if like.dim() == 4 and like.is_contiguous(memory_format=torch.channels_last):
        x = x.contiguous(memory_format=torch.channels_last)
    return x


def random_targets(like: Tensor, labels: range, examples: int) -> Tensor:
    """Random targets of the shape and type of real ones: labels, or numbers between 0 and 1.

    Args:
        like: Real targets.
        labels: What whole numbers are drawn from.
        examples: Number of targets.
    """
    generator = torch.Generator().manual_seed(PROBE_SEED)
    shape = (examples, *like.shape[1:])
    if like.is_floating_point():
        y = torch.rand(shape, generator=generator, dtype=torch.float64)
    else:
        y = torch.randint(labels.start, labels.stop, shape, generator=generator)
    return y.to(device=like.device, dtype=like.dtype)


def random_counts(units: int, images: int) -> Tensor:
    """Random numbers of images that are there, from 1 to `images`, one for each unit."""
    generator = torch.Generator().manual_seed(PROBE_SEED)
    return torch.randint(1, images + 1, (units,), generator=generator)


KINDS = ("other", "zeros", "opposite", "large", "not finite")

CUT = "half of it zeros"
"""One more kind of replacement: a series that ends early, padded."""

IMAGE_KINDS = ("darker", "white", "copy")
"""Kinds of replacements for images of values from 0 to 1 or 255; white is the largest value."""


def replacement(x: Tensor, j: int, kind: str) -> Tensor:
    """The batch with row j replaced by another kind of example."""
    own = x[j]
    changed = x.clone()
    if kind == "copy":
        changed[j] = x[j - 1]
        return changed
    if kind == "white":
        bright = 1 if float(x.max()) <= 1 else 255
        changed[j] = bright if x.is_floating_point() else x.max()
        return changed
    other = random_rows(x, 1, seed=j + 1)[0]
    if not x.is_floating_point():
        low, high = (torch.full_like(own, int(end)) for end in (x.min(), x.max()))
        row = {"zeros": low, "darker": low, "large": high, CUT: _cut(own, low)}.get(kind, other)
    else:
        row = {
            CUT: lambda: _cut(own, torch.zeros_like(own)),
            "other": lambda: 3 * other,
            "zeros": lambda: torch.zeros_like(own),
            "opposite": lambda: 1 - 7 * own,
            "darker": lambda: 0.5 * own,
            "large": lambda: 1e3 * other,
            "not finite": lambda: torch.full_like(own, float("nan")),
        }[kind]()
    changed[j] = row
    return changed


def _cut(own: Tensor, end: Tensor) -> Tensor:
    """The first half of an example, followed by the second half of `end`."""
    half = own.shape[0] // 2 if own.dim() else 0
    return torch.cat([own[:half], end[half:]]) if own.dim() else end
