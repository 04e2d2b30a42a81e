"""Clouds: noise whose amplitude falls with a power of the frequency, as in photographs."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sfumato.data.drawn.chance import Chance
from sfumato.data.drawn.scaling import standard

_FLATTEST, _STEEPEST = 0.8, 2.2
"""The powers of clouds: the steeper, the smoother."""


def clouds(
    n: int,
    side: int,
    chance: Chance,
    *,
    maps: int,
    flattest: float = _FLATTEST,
    steepest: float = _STEEPEST,
) -> Tensor:
    """Maps of noise `(n, maps, side, side)` of variance 1, those of half the images stretched."""
    around = 2 * side  # Opposite edges of the noise meet; those of a part of it do not.
    down = torch.fft.fftfreq(around, device=chance.device).unsqueeze(1) * around
    across = torch.fft.rfftfreq(around, device=chance.device) * around
    angle = math.pi * chance.uniform(n, 1, 1, 1)
    stretched = (chance.uniform(n, 1, 1, 1) < 0.5).float()
    stretch = torch.exp(stretched * chance.normal(n, 1, 1, 1).clamp(-2, 2))
    along = across * angle.cos() + down * angle.sin()
    beside = down * angle.cos() - across * angle.sin()
    frequency = (along.square() * stretch + beside.square() / stretch + 1).sqrt()
    power = flattest + (steepest - flattest) * chance.uniform(n, 1, 1, 1)
    spectrum = torch.fft.rfft2(chance.normal(n, maps, around, around)) * frequency**-power
    noise = torch.fft.irfft2(spectrum, s=(around, around))
    return standard(noise[..., :side, :side], (-1, -2))
