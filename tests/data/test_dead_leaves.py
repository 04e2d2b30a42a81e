"""Drawn images, and views of them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sfumato import data
from sfumato.data import dead_leaves, pairs
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


def test_images_are_all_different_and_show_something() -> None:
    images = drawn(64, side=24).float()
    flat = images.flatten(1)
    apart = torch.cdist(flat, flat) + 1e9 * torch.eye(64)
    assert apart.min() > 100
    assert images.std((1, 2, 3)).median() > 20
    assert 60 < images.mean() < 195


def test_more_are_drawn_than_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_leaves, "_TOGETHER", 4)
    images = drawn(10)
    assert len(images) == 10 and len(images.flatten(1).unique(dim=0)) == 10


def test_there_is_nothing_to_load() -> None:
    with pytest.raises(UserError, match="drawn at random while `sfumato pretrain --data dead-lea"):
        data.load("dead-leaves")


def neutral(n: int) -> Tensor:
    """Numbers of a view that shows all of the image as it is."""
    numbers = torch.full((n, pairs.NUMBERS), 0.5)
    numbers[:, 0], numbers[:, 4] = 1.0, 0.9
    return numbers


@pytest.mark.parametrize("channels", [1, 3])
def test_a_view_may_be_the_image_itself(channels: int) -> None:
    images = torch.rand(4, channels, 12, 12)
    same = pairs.change(images, neutral(4), size=(12, 12))
    assert torch.allclose(same, images, atol=1e-5)
    mirrored = neutral(4)
    mirrored[:, 4] = 0.1
    assert torch.allclose(pairs.change(images, mirrored, size=(12, 12)), images.flip(-1), atol=1e-5)


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10_000), channels=st.sampled_from([1, 3]), n=st.integers(1, 6))
def test_a_view_depends_on_its_own_image_and_numbers(seed: int, channels: int, n: int) -> None:
    torch.manual_seed(seed)
    images, numbers = torch.rand(n, channels, 12, 12), torch.rand(n, pairs.NUMBERS)
    views = pairs.change(images, numbers, size=(8, 6))
    assert views.shape == (n, channels, 8, 6)
    assert views.min() >= 0 and views.max() <= 1
    for row in range(n):
        alone = pairs.change(images[row : row + 1], numbers[row : row + 1], size=(8, 6))
        assert torch.allclose(alone[0], views[row], atol=1e-6)


def test_some_views_are_grey_and_some_keep_their_colours() -> None:
    torch.manual_seed(0)
    image = torch.rand(1, 3, 8, 8).expand(400, 3, 8, 8)
    numbers = neutral(400)
    numbers[:, 5:] = torch.rand(400, pairs.NUMBERS - 5)
    views = pairs.change(image, numbers, size=(8, 8))
    grey = (views.amax(1) - views.amin(1)).flatten(1).amax(1) < 1e-6
    kept = (views - image).flatten(1).abs().amax(1) < 1e-5
    assert 0.13 < grey.float().mean() < 0.27
    assert 0.1 < kept.float().mean() < 0.23  # the fifth whose colours stay, but for the grey
