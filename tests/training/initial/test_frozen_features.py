"""Frozen layers are run once, and nothing but the time it takes changes."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from short_runs import halves_and_public_run, recipe
from torch import Tensor, nn

from sfumato.data import progress_bar as progress
from sfumato.data.augment import Augment
from sfumato.data.imageset import ImageSet
from sfumato.data.store import ImageStore
from sfumato.data.views import Views
from sfumato.errors import UserError
from sfumato.training import loop
from sfumato.training.classifier import load
from sfumato.training.evaluation import evaluate, evaluate_rows
from sfumato.training.initial.frozen_features import Features, frozen_features, trained_end
from sfumato.training.metrics import read
from sfumato.training.pipeline import train
from sfumato.training.recipe_data import dataset_of
from sfumato.training.run_folder import METRICS

PLAIN = Views(augment=Augment())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two halves of the digits as files, and a public run on one."""
    return halves_and_public_run(tmp_path_factory.mktemp("features"))


def store(channels: int = 2, examples: int = 300) -> ImageStore:
    drawn = np.random.default_rng(0)
    images = drawn.integers(0, 256, (examples, channels, 6, 6), dtype=np.uint8)
    labels = drawn.integers(0, 3, examples)
    constants = [0.5] * channels
    return ImageStore(ImageSet(images, labels), mean=constants, std=constants)


