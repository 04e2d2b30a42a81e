"""Drawn images of every kind."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sfumato import data
from sfumato.data import drawn
from sfumato.data.catalogue import DRAWN
from sfumato.errors import UserError

every_kind = pytest.mark.parametrize("name", DRAWN)


def images_of(name: str, count: int, *, seed: int = 0, side: int = 16, channels: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return drawn.draw(name, count, side=side, channels=channels, generator=generator)


@every_kind
@pytest.mark.parametrize(
    ("count", "side", "channels"), [(0, 16, 3), (1, 24, 3), (2, 9, 3), (5, 20, 1)]
)
def test_images_have_the_shape_asked_for(name: str, count: int, side: int, channels: int) -> None:
    images = images_of(name, count, side=side, channels=channels)
    assert images.shape == (count, channels, side, side) and images.dtype == torch.uint8


@every_kind
def test_a_seed_decides_everything(name: str) -> None:
    before = torch.get_rng_state()
    assert torch.equal(images_of(name, 3, seed=1), images_of(name, 3, seed=1))
    assert not torch.equal(images_of(name, 3, seed=1), images_of(name, 3, seed=2))
    assert torch.equal(torch.get_rng_state(), before), "nobody else's numbers are used up"


@every_kind
@pytest.mark.parametrize("side", [8, 24])
def test_images_are_all_different_and_show_something(name: str, side: int) -> None:
    """The coarsest texture of 8 pixels is a single number, which has no standard deviation."""
    images = images_of(name, 64, side=side).float()
    flat = images.flatten(1)
    apart = torch.cdist(flat, flat) + 1e9 * torch.eye(64)
    assert apart.min() > 4 * side
    assert images.std((1, 2, 3)).median() > 20
    assert 60 < images.mean() < 195


@every_kind
def test_more_are_drawn_than_go_together(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    paint, _ = drawn._PAINTERS[name]
    monkeypatch.setitem(drawn._PAINTERS, name, (paint, 4))
    images = images_of(name, 10)
    assert len(images) == 10 and len(images.flatten(1).unique(dim=0)) == 10


@every_kind
def test_there_is_nothing_to_load(name: str) -> None:
    with pytest.raises(UserError, match=f"drawn at random while `sfumato pretrain --data {name}"):
        data.load(name)


def test_dead_leaves_are_those_that_the_packaged_start_has_seen() -> None:
    means = images_of("dead-leaves", 3, side=24).float().mean((2, 3))
    then = [[86.6, 128.7, 115.0], [176.9, 193.1, 176.0], [56.9, 37.0, 61.2]]
    torch.testing.assert_close(means, torch.tensor(then), atol=0.2, rtol=0)
