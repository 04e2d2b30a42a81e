"""Layers of exported programs against those that they stand for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sfumato.export.portable_layers import RegionPool, portable
from sfumato.nn.real_scattering import RealScattering
from sfumato.nn.scattering import Scattering


@pytest.mark.parametrize("output", [1, 4, (3, 5), (None, 2), 7])
@pytest.mark.parametrize("size", [(8, 8), (7, 11), (3, 3)])
def test_pooling_in_regions(output: object, size: tuple[int, int]) -> None:
    x = torch.randn(2, 3, *size)
    for layer in (nn.AdaptiveMaxPool2d(output), nn.AdaptiveAvgPool2d(output)):  # type: ignore[arg-type]
        found = portable(nn.Sequential(layer))
        assert type(found[0]) is RegionPool  # type: ignore[index]
        torch.testing.assert_close(found(x), layer(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("size", "scales"), [((28, 28), 2), ((17, 24), 2), ((16, 20), 3)])
def test_scattering_in_real_numbers(size: tuple[int, int], scales: int) -> None:
    waves = Scattering(size, scales=scales, angles=4)
    real = RealScattering.of(waves)
    x = torch.randn(3, 2, *size)
    torch.testing.assert_close(real(x), waves(x), rtol=1e-5, atol=2e-6)


def test_the_network_itself_stays_as_it_is() -> None:
    network = nn.Sequential(nn.Sequential(Scattering((16, 16))), nn.AdaptiveMaxPool2d(2))
    network.train()
    found = portable(network)
    assert type(network[0][0]) is Scattering and network[1].training
    assert type(found[0][0]) is RealScattering and not found.training  # type: ignore[index]
