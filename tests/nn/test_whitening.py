"""Whitening of channels."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sfumato.nn.whitening import ChannelWhitening


def mixed(images: int = 50) -> torch.Tensor:
    """Correlated channels of different variances around a mean that is not zero."""
    drawn = torch.randn(images, 6, 5, 4, generator=torch.Generator().manual_seed(0))
    mixing = torch.randn(6, 6, generator=torch.Generator().manual_seed(1))
    return torch.einsum("cd,ndhw->nchw", mixing, drawn) + 3


def test_channels_are_uncorrelated_after_it() -> None:
    x, layer = mixed(), ChannelWhitening(6)
    assert torch.equal(layer(x), x)
    layer.fit(x)
    rows = layer(x).double().transpose(0, 1).flatten(1)
    covariance = rows @ rows.T / rows.shape[1]
    torch.testing.assert_close(rows.mean(1), torch.zeros(6).double(), atol=1e-4, rtol=0)
    scaled = covariance / covariance.diagonal().mean()
    assert (scaled - torch.diag(scaled.diagonal())).abs().max() < 1e-2
    # Directions of little variance are not stretched to the whole.
    assert scaled.diagonal().min() > 0.5 and scaled.diagonal().max() < 1.5


@pytest.mark.parametrize("power", [0.5, 1.0])
def test_the_power_says_how_equal_variances_become(power: float) -> None:
    x, layer = mixed(), ChannelWhitening(6, power=power)
    layer.fit(x)
    before, after = (
        torch.linalg.eigvalsh(torch.cov(t.double().transpose(0, 1).flatten(1)))
        for t in (x, layer(x))
    )
    assert after[-1] / after[0] < (before[-1] / before[0]) ** (1 - power) * 1.6


def test_it_is_not_trained_and_has_the_same_result_for_equal_channels() -> None:
    layer = ChannelWhitening(3)
    assert not any(p.requires_grad for p in layer.parameters())
    grey = torch.rand(8, 1, 4, 4).expand(-1, 3, -1, -1)
    layer.fit(grey)
    assert layer(grey).isfinite().all()
    layer.fit(torch.zeros(2, 3, 1, 1))
    assert layer(grey).isfinite().all()
    assert isinstance(layer, nn.Conv2d)
