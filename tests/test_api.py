"""`sfumato.train` and its siblings, with data and models given as objects in Python."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import sfumato
from sfumato.errors import UserError
from sfumato.training.reporter import Progress, Silent

DIGITS = sfumato.data.load("digits")
IMAGES, LABELS = DIGITS.train.images[:400], DIGITS.train.labels[:400]
SHORT: dict[str, Any] = {"training.steps": 3, "training.batch": 40, "device": "cpu", "seed": 0}


def network(classes: int = 10) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(144, classes)
    )


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> sfumato.Run:
    """A run with a module and arrays of its own."""
    folder = tmp_path_factory.mktemp("api") / "run"
    return sfumato.train(
        (IMAGES, LABELS), model=network(), epsilon=2, recipe="from-scratch", out=folder, **SHORT
    )


def test_a_run_holds_all_that_the_example_names(own: sfumato.Run, tmp_path: Path) -> None:
    assert own.guarantee is not None and own.guarantee.spent <= 2 and own.verify() is own.guarantee
    assert own.accuracy is not None and own.metrics
    assert own.classifier.predict(torch.from_numpy(IMAGES[:3])).shape == (3, 10)
    page = own.report(tmp_path / "r.html").read_text(encoding="utf-8")
    assert "Sequential" in page and "cannot be used" not in page
    alone = sfumato.open(own.folder).report(tmp_path / "s.html").read_text(encoding="utf-8")
    assert "given as an object in Python" in alone


def test_an_own_model_is_named_in_recipe_and_statement(own: sfumato.Run) -> None:
    assert own.recipe.model.name == "python:torch.nn.modules.container.Sequential"
    assert own.recipe.data.name == "python:arrays"
    assert "given as an object in Python" in own.statement
    assert "torch.nn.modules.container.Sequential" in own.statement


def test_arrays_and_a_file_of_them_give_the_same_weights(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", images=IMAGES, labels=LABELS)
    changes = SHORT | {"model": "tanh-cnn", "epsilon": 2.0}
    a = sfumato.train((IMAGES, LABELS), out=tmp_path / "a", **changes)
    b = sfumato.train(tmp_path / "x.npz", out=tmp_path / "b", **changes)
    assert a.recipe.name == b.recipe.name == "from-scratch"
    assert a.accuracy == b.accuracy and a.records == b.records


def test_a_finished_run_opens_with_its_model_only(own: sfumato.Run) -> None:
    with pytest.raises(UserError, match=r"given as an object .*sfumato.open\(folder, model="):
        _ = sfumato.open(own.folder).classifier
    with pytest.raises(UserError, match=r"do not fit"):
        sfumato.load(own.folder, trust_code=[network(9)])
    again = sfumato.open(own.folder, model=network)
    assert again.guarantee is not None and again.accuracy == own.accuracy
    x = torch.from_numpy(IMAGES[:5])
    assert torch.equal(again.classifier.predict(x), own.classifier.predict(x))
    with pytest.raises(UserError, match=r"give them again, as in `sfumato.open\(folder, data="):
        _ = again.dataset
    assert len(sfumato.open(own.folder, model=network, data=(IMAGES, LABELS)).dataset.train)
    assert not sfumato.open(own.folder).problems


def test_other_images_than_the_run_s_are_noted(own: sfumato.Run) -> None:
    other = sfumato.open(own.folder, model=network, data=(255 - IMAGES, LABELS))
    assert len(other.dataset.train) and "has changed since training" in other.notes[-1]


class _Stop(Silent):
    """Ends a run after two steps, as a crash would."""

    def show(self, progress: Progress) -> None:
        if progress.step == 2:
            raise KeyboardInterrupt


def test_an_interrupted_run_goes_on_with_its_objects_alone(tmp_path: Path) -> None:
    data, given = (IMAGES, LABELS), SHORT | {"epsilon": 2, "training.checkpoint_every": 1}
    model = network()
    whole = sfumato.train(data, model=model, out=tmp_path / "whole", **given)
    assert torch.equal(model[0].weight, network()[0].weight)  # A copy was trained.
    with pytest.raises(KeyboardInterrupt):
        sfumato.train(data, model=network(), out=tmp_path / "cut", reporter=_Stop(), **given)
    cut = sfumato.open(tmp_path / "cut")
    for words, objects in {
        r"sfumato.open\(folder, data=": {"model": network()},
        r"model=\.\.\.": {"data": data},
        "training images or their labels are not": {
            "model": network(), "data": (IMAGES, LABELS[::-1])
        },
        "does not fit the model": {"model": nn.Sequential(nn.Flatten(), nn.Linear(64, 10)),
                                   "data": data},
    }.items():  # fmt: skip
        with pytest.raises(UserError, match=words):
            cut.resume(device="cpu", **objects)
    done = cut.resume(device="cpu", model=network(), data=data)
    x = torch.from_numpy(IMAGES[:5])
    assert torch.equal(done.classifier.predict(x), whole.classifier.predict(x))


def test_initial_weights_of_a_run_without_checkpoints_are_checked(tmp_path: Path) -> None:
    data, given = (IMAGES, LABELS), SHORT | {"epsilon": 2}
    with pytest.raises(KeyboardInterrupt):
        sfumato.train(data, model=network(), out=tmp_path / "cut", reporter=_Stop(), **given)
    for path in (tmp_path / "cut" / "checkpoints").iterdir():
        path.unlink()
    cut, other = sfumato.open(tmp_path / "cut"), network()
    nn.init.zeros_(other[-1].weight)
    with pytest.raises(UserError, match="other initial weights"):
        cut.resume(device="cpu", model=other, data=data)
    assert cut.resume(device="cpu", model=network(), data=data).finished


class Narrow(nn.Module):
    """A class that a model is made of."""

    def __init__(self, classes: int, size: tuple[int, int]) -> None:
        super().__init__()
        self.layer = nn.Linear(size[0] * size[1], classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.flatten(1))


@pytest.mark.parametrize("model", [Narrow, lambda classes, channels, size: Narrow(classes, size)])
def test_a_function_or_class_makes_the_model(model: Any, tmp_path: Path) -> None:
    run = sfumato.train((IMAGES, LABELS), model=model, epsilon=2, out=tmp_path / "r", **SHORT)
    assert run.accuracy is not None and run.classifier.network.layer.in_features == 64


def test_settings_data_and_recipes_are_those_of_the_command(tmp_path: Path) -> None:
    views = {"training.views": 2, "model.options": {"filters": 4}}
    run = sfumato.train("digits", epsilon=np.float32(2), out=tmp_path / "a", **SHORT, **views)
    assert run.recipe.name == "digits" and run.recipe.training.views == 2
    assert run.recipe.privacy.epsilon == 2
    with pytest.raises(UserError, match="the registered model 'tanh-cnn': leave model= out"):
        _ = sfumato.open(run.folder, model=network()).classifier
    recipe = sfumato.recipes.find("digits").replace(views)
    other = sfumato.train(recipe, epsilon=2, out=tmp_path / "b", **SHORT)
    assert run.records == other.records


@pytest.mark.slow
def test_without_a_model_the_packaged_weights_are_the_start(tmp_path: Path) -> None:
    run = sfumato.train((IMAGES, LABELS), epsilon=2, out=tmp_path / "r", **SHORT)
    assert run.recipe.name == "images" and run.recipe.start.source == "dead-leaves"
    assert run.verify().spent <= 2


class Mixing(Narrow):
    """A network whose outputs depend on the whole batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x - x.mean(0))


