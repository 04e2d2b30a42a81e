"""Dead leaves: images that a program draws at random, for initial weights without real images.

A network that has learned to tell such images apart has useful filters and depends on nobody's data
(Baradad et al., 2021, "Learning to see by looking at noise"; Tang et al., 2023, use them before
private training). The images are *dead leaves*: shapes of all sizes that occlude each other, as
objects do in photographs. Each shape is filled with a colour, a shade and a texture, and the
textures come from random networks of oriented filters, one network for each image.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.data.catalogue import DRAWN, LUMA
from sfumato.data.progress_bar import progress

NAME = DRAWN

MEAN, STD = 0.5, 0.25
"""Mean and standard deviation for their normalisation."""

_TOGETHER = 512
"""Number of images drawn at once; they share textures."""
_LEAVES = 3, 40
"""Fewest and most shapes in an image."""
_LEVELS = 4
"""Scales of a texture, each twice as fine as the one before."""
_FILTERS, _KERNEL = 12, 5
"""Filters of a random network, and their side."""


@dataclass(frozen=True)
class _Chance:
    """Random numbers from one generator, on its device."""

    generator: torch.Generator

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, device=self.generator.device)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator, device=self.generator.device)

    def whole(self, below: int) -> int:
        return int(torch.randint(below, (), generator=self.generator, device=self.device))

    def order(self, count: int) -> Tensor:
        return torch.randperm(count, generator=self.generator, device=self.device)

    @property
    def device(self) -> torch.device:
        return self.generator.device


def draw(count: int, *, side: int, channels: int = 3, generator: torch.Generator) -> Tensor:
    """Draw images.

    Args:
        count: The number of images.
        side: Their height and width.
        channels: 3, or 1 for grey.
        generator: Source of all randomness; its device does the work.

    Returns:
        `(count, channels, side, side)` uint8, on the generator's device.
    """
    chance = _Chance(generator)
    parts = [torch.zeros(0, channels, side, side, dtype=torch.uint8, device=chance.device)]
    with progress("drawing", count) as advance:
        for first in range(0, count, _TOGETHER):
            images = _pile(min(_TOGETHER, count - first), side, chance)
            if channels == 1:
                weights = torch.tensor(LUMA, device=images.device).view(1, 3, 1, 1)
                images = (images * weights).sum(1, keepdim=True)
            parts.append((images * 255).round().to(torch.uint8))
            advance(len(images))
    return torch.cat(parts)


def _texture(n: int, side: int, chance: _Chance) -> Tensor:
    """Textures: for each image a random network of oriented filters, from coarse to fine."""
    width = _FILTERS
    normal, uniform = chance.normal, chance.uniform
    coarse = -(-side // 2 ** (_LEVELS - 1))
    x = normal(n, width, coarse, coarse)
    colours = torch.zeros(n, 3, coarse, coarse, device=chance.device)
    line = torch.linspace(-1, 1, _KERNEL, device=chance.device)
    down, across = torch.meshgrid(line, line, indexing="ij")
    for level in range(_LEVELS):
        if level:
            x = F.interpolate(x, scale_factor=2, mode="bilinear")
            colours = 0.9 * F.interpolate(colours, scale_factor=2, mode="bilinear")
        angle, phase = math.pi * uniform(n, width, 1, 1, 1), math.tau * uniform(n, width, 1, 1, 1)
        along = across * angle.cos() + down * angle.sin()
        beside = down * angle.cos() - across * angle.sin()
        wave = torch.cos((1.5 + 4.5 * uniform(n, width, 1, 1, 1)) * along + phase)
        narrow = 0.3 + 2 * uniform(n, width, 1, 1, 1)
        gabor = wave * torch.exp(-2 * along.square() - narrow * beside.square())
        gabor = gabor / gabor.norm(dim=(-1, -2), keepdim=True)
        strength = 0.2 + 2 * uniform(n, 1, width, 1, 1).square()
        kernels = normal(n, width, width, 1, 1) * strength * gabor / width**0.5
        here, edge = x.shape[-1], _KERNEL // 2
        padded = F.pad(x, (edge,) * 4, mode="replicate")
        x = F.conv2d(
            padded.reshape(1, n * width, here + 2 * edge, here + 2 * edge),
            kernels.reshape(n * width, width, _KERNEL, _KERNEL),
            groups=n,
        ).view(n, width, here, here)
        x = _standard(x, (-1, -2))
        grain = 0.7 * uniform(n, width, 1, 1) ** 3 * normal(n, width, here, here)
        x = F.leaky_relu(x + grain + 0.7 * normal(n, width, 1, 1), 0.1)
        mixing = normal(n, 3, width) * (0.3 + uniform(n, 1, 1)) / width**0.5
        colours = colours + torch.einsum("noc,nchw->nohw", mixing, x)
    colours = _standard(colours[..., :side, :side], (1, 2, 3))
    grey = colours.mean(1, keepdim=True)
    return (grey + (0.2 + uniform(n, 1, 1, 1)) * (colours - grey)) * (
        0.1 + 0.2 * uniform(n, 1, 1, 1)
    )


def _standard(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    several = math.prod(x.shape[dim] for dim in dims) > 1
    std = x.std(dims, keepdim=True, correction=int(several))  # Of one number it is 0, not NaN.
    return (x - x.mean(dims, keepdim=True)) / (std + 1e-3)


def _pile(n: int, side: int, chance: _Chance) -> Tensor:
    """Shapes over a background, from 0 to 1; the first are at the bottom and are the largest."""
    normal, uniform = chance.normal, chance.uniform
    textures = _texture(n, side, chance)
    rough = 1.2 * uniform(n, 1, 1, 1)
    vivid = 0.05 + 0.2 * uniform(n, 1, 1, 1)
    tone = vivid * normal(n, 3, 1, 1)

    def paint(m: int) -> Tensor:
        return 0.5 + 0.28 * normal(m, 1, 1, 1) + vivid[:m] * normal(m, 3, 1, 1)

    few, most = _LEAVES
    # Sort images by their number of shapes, so that those without a next shape can be skipped.
    leaves = few * torch.exp(uniform(n).sort(descending=True)[0] * math.log(most / few))
    counts = [int(count) for count in (leaves.unsqueeze(1) > torch.arange(most).to(leaves)).sum(0)]
    leaves = leaves.view(n, 1, 1)
    least = 0.05 + 0.1 * uniform(n, 1, 1) * (leaves < 12)
    images = paint(n) + tone + rough * textures
    for number, m in enumerate(counts):
        if not m:
            break
        largest = 0.65 - 0.4 * number / most
        cover, dx, dy, radius = _shape(m, side, chance, least[:m], largest, leaves[:m])
        shade = 0.12 * ((dx * normal(m, 1, 1) + dy * normal(m, 1, 1)) / radius).unsqueeze(1)
        shift = chance.whole(side)
        texture = textures[chance.order(n)[:m]].roll((shift, shift // 2), (-1, -2))
        fill = paint(m) + tone[:m] * (uniform(m, 1, 1, 1) < 0.5) + shade
        fill = fill + 1.6 * uniform(m, 1, 1, 1) * rough[:m] * texture
        images[:m] = torch.lerp(images[:m], fill, cover.unsqueeze(1))
    grain = 0.04 * uniform(n, 1, 1, 1) * normal(n, 3, side, side)
    return (images + grain).clamp(0, 1)


def _shape(
    n: int, side: int, chance: _Chance, least: Tensor, largest: float, leaves: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One shape per image: its coverage of each pixel, the pixels' coordinates, its radius."""
    uniform = chance.uniform
    line = torch.arange(side, device=chance.device) + 0.5
    down, across = torch.meshgrid(line, line, indexing="ij")
    # Radii are distributed as in photographs: their density falls with the cube.
    spread = least**-2 - uniform(n, 1, 1) * (least**-2 - largest**-2)
    radius = side * spread**-0.5 * (1 + (leaves < 8))
    turn, long = math.tau * uniform(n, 1, 1), 0.45 + 0.55 * uniform(n, 1, 1)
    dx, dy = across - side * uniform(n, 1, 1), down - side * uniform(n, 1, 1)
    dx, dy = (
        (dx * turn.cos() + dy * turn.sin()) * long,
        (dy * turn.cos() - dx * turn.sin()) / long,
    )
    angle, distance = torch.atan2(dy, dx), torch.hypot(dx, dy)
    lobes = 2 + (4 * uniform(n, 1, 1)).floor()
    bump = 0.25 * uniform(n, 1, 1) * torch.cos((lobes + 1) * angle + math.tau * uniform(n, 1, 1))
    blob = 1 + 0.45 * uniform(n, 1, 1) * torch.cos(lobes * angle) + bump
    half = math.pi / (lobes + 1)
    polygon = half.cos() / torch.cos(torch.remainder(angle, 2 * half) - half)
    edge = torch.where(uniform(n, 1, 1) < 0.6, blob, polygon)
    sharp = 0.6 + 2.5 * uniform(n, 1, 1)
    return torch.sigmoid((radius * edge - distance) * sharp), dx, dy, radius
