"""Whitening layers that are fitted to drawn images when a run begins."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import sfumato
from sfumato import models, recipes
from sfumato.data import drawn
from sfumato.nn.whitening import ChannelWhitening
from sfumato.training.initial.drawn_statistics import fit_whitening, fitted_names
from thinning import with_slow

CONSTANTS = {"mean": (0.5,), "std": (0.25,)}


def network(**options: object) -> nn.Module:
    torch.manual_seed(0)
    return models.create(
        "scatternet", classes=2, channels=1, size=(16, 12), angles=2, whiten=1.0, **options
    )


def test_channels_of_drawn_images_are_whitened() -> None:
    model, seen = network(), []
    layer = model.get_submodule("whitening")
    assert isinstance(layer, ChannelWhitening)
    layer.register_forward_hook(lambda module, args, out: seen.append(out))
    fit_whitening(model, channels=1, size=(16, 12), **CONSTANTS)
    assert model.training, "the mode is as before"
    seen.clear()
    with torch.no_grad():
        generator = torch.Generator().manual_seed(5)
        other = drawn.draw("dead-leaves", 300, side=16, channels=1, generator=generator)
        model((other[..., :12].float() / 255 - 0.5) / 0.25)
    rows = torch.cat(seen).transpose(0, 1).flatten(1)
    covariance = torch.cov(rows)
    apart = covariance - torch.diag(covariance.diagonal())
    assert apart.abs().max() < 0.3 * covariance.diagonal().mean(), "other drawn images are too"


def test_the_same_images_are_drawn_each_time() -> None:
    first, again = network(), network()
    for seed, model in enumerate((first, again)):
        torch.manual_seed(seed)
        fit_whitening(model, channels=1, size=(16, 12), **CONSTANTS)
        assert fitted_names(model) == ["whitening.weight", "whitening.bias"]
    name = "whitening.weight"
    assert torch.equal(first.get_parameter(name), again.get_parameter(name))
    assert not torch.equal(first.get_parameter(name), network().get_parameter(name))
    assert fitted_names(nn.Sequential(nn.Conv2d(3, 3, 1))) == []


@pytest.mark.parametrize("channels", with_slow([1, 3], 1))
def test_a_run_states_what_was_fitted_and_never_sees_its_images_for_it(
    tmp_path: Path, channels: int
) -> None:
    found = []
    for fill in (0, 1):
        rng = np.random.default_rng(fill)
        images = rng.integers(0, 60 + 190 * fill, (40, 12, 12, channels), np.uint8)
        file = tmp_path / f"scans{fill}.npz"
        np.savez(file, train_images=images[:30], train_labels=np.arange(30) % 2,
                 test_images=images[30:], test_labels=np.arange(10) % 2)  # fmt: skip
        options = {"reads": ["conv3", "wavelets"], "grid": 2, "whiten": 0.5}
        recipe = recipes.find("last-layer").replace(
            {
                "data.name": str(file), "training.steps": 2, "training.batch": 4,
                "model.options": options, "privacy.delta": 1e-3, "training.seed": fill,
            }
        )  # fmt: skip
        run = sfumato.train(recipe, out=tmp_path / f"run{fill}", device="cpu")
        network = sfumato.load(tmp_path / f"run{fill}").network
        names = fitted_names(network)
        assert len(names) == 4
        found.append([network.get_parameter(name).detach() for name in names])
        if fill:  # A run with such layers can be started from, too.
            follows = {"start.source": str(tmp_path / "run0"), "start.same_data": False}
            follows |= {"start.reset": ["head"], "training.seed": 7}
            sfumato.train(recipe.replace(follows), out=tmp_path / "next", device="cpu")
        assert run.verify().private
        said = (tmp_path / f"run{fill}" / "statement.md").read_text(encoding="utf-8")
        assert "fitted to images that the program draws: readers.conv3.whitening.weight" in said
    for first, second in zip(*found, strict=True):
        assert torch.equal(first, second), "other images, the same layer"
        assert first.abs().max() > 0
