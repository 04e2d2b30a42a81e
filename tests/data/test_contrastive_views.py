"""Views for contrastive training: each of its own image, by its own random numbers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sfumato.data.contrastive_views import NUMBERS, change


def neutral(n: int) -> Tensor:
    """Numbers of a view that shows all of the image as it is."""
    numbers = torch.full((n, NUMBERS), 0.5)
    numbers[:, 0], numbers[:, 4] = 1.0, 0.9
    return numbers


@pytest.mark.parametrize("channels", [1, 3])
def test_a_view_may_be_the_image_itself(channels: int) -> None:
    images = torch.rand(4, channels, 12, 12)
    same = change(images, neutral(4), size=(12, 12))
    assert torch.allclose(same, images, atol=1e-5)
    mirrored = neutral(4)
    mirrored[:, 4] = 0.1
    assert torch.allclose(change(images, mirrored, size=(12, 12)), images.flip(-1), atol=1e-5)


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10_000), channels=st.sampled_from([1, 3]), n=st.integers(1, 6))
def test_a_view_depends_on_its_own_image_and_numbers(seed: int, channels: int, n: int) -> None:
    torch.manual_seed(seed)
    images, numbers = torch.rand(n, channels, 12, 12), torch.rand(n, NUMBERS)
    views = change(images, numbers, size=(8, 6))
    assert views.shape == (n, channels, 8, 6)
    assert views.min() >= 0 and views.max() <= 1
    for row in range(n):
        alone = change(images[row : row + 1], numbers[row : row + 1], size=(8, 6))
        assert torch.allclose(alone[0], views[row], atol=1e-6)


def test_some_views_are_grey_and_some_keep_their_colours() -> None:
    torch.manual_seed(0)
    image = torch.rand(1, 3, 8, 8).expand(400, 3, 8, 8)
    numbers = neutral(400)
    numbers[:, 5:] = torch.rand(400, NUMBERS - 5)
    views = change(image, numbers, size=(8, 8))
    grey = (views.amax(1) - views.amin(1)).flatten(1).amax(1) < 1e-6
    kept = (views - image).flatten(1).abs().amax(1) < 1e-5
    assert 0.13 < grey.float().mean() < 0.27
    assert 0.1 < kept.float().mean() < 0.23  # the fifth whose colours stay, but for the grey
