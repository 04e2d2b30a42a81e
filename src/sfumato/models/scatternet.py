"""A linear classifier on fixed wavelets (Tramèr and Boneh, 2021).

Only the last layer is trained, and no privacy is spent on features. docs/initialisation.md compares
it with other methods for few images.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from sfumato import nn as layers
from sfumato.models.registry import register
from sfumato.nn import Init
from sfumato.nn.scattering import Scattering

_GRID = 8
"""Most spatial positions along a side that the linear layer sees, so that it stays small."""


@register("scatternet", paper="Tramèr and Boneh (2021)", minimum=8)
def scatternet(
    *,
    classes: int,
    channels: int,
    size: tuple[int, int],
    angles: int = 8,
    groups: int = 27,
    init: Init = "torch",
) -> nn.Module:
    """Scattering coefficients of two scales, normalised in groups, and a linear layer.

    The linear layer alone is trained: images that are not augmented pass the wavelets once.
    """
    waves = Scattering(size, scales=2, angles=angles)
    features = channels * waves.coefficients
    height, width = (min(positions, _GRID) for positions in waves.grid)
    parts = OrderedDict[str, nn.Module](
        scattering=waves,
        pool=nn.AdaptiveAvgPool2d((height, width)),
        norm=nn.GroupNorm(layers.divisor(features, groups), features, affine=False),
        flatten=nn.Flatten(),
        head=nn.Linear(features * height * width, classes),
    )
    return layers.initialise(nn.Sequential(parts), init)
