"""Features of fixed layers are computed once for runs with the same network and images."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from short_runs import halves_and_public_run, recipe
from torch import nn

from sfumato.data.imageset import ImageSet
from sfumato.data.store import ImageStore
from sfumato.training import tune
from sfumato.training.classifier import load
from sfumato.training.initial.frozen_features import Features
from sfumato.training.initial.shared_features import sharing_features
from sfumato.training.pipeline import train


def store(
    *, changed: bool = False, label: int = 0, mean: float = 0.5, examples: int = 300
) -> ImageStore:
    drawn = np.random.default_rng(0)
    images = drawn.integers(0, 255, (examples, 2, 6, 6), dtype=np.uint8)
    labels = drawn.integers(0, 3, examples)
    images[-1, -1, -1, -1] += changed
    labels[-1] = label
    return ImageStore(ImageSet(images, labels), mean=[mean] * 2, std=[0.5] * 2)


def network(*, seed: int = 0, stride: int = 1, head: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    conv = nn.Conv2d(2, 4, 3, stride=stride, padding=stride // 2)
    width = 4 * conv(torch.zeros(1, 2, 6, 6))[0, 0].numel()
    torch.manual_seed(head)
    parts = OrderedDict(conv=conv, flatten=nn.Flatten(), head=nn.Linear(width, 3))
    model = nn.Sequential(parts).requires_grad_(False)
    model.head.requires_grad_(True)
    return model


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of images whose features were computed."""
    found: list[int] = []
    rows = Features._rows

    def counted(self: Features, of: ImageStore, *, check: bool = False):
        found.append(len(of))
        return rows(self, of, check=check)

    monkeypatch.setattr(Features, "_rows", counted)
    return found


def gathered(model: nn.Module, images: ImageStore):
    return Features(model, "head", images).gather(torch.arange(len(images)))


def test_equal_networks_and_images_share(computed: list[int]) -> None:
    alone = gathered(network(), store())
    with sharing_features():
        first = gathered(network(), store())
        again = gathered(network(head=2), store())  # The end's weights do not matter.
        with sharing_features():  # A context within another is the same one.
            assert gathered(network(), store())[0] is not None
    assert computed == [300, 300]
    for found in (first, again):
        assert all(torch.equal(a, b) for a, b in zip(found, alone, strict=True))
    gathered(network(), store())  # Nothing is kept after the context.
    assert computed == [300, 300, 300]


@pytest.mark.parametrize(
    ("model", "images"),
    [
        ({"seed": 1}, {}),
        ({"stride": 2}, {}),
        ({}, {"changed": True}),
        ({}, {"label": 1}),
        ({}, {"mean": 0.4}),
        ({}, {"examples": 299}),
    ],
)
def test_others_do_not(computed: list[int], model: dict, images: dict) -> None:
    alone = gathered(network(**model), store(**images))
    del computed[:]
    with sharing_features():
        gathered(network(), store())
        found = gathered(network(**model), store(**images))
    assert len(computed) == 2
    assert all(torch.equal(a, b) for a, b in zip(found, alone, strict=True))


def test_settings_that_no_description_shows_are_noticed(computed: list[int]) -> None:
    class Turned(nn.Flatten):
        sign = 1.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(self.sign * x)

    def turned(sign: float) -> nn.Module:
        model = network()
        model.flatten = Turned()
        model.flatten.sign = sign
        return model

    with sharing_features():
        first, second = gathered(turned(1.0), store()), gathered(turned(-1.0), store())
    assert len(computed) == 2 and torch.equal(second[0], -first[0])


def test_classes_of_one_name_are_told_apart(computed: list[int]) -> None:
    """They may differ on images that come after those that are compared."""

    def squashed(limit: float) -> nn.Module:
        class Squashed(nn.Flatten):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return super().forward(x).clamp(max=limit)

        model = network()
        model.flatten = Squashed()
        return model

    with sharing_features():
        for limit in (100.0, 99.0):  # No feature is as large.
            gathered(squashed(limit), store())
    assert len(computed) == 2


def test_parametrised_networks_share(computed: list[int]) -> None:
    """Each of their modules has a class that is made for it alone."""

    def parametrised() -> nn.Module:
        model = network()
        nn.utils.parametrizations.weight_norm(model.conv)
        return model.requires_grad_(False).train()

    def only_head(model: nn.Module) -> nn.Module:
        model.head.requires_grad_(True)
        return model

    with sharing_features():
        first, second = (gathered(only_head(parametrised()), store()) for _ in range(2))
    assert len(computed) == 1 and torch.equal(first[0], second[0])


def test_only_the_newest_network_is_kept(computed: list[int]) -> None:
    with sharing_features():
        for seed in (0, 1, 0):
            gathered(network(seed=seed), store())
    assert len(computed) == 3


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two halves of the digits as files, and a public run on one."""
    return halves_and_public_run(tmp_path_factory.mktemp("shared"))


def test_runs_of_tune_are_those_of_runs_alone(place: Path, computed: list[int]) -> None:
    settings = {
        "start.source": str(place / "public"),
        "start.train": ["head"],
        "data.validation": 0.2,
        "training.seed": 3,
    }
    chosen = recipe(place, "scans", settings)
    rates = [0.5, 1.0]
    found = tune.tune(chosen, {"optimizer.lr": rates}, out=place / "tuned", device="cpu")
    assert len(found) == 2 and len(computed) == 2  # Of training and of validation images.
    for rate, trial in zip(rates, found, strict=True):
        alone = train(
            chosen.replace({"optimizer.lr": rate, "data.test": False}),
            out=place / f"{rate}",
            device="cpu",
        )
        same = load(alone).state_dict()
        for name, t in load(place / "tuned" / trial.folder).state_dict().items():
            assert torch.equal(t, same[name]), name
