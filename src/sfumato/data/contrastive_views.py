"""Two random views of an image for contrastive training: cropped, mirrored and recoloured.

The augmentations of Chen et al. (2020), from which a network learns features without labels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.data import drawn
from sfumato.data.catalogue import LUMA
from sfumato.data.imageset import Dataset, ImageSet

NUMBERS = 13
"""Random numbers of a view."""

_SMALLEST = 0.15
"""The smallest fraction of an image that a view shows."""
_STRETCH = 0.8
"""Range of the logarithm of a crop's width over its height."""
_COLOURED, _GREY = 0.8, 0.2
"""Probabilities that a view has other colours, and that it is grey."""


def change(images: Tensor, numbers: Tensor, *, size: tuple[int, int]) -> Tensor:
    """One view of each image.

    Args:
        images: `(n, C, H, W)` floats from 0 to 1.
        numbers: `(n, NUMBERS)` uniform from 0 to 1; 0.5 everywhere leaves the colours alone.
        size: Height and width of the views.
    """
    parts = _part(images, numbers[:, :5], size)
    return _recoloured(parts, numbers[:, 5:]) if images.shape[1] == 3 else _relit(parts, numbers)


def _part(images: Tensor, numbers: Tensor, size: tuple[int, int]) -> Tensor:
    """A rectangle of the image, mirrored at random and resized."""
    area, ratio, right, below, mirrored = numbers.unbind(1)
    area, ratio = _SMALLEST + (1 - _SMALLEST) * area, torch.exp(_STRETCH * (ratio - 0.5))
    wide, high = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    x, y = (1 - wide) * (2 * right - 1), (1 - high) * (2 * below - 1)
    zero = torch.zeros_like(wide)
    sign = torch.where(mirrored < 0.5, -1.0, 1.0)
    rows = torch.stack([wide * sign, zero, x, zero, high, y], 1).view(-1, 2, 3)
    grid = F.affine_grid(rows, [len(images), images.shape[1], *size], align_corners=False)
    return F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)


def _recoloured(images: Tensor, numbers: Tensor) -> Tensor:
    """The images with other saturation, contrast, brightness and tint, or grey."""
    n = numbers.view(len(images), -1, 1, 1, 1).unbind(1)
    on = (n[0] < _COLOURED).to(images.dtype)
    luma = torch.tensor(LUMA, device=images.device, dtype=images.dtype).view(1, 3, 1, 1)
    grey = (images * luma).sum(1, keepdim=True)
    images = torch.lerp(grey, images, 1 + on * (1.2 * n[1] - 0.6))
    tint = 1 + 0.15 * on * (2 * torch.cat(n[4:7], 1) - 1)
    images = _light(images, on, n[2], n[3]) * tint
    grey = (images * luma).sum(1, keepdim=True)
    return torch.where(n[7] > 1 - _GREY, grey, images).clamp(0, 1)


def _relit(images: Tensor, numbers: Tensor) -> Tensor:
    n = numbers[:, 5:].view(len(images), -1, 1, 1, 1).unbind(1)
    return _light(images, (n[0] < _COLOURED).to(images.dtype), n[2], n[3]).clamp(0, 1)


def _light(images: Tensor, on: Tensor, contrast: Tensor, brightness: Tensor) -> Tensor:
    mean = images.mean((1, 2, 3), keepdim=True)
    images = torch.lerp(mean, images, 1 + on * (0.8 * contrast - 0.4))
    return images * (1 + on * (0.8 * brightness - 0.4))


def samples(
    name: str, count: int = 10, *, side: int = 48, channels: int = 3, seed: int = 0
) -> Dataset:
    """Some drawn images and two views of each, as a data set to display."""
    generator = torch.Generator().manual_seed(seed)
    images = drawn.draw(name, count, side=side, channels=channels, generator=generator)
    numbers = torch.rand(2 * count, NUMBERS, generator=generator)
    views = change(torch.cat([images, images]) / 255, numbers, size=(side, side))
    shown = torch.cat([images, (views * 255).round().to(torch.uint8)])
    labels = torch.arange(3).repeat_interleave(count)
    part = ImageSet(shown.numpy(), labels.numpy())
    mean, std = (drawn.MEAN,) * channels, (drawn.STD,) * channels
    classes = ("drawn", "one view", "another view")
    return Dataset(name, classes, part, part, None, mean, std)
