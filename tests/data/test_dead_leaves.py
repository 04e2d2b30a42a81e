"""Drawn images."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sfumato import data
from sfumato.data import dead_leaves
from sfumato.errors import UserError


def drawn(count: int, *, seed: int = 0, side: int = 16, channels: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return dead_leaves.draw(count, side=side, channels=channels, generator=generator)


@pytest.mark.parametrize(("count", "side", "channels"), [(0, 16, 3), (1, 24, 3), (5, 20, 1)])
def test_images_have_the_shape_asked_for(count: int, side: int, channels: int) -> None:
    images = drawn(count, side=side, channels=channels)
    assert images.shape == (count, channels, side, side) and images.dtype == torch.uint8


def test_a_seed_decides_everything() -> None:
    before = torch.get_rng_state()
    assert torch.equal(drawn(3, seed=1), drawn(3, seed=1))
    assert not torch.equal(drawn(3, seed=1), drawn(3, seed=2))
    assert torch.equal(torch.get_rng_state(), before), "nobody else's numbers are used up"


@pytest.mark.parametrize("side", [8, 24])
def test_images_are_all_different_and_show_something(side: int) -> None:
    """The coarsest texture of 8 pixels is a single number, which has no standard deviation."""
    images = drawn(64, side=side).float()
    flat = images.flatten(1)
    apart = torch.cdist(flat, flat) + 1e9 * torch.eye(64)
    assert apart.min() > 4 * side
    assert images.std((1, 2, 3)).median() > 20
    assert 60 < images.mean() < 195


def test_more_are_drawn_than_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_leaves, "_TOGETHER", 4)
    images = drawn(10)
    assert len(images) == 10 and len(images.flatten(1).unique(dim=0)) == 10


def test_there_is_nothing_to_load() -> None:
    with pytest.raises(UserError, match="drawn at random while `sfumato pretrain --data dead-lea"):
        data.load("dead-leaves")
