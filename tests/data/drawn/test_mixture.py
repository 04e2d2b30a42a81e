"""The mixture of drawn images and its kinds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sfumato.data.drawn import mixture
from sfumato.data.drawn.chance import Chance
from sfumato.data.drawn.clouds import clouds
from sfumato.data.drawn.coordinate_networks import patterns
from sfumato.data.drawn.scaling import coloured


def chance(seed: int = 0) -> Chance:
    return Chance(torch.Generator().manual_seed(seed))


def test_kinds_have_their_shares_in_random_order() -> None:
    def constant(value: float) -> mixture.Painter:
        return lambda n, side, chance: torch.full((n, 3, side, side), value)

    draw = mixture._mixed({constant(0.25): 1.0, constant(0.5): 2.0, constant(0.75): 1.0})
    values = draw(40, 2, chance())[:, 0, 0, 0]
    assert [int((values == v).sum()) for v in (0.25, 0.5, 0.75)] == [10, 20, 10]
    assert not torch.equal(values, values.sort()[0])
    assert [len(draw(n, 2, chance())) for n in (0, 1, 2, 3, 7)] == [0, 1, 2, 3, 7]


@pytest.mark.parametrize("draw", [clouds, patterns])
def test_maps_have_mean_0_and_variance_1(draw: object) -> None:
    maps: Tensor = draw(20, 16, chance(), maps=2)  # type: ignore[operator]
    assert maps.shape == (20, 2, 16, 16) and maps.isfinite().all()
    assert maps.mean((-1, -2)).abs().max() < 1e-3
    assert (maps.std((-1, -2)) - 1).abs().max() < 0.05


def test_steeper_clouds_are_smoother() -> None:
    def roughness(power: float) -> float:
        noise = clouds(30, 32, chance(), maps=1, flattest=power, steepest=power)
        return float(noise.diff(dim=-1).square().mean())

    assert roughness(0.5) > 2 * roughness(1.5) > 4 * roughness(2.5)


def test_colours_are_near_grey_or_vivid() -> None:
    colours = coloured(torch.randn(200, 4, 8, 8, generator=chance().generator), chance(1))
    apart = (colours - colours.mean(1, keepdim=True)).square().mean((1, 2, 3))
    assert (colours.square().mean((1, 2, 3)) - 1).abs().max() < 0.2
    assert (apart < 0.05).any() and (apart > 0.4).any()
