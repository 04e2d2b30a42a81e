"""Predictions averaged over views of an image."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sfumato.data import prediction_views as test_time
from sfumato.errors import UserError
from sfumato.recipe import Recipe


@pytest.mark.parametrize(("kind", "count"), [("none", 1), ("flip", 2), ("shifts", 5), ("all", 10)])
def test_views_are_the_image_and_what_is_near_it(kind: str, count: int) -> None:
    x = torch.randn(3, 2, 32, 30)
    views = list(test_time.views(x, kind))
    assert len(views) == count
    assert all(view.shape == x.shape for view in views)
    assert torch.equal(views[0], x)
    if kind in ("flip", "all"):
        assert torch.equal(views[count // 2], x.flip(3))
    if kind in ("shifts", "all"):
        assert torch.equal(views[1][..., :-2], x[..., 2:])
        assert torch.equal(views[2][..., 2:], x[..., :-2])
        assert torch.equal(views[3][:, :, :-2], x[:, :, 2:])
        assert torch.equal(views[4][:, :, 2:], x[:, :, :-2])


def test_small_images_are_not_shifted() -> None:
    x = torch.randn(2, 1, 8, 8)
    assert [torch.equal(view, x) for view in test_time.views(x, "shifts")] == [True]
    assert len(list(test_time.views(x, "all"))) == 2


def test_outputs_are_averaged() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(768, 3))
    x = torch.randn(5, 3, 16, 16)
    wanted = torch.stack([network(view) for view in test_time.views(x, "all")]).mean(0)
    torch.testing.assert_close(test_time.averaged(network, x, "all"), wanted)
    assert torch.equal(test_time.averaged(network, x, "none"), network(x))
    assert test_time.averaged(network, x[:0], "all").shape == (0, 3)


def test_a_symmetric_network_gains_nothing_from_mirror_images() -> None:
    x = torch.randn(2, 3, 8, 8)
    network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2))
    torch.testing.assert_close(test_time.averaged(network, x, "flip"), network(x))


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match="none of none, flip"):
        list(test_time.views(torch.zeros(1, 1, 4, 4), "rotate"))


def test_recipes_offer_all_kinds() -> None:
    for kind in test_time.CHOICES:
        assert Recipe().replace({"training.test_views": kind}).training.test_views == kind
    with pytest.raises(UserError, match=", ".join(test_time.CHOICES)):
        Recipe().replace({"training.test_views": "rotate"})
