"""Analyses of a linear classifier on fixed wavelets."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from sfumato import models
from sfumato.analysis.activation_statistics import activations_of
from sfumato.analysis.cost import cost_of
from sfumato.analysis.curvature import Hessian
from sfumato.analysis.trained_part import trained_part
from sfumato.nn.scattering import Scattering


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(0)
    return models.create("scatternet", classes=3, channels=1, size=(16, 16), angles=2).eval()


def test_wavelets_have_no_residual_blocks(network: nn.Module) -> None:
    found = activations_of(network, torch.randn(8, 1, 16, 16))
    assert not found.residuals
    assert [layer.name for layer in found.layers] == ["norm"]


def test_the_cost_counts_the_wavelets(network: nn.Module) -> None:
    cost = cost_of(network, (1, 16, 16))
    by_name = {layer.name: layer.macs for layer in cost.layers}
    head = network.get_submodule("head")
    assert isinstance(head, nn.Linear)
    assert by_name["head"] == head.in_features * head.out_features
    assert by_name["scattering"] > 0 and cost.elsewhere == 0
    assert cost.macs == by_name["scattering"] + by_name["head"]
    two = cost_of(models.create("scatternet", classes=3, channels=2, size=(16, 16), angles=2),
                  (2, 16, 16))  # fmt: skip
    of_wavelets = [layer.macs for layer in two.layers if layer.name == "scattering"]
    assert of_wavelets == [2 * by_name["scattering"]]


def test_the_formula_counts_each_transform() -> None:
    """Two scales and one angle, written out: grids of 24, 12 and 6 positions along a side."""
    n, half, quarter = 24**2, 12**2, 6**2

    def fourier(positions: int) -> int:
        return round(2 * positions * math.log2(positions))

    smooth = [2 * n + fourier(quarter), 2 * half + fourier(quarter)]
    first = (2 * n + 2 * fourier(n)) + smooth[0]
    second = (2 * n + 2 * fourier(half)) + smooth[1]
    pair = (2 * n + 2 * fourier(half)) + smooth[1]
    whole = fourier(n) + smooth[0] + first + second + pair
    assert Scattering((16, 16), scales=2, angles=1).macs == whole


def test_the_hessian_of_the_trained_part_is_that_of_the_network(network: nn.Module) -> None:
    x, y = torch.randn(6, 1, 16, 16), torch.tensor([0, 1, 2, 0, 1, 2])
    part, inputs = trained_part(network, x)
    assert part is not network and inputs.shape[0] == 6
    ours, whole = Hessian(part, inputs, y), Hessian(network, x, y)
    vector = torch.randn(whole.size, generator=torch.Generator().manual_seed(1))
    assert ours.size == whole.size
    torch.testing.assert_close(ours @ vector, whole @ vector, rtol=1e-4, atol=1e-6)


def test_a_network_that_is_trained_throughout_is_taken_whole() -> None:
    model = models.create("tanh-cnn", classes=3, channels=1, size=(8, 8)).eval()
    x = torch.randn(4, 1, 8, 8)
    part, inputs = trained_part(model, x)
    assert part is model and inputs is x