def network(*between: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    parts = OrderedDict[str, nn.Module](
        conv=nn.Conv2d(2, 4, 3), between=nn.Sequential(*between), flatten=nn.Flatten(),
        head=nn.Linear(64, 3),
    )  # fmt: skip
    model = nn.Sequential(parts)
    return model.requires_grad_(False)


class Flat(nn.Module):
    """Centres a batch of images of few colours, which no random image is."""

    def forward(self, x: Tensor) -> Tensor:
        few = len(x.detach()[:, 0].unique()) < 0.5 * x[:, 0].numel()
        return x - x.mean(0) if few and len(x) > 5 else x


def test_fixed_layers_that_mix_real_images_are_refused() -> None:
    drawn = np.random.default_rng(0)
    images = drawn.integers(0, 3, (300, 2, 6, 6), dtype=np.uint8) * 100
    few = ImageStore(ImageSet(images, drawn.integers(0, 3, 300)), mean=[0.5] * 2, std=[0.5] * 2)
    model = nn.Sequential(OrderedDict(first=Flat(), net=network()))
    model.get_submodule("net.head").requires_grad_(True)
    features = Features(model, "net.head", few)
    with pytest.raises(UserError, match="fixed layers"):
        features.gather(torch.arange(4))


def only_head(model: nn.Module) -> nn.Module:
    model.get_submodule("head").requires_grad_(True)
    return model


@pytest.mark.parametrize(
    "extra", [{}, {"privacy.clipping": "per-layer"}, {"privacy.enabled": False}]
)
def test_a_run_is_the_same_as_over_images(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extra: dict[str, Any]
) -> None:
    source = {"start.source": str(place / "public"), "start.train": ["head"], "training.seed": 3}
    chosen, kept, real = recipe(place, "scans", source | extra), [], loop.frozen_features

    def keeping(*arguments: Any) -> Features | None:
        kept.append(real(*arguments))
        return kept[-1]

    monkeypatch.setattr(loop, "frozen_features", keeping)
    train(chosen, out=tmp_path / "once", device="cpu")
    assert [type(found) for found in kept] == [Features]
    monkeypatch.setattr(loop, "frozen_features", lambda *_: None)
    train(chosen, out=tmp_path / "always", device="cpu")
    ours = dict(load(tmp_path / "once").network.named_parameters())
    wanted = dict(load(tmp_path / "always").network.named_parameters())
    for key, value in wanted.items():
        torch.testing.assert_close(ours[key], value, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_a_run_on_fixed_wavelets_is_the_same_as_over_images(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wavelets = {"model.name": "scatternet", "model.options": {"angles": 4}, "training.seed": 3}
    chosen, seen, rows = recipe(place, "scans", wavelets), [], Features._rows

    def watch(self: Features, images: ImageStore, *, check: bool = False) -> tuple[Tensor, Tensor]:
        seen.append(len(images))
        return rows(self, images, check=check)

    monkeypatch.setattr(Features, "_rows", watch)
    train(chosen, out=tmp_path / "once", device="cpu")
    used = dataset_of(chosen.data)
    assert seen == [len(used.train), len(used.test)], "averaged weights use the same features"
    monkeypatch.setattr(loop, "frozen_features", lambda *_: None)
    train(chosen, out=tmp_path / "always", device="cpu")
    ours = dict(load(tmp_path / "once").network.named_parameters())
    wanted = dict(load(tmp_path / "always").network.named_parameters())
    assert ours.keys() == {"head.weight", "head.bias"}
    for key, value in wanted.items():
        torch.testing.assert_close(ours[key], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("before", [(), (nn.Flatten(),)])
def test_images_are_not_kept_twice(before: tuple[nn.Module, ...]) -> None:
    last = nn.Sequential(nn.Flatten(), nn.Linear(72, 4), nn.Tanh(), nn.Linear(4, 3))
    model = nn.Sequential(*before, last)
    assert trained_end(model) == str(len(before))
    assert frozen_features(model, store(), PLAIN) is None
    # Nothing is saved by keeping what a first layer without parameters makes of images...
    assert frozen_features(nn.Sequential(nn.Tanh(), last), store(), PLAIN) is None
    # ... unless a last layer is all that is trained.
    only = nn.Sequential(nn.Tanh(), nn.Flatten(), nn.Linear(72, 3))
    assert frozen_features(only, store(), PLAIN) is not None


def test_held_out_images_pass_the_frozen_layers_once(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = {"start.source": str(place / "public"), "start.train": ["head"], "training.seed": 3}
    watched = {"data.validation": 0.2, "training.log_every": 1, "training.average": 0.5}
    chosen = recipe(place, "scans", source | watched)
    seen: list[int] = []
    held_out = Features.held_out

    def watch(self: Features, images: ImageStore) -> tuple[Tensor, Tensor]:
        assert self._model.training
        rows, labels = held_out(self, images)
        assert self._model.training
        seen.append(len(rows))
        return rows, labels

    monkeypatch.setattr(Features, "held_out", watch)
    train(chosen, out=tmp_path / "once", device="cpu")
    monkeypatch.setattr(loop, "frozen_features", lambda *_: None)
    train(chosen, out=tmp_path / "always", device="cpu")
    ours, wanted = (read(tmp_path / name / METRICS) for name in ("once", "always"))
    used = dataset_of(chosen.data)
    assert used.validation is not None and seen == [len(used.validation), len(used.test)]
    compared = 0
    for one, other in zip(ours, wanted, strict=True):
        for key in one.keys() & {
            "validation_accuracy", "validation_loss", "validation_accuracy_last",
        }:  # fmt: skip
            assert one[key] == pytest.approx(other[key], rel=1e-4)
            compared += 1
    assert compared >= 9


def test_held_out_rows_are_those_of_evaluation() -> None:
    class Scaled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if self.training else 2 * x

    model, images = only_head(network(Scaled())), store()
    kept = Features(model, "head", images)
    rows, labels = kept.held_out(images)
    trained, _ = kept.gather(torch.arange(300))
    torch.testing.assert_close(rows, 2 * trained)
    assert evaluate_rows(kept.end, rows, labels) == pytest.approx(evaluate(model, images), rel=1e-5)


def test_rows_are_what_enters_the_end() -> None:
    model, images = only_head(network(nn.Tanh())), store()
    found = frozen_features(model, images, PLAIN)
    assert found is not None
    assert [name for name, _ in found.end.named_parameters()] == ["head.weight", "head.bias"]
    where = torch.tensor([299, 0, 0, 257])
    x, y = PLAIN.fetch(images, where, PLAIN.draw(4))
    rows, labels = found.gather(where)
    assert torch.equal(labels, y)
    torch.testing.assert_close(found.end(rows), model(x))


def test_slow_layers_say_how_far_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_FIRST_LINE", -1.0)
    monkeypatch.setattr(progress, "_BETWEEN_LINES", -1.0)
    found = frozen_features(only_head(network(nn.Tanh())), store(), PLAIN)
    assert found is not None
    found.gather(torch.tensor([0]))
    found.gather(torch.tensor([1]))
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("fixed layers: 256 of 300, ") and first.endswith("s left")
    assert second.startswith("fixed layers: 300 of 300, ")


def test_the_end_is_the_innermost_module_with_everything_trained() -> None:
    model = network(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 4))
    assert trained_end(model) == ""
    model.between[0][0].bias.requires_grad_(True)  # type: ignore[index, union-attr]
    assert trained_end(model) == "between.0.0"
    model.between[1].requires_grad_(True)  # type: ignore[index]
    assert trained_end(model) == "between"
    assert trained_end(only_head(model)) == ""


class Twice(nn.Sequential):
    """Calls its head twice."""

    def forward(self, x: Tensor) -> Tensor:
        features = self.flatten(self.conv(x))  # type: ignore[operator]
        return self.head(features) + self.head(features)  # type: ignore[no-any-return, operator]


class After(nn.Sequential):
    """Does something after its head."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


@pytest.mark.parametrize("kind", [Twice, After])
def test_a_head_that_is_not_the_end_is_not_taken_for_it(kind: type[nn.Sequential]) -> None:
    model = only_head(kind(OrderedDict(network().named_children())))
    assert frozen_features(model, store(), PLAIN) is None


def test_nothing_is_kept_where_images_or_layers_change() -> None:
    images = store()
    assert frozen_features(only_head(network(nn.Dropout())), images, PLAIN) is None
    model = only_head(network())
    for views in (Views(augment=Augment(flip=True)), Views(augment=Augment(), count=2)):
        assert frozen_features(model, images, views) is None
    assert frozen_features(model.requires_grad_(True), images, PLAIN) is None


class Mixing(nn.Module):
    """Takes away the mean over the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Ranking(nn.Module):
    """Looks at the order of the images."""

    def forward(self, x: Tensor) -> Tensor:
        ranks = x.flatten(1).sum(1).argsort().argsort()
        return x + 0.1 * ranks.view(-1, 1, 1, 1)


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("kind", [Mixing, Ranking])
def test_frozen_layers_that_mix_images_are_refused(kind: type[nn.Module], zero: bool) -> None:
    model = only_head(network(kind()))
    if zero:
        for p in model.get_submodule("head").parameters():
            p.data.zero_()
    found = frozen_features(model, store(), PLAIN)
    assert found is not None
    with pytest.raises(UserError, match="cannot be trained with differential privacy"):
        found.gather(torch.tensor([0]))


def test_the_weights_count_that_there_are_when_the_first_batch_is_asked_for() -> None:
    model, images = only_head(network()), store()
    found = frozen_features(model, images, PLAIN)
    assert found is not None
    with torch.no_grad():
        model.get_parameter("conv.weight").mul_(3)
    where = torch.arange(3)
    x, _ = PLAIN.fetch(images, where, PLAIN.draw(3))
    torch.testing.assert_close(found.end(found.gather(where)[0]), model(x))
