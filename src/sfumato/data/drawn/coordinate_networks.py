"""Patterns that small random networks compute from the coordinates of a pixel.

Waves, folds, steps and stars of the coordinates, mixed by random weights in a few layers
(compositional pattern-producing networks, Stanley, 2007), over a plane that clouds bend.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sfumato.data.drawn.chance import Chance
from sfumato.data.drawn.clouds import clouds
from sfumato.data.drawn.scaling import standard

_WIDTH, _LAYERS = 16, 4
"""Units of a layer, and the number of layers."""
_BEND = 0.25
"""The most that clouds shift a coordinate, whose range is -1 to 1."""


def patterns(n: int, side: int, chance: Chance, *, maps: int) -> Tensor:
    """Patterns `(n, maps, side, side)` of variance 1, of one network for each image."""
    normal, uniform = chance.normal, chance.uniform
    units = _coordinates(n, side, chance)
    gain = 0.7 + 0.8 * uniform(n, 1, 1) ** 2
    for layer in range(_LAYERS):
        fan_in = units.shape[-1]
        weights = normal(n, fan_in, _WIDTH) / fan_in**0.5
        weights = weights * gain * (0.5 + 1.2 * uniform(n, 1, _WIDTH) ** 2)
        sums = units @ weights + 0.5 * normal(n, 1, _WIDTH)
        out = _activated(sums, (6 * uniform(n, 1, _WIDTH)).floor())
        units = torch.cat([out, units], -1) if layer == 1 else out
    mixed = units @ (normal(n, _WIDTH, maps) / _WIDTH**0.5)
    return standard(mixed.mT.reshape(n, maps, side, side), (-1, -2))


def _coordinates(n: int, side: int, chance: Chance) -> Tensor:
    """Coordinates of each pixel, `(n, pixels, 6)`: on axes, from a centre, of a star, and 1."""
    line = torch.linspace(-1, 1, side, device=chance.device)
    down, across = torch.meshgrid(line, line, indexing="ij")
    plane = torch.stack([across, down], -1).view(1, -1, 2).expand(n, -1, -1)
    turn, zoom = math.tau * chance.uniform(n, 1), torch.exp(0.7 * chance.normal(n, 1, 1))
    rows = [turn.cos(), turn.sin()], [-turn.sin(), turn.cos()]
    turned = torch.stack([torch.cat(row, 1) for row in rows], 1)
    plane = (plane - 0.5 * chance.normal(n, 1, 2)) @ turned * zoom
    bent = clouds(n, side, chance, maps=2, flattest=1.8, steepest=2.8).view(n, 2, -1).mT
    plane = plane + _BEND * chance.uniform(n, 1, 1) ** 2 * bent
    distance = plane.norm(dim=-1, keepdim=True)
    angle = torch.atan2(plane[..., 1:], plane[..., :1])
    rays = (1 + 5 * chance.uniform(n, 1, 1)).floor() * angle
    return torch.cat([plane, distance, rays.cos(), rays.sin(), torch.ones_like(distance)], -1)


def _activated(x: Tensor, kind: Tensor) -> Tensor:
    """The sums of each unit, through the function of its kind from 0 to 5."""
    functions = (
        torch.sin(2 * x), torch.tanh(3 * x), x.abs() - 0.5, 2 * torch.exp(-2 * x.square()) - 1,
        4 * (torch.remainder(0.6 * x, 1) - 0.5).abs() - 1, 2 * torch.sigmoid(14 * x) - 1,
    )  # fmt: skip
    out = torch.zeros_like(x)
    for number, values in enumerate(functions):
        out = torch.where(kind == number, values, out)
    return out
