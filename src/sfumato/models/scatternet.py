"""A linear classifier on fixed wavelets (Tramèr and Boneh, 2021).

Only the last layer is trained, and no privacy is spent on features. docs/initialisation.md compares
it with other methods for few images.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from sfumato import nn as layers
from sfumato.errors import UserError
from sfumato.models.registry import register
from sfumato.nn import Init
from sfumato.nn.scattering import Scattering
from sfumato.nn.whitening import ChannelWhitening

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
    whiten: float = 0.0,
    init: Init = "torch",
) -> nn.Module:
    """Scattering coefficients of two scales, normalised in groups, and a linear layer.

    The linear layer alone is trained: images that are not augmented pass the wavelets once. With
    `whiten` coefficients are whitened, from 0 for not at all to 1, by statistics of drawn images.
    """
    parts, features = wavelet_features(
        size, channels=channels, angles=angles, groups=groups, whiten=whiten
    )
    parts["head"] = nn.Linear(features, classes)
    return layers.initialise(nn.Sequential(parts), init)


def wavelet_features(
    size: tuple[int, int],
    *,
    channels: int,
    angles: int = 8,
    groups: int = 27,
    whiten: float = 0.0,
) -> tuple[OrderedDict[str, nn.Module], int]:
    """Layers from images to normalised scattering coefficients in one row, and their number.

    Args:
        size: Height and width of the images.
        channels: Number of channels; each is transformed by itself.
        angles: Number of angles of wavelets.
        groups: Groups in which coefficients are normalised, if that divides their number.
        whiten: Power of whitening, from 0 to 1.
    """
    waves = Scattering(size, scales=2, angles=angles)
    features = channels * waves.coefficients
    height, width = (min(positions, _GRID) for positions in waves.grid)
    parts = OrderedDict[str, nn.Module](
        scattering=waves,
        pool=nn.AdaptiveAvgPool2d((height, width)),
        norm=nn.GroupNorm(layers.divisor(features, groups), features, affine=False),
    )
    parts.update(whitened(features, whiten))
    parts["flatten"] = nn.Flatten()
    return parts, features * height * width


def whitened(features: int, power: float) -> OrderedDict[str, nn.Module]:
    """Layers that whiten channels and normalise the result over the image; none for a power of 0.

    Raises:
        UserError: If the power is not from 0 to 1.
    """
    if not 0 <= power <= 1:
        raise UserError(f"The option 'whiten' is {power:g}, but must be from 0 to 1.")
    parts = OrderedDict[str, nn.Module]()
    if power:
        parts["whitening"] = ChannelWhitening(features, power=power)
        parts["scale"] = nn.GroupNorm(1, features, affine=False)
    return parts
