"""Whitening of channels by statistics of other images than those that are trained on."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_LEAST = 1e-3
"""Smallest variance over the largest that counts: directions with less are not stretched more."""


class ChannelWhitening(nn.Conv2d):
    """A 1x1 convolution that gives combinations of channels more equal variances.

    Neighbouring channels of a trained layer say much the same, so that most of an image's features,
    and of the gradient that clipping bounds, lies in few directions. The layer is the identity
    until `fit`, and is not trained.

    Args:
        channels: Number of channels.
        power: 1 for uncorrelated channels of one variance, 0 for no change, or between.
    """

    def __init__(self, channels: int, *, power: float = 1.0) -> None:
        super().__init__(channels, channels, 1)
        self.power = power
        with torch.no_grad():
            nn.init.dirac_(self.weight)
            nn.init.zeros_(self.bias)  # type: ignore[arg-type]
        self.requires_grad_(False)

    @torch.no_grad()
    def fit(self, x: Tensor) -> None:
        """Set the layer by the mean and the covariance of channels over images and positions.

        The privacy statement counts nothing for it: the images must be public or drawn.

        Args:
            x: Inputs of the layer, `(images, channels, height, width)`.
        """
        rows = x.double().transpose(0, 1).flatten(1)
        mean = rows.mean(1)
        rows = rows - mean.unsqueeze(1)
        variances, directions = torch.linalg.eigh(rows @ rows.T / rows.shape[1])
        largest = variances[-1].clamp_min(torch.finfo(torch.float64).tiny)
        scales = (variances.clamp_min(0) / largest + _LEAST).pow(-self.power / 2)
        matrix = directions * scales @ directions.T
        self.weight.copy_(matrix.unsqueeze(-1).unsqueeze(-1))
        assert self.bias is not None
        self.bias.copy_(-matrix @ mean)

    def extra_repr(self) -> str:
        """Channels and power."""
        return f"{self.in_channels}, power={self.power}"