def images_without_labels() -> Any:
    return torch.utils.data.TensorDataset(torch.from_numpy(IMAGES))


REFUSED: dict[str, Callable[[], dict[str, Any]]] = {
    "epsilon ('privacy.epsilon') must be": lambda: {"epsilon": "3"},
    "'privacy.epsilon') must be greater than 0": lambda: {"epsilon": -1},
    "has no labels": lambda: {"data": images_without_labels()},
    "the train labels hold -1": lambda: {"data": (IMAGES, LABELS - 1)},
    "Did you mean 'views'": lambda: {"training.veiws": 2},
    "Did you mean 'training.epochs'": lambda: {"epochs": 2},
    "must return (2, 10)": lambda: {"model": network(7)},
    "cannot take images of 1 channels": lambda: {"model": nn.Conv2d(3, 4, 3)},
    "There is no model 'resnet-9'": lambda: {"model": "resnet-9"},
    "model is 3: give a model's name": lambda: {"model": 3},
    "device 'meta', which hold no numbers": lambda: {"model": network().to("meta")},
    "BatchNorm": lambda: {"model": nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(),
                                                 nn.Linear(64, 10))},
    "cannot be trained with differential privacy": lambda: {"model": Mixing},
    "has no parameter to train": lambda: {"model": nn.Flatten()},
    "needs a value for its argument 'width'": lambda: {"model": lambda classes, width: None},
    "would mean nothing": lambda: {"epsilon": 3, "privacy.enabled": False},
    "model.options mean nothing": lambda: {"model": network(), "model.options": {"a": 1}},
    "is a run.": lambda: {"data": "run"},
    "both the first argument": lambda: {"data": sfumato.Recipe(), "recipe": "digits"},
    "There is no folder or file": lambda: {"data": "./scnas"},
    "There is no recipe 'imags'": lambda: {"recipe": "imags"},
    "recipe=3 is not understood": lambda: {"recipe": 3},
    "out=3 is not understood": lambda: {"out": 3},
    "root=3 is not understood": lambda: {"root": 3},
    "device=None is not understood": lambda: {"device": None},
    "trust_code='code' is not understood": lambda: {"trust_code": "code"},
    "reporter=3 cannot be told": lambda: {"reporter": 3},
    "There is no data": lambda: {"data": None},
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
def test_a_mistake_is_one_sentence_and_leaves_no_folder(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    Path("run/recipe.toml").touch()
    given = {"data": (IMAGES, LABELS), "out": tmp_path / "out", **SHORT} | REFUSED[words]()
    with pytest.raises(UserError) as caught:
        sfumato.train(given.pop("data"), **given)
    assert words.lower() in str(caught.value).lower()
    assert not (tmp_path / "out").exists()


class _OnGPU(nn.Linear):
    """A module that says that it is on a GPU."""

    def parameters(self, recurse: bool = True) -> Any:
        yield type("P", (), {"device": torch.device("cuda")})


def test_a_module_on_another_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"is on cuda, but the run trains on cpu: give device="):
        sfumato.train((IMAGES, LABELS), model=_OnGPU(1, 1), device="cpu")
