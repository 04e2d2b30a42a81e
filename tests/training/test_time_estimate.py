"""A run that takes hours on a CPU says what takes less."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torch import Tensor, nn

from sfumato import recipes
from sfumato.data import Views
from sfumato.data.augment import Augment
from sfumato.recipe import parse_setting
from sfumato.recipes.choice import Quick, quick_choice
from sfumato.text import QUICK, QUICK_GREY
from sfumato.training import instead, setup, time_estimate
from sfumato.training.pipeline import train
from sfumato.training.recipe_data import dataset_of
from sfumato.training.reporter import Silent


class Listening(Silent):
    """Hears what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, message: str) -> None:
        self.said.append(message)


def test_what_takes_minutes_is_advised() -> None:
    chosen = recipes.for_data("my scans")
    assert time_estimate.about_time(9000.0) == "Estimated time on this CPU: 2.5 h."
    for grey, name in ((False, "last-layer"), (True, "last-layer-grey")):
        last = instead.advice(chosen, grey=grey).splitlines()[-1]
        assert last == f"  sfumato train {name} --data 'my scans' --epsilon 8"
        words = instead.exchanged(chosen, grey=grey)
        assert f"recipe '{name}' is taken" in words
        assert "sfumato train images --data 'my scans' --epsilon 8" in words
    last = recipes.find("last-layer")
    assert last.start.train == ["head"] and last.start.source == "drawn-mixture"
    for quick in map(recipes.find, (QUICK, QUICK_GREY, "wavelets")):
        assert quick.training.views == 1 and not quick.augment.flip, "layers would not run once"


def test_the_command_for_another_recipe_has_the_same_images_and_unit() -> None:
    data = {"data.unit": "patient", "data.unit_pattern": "(?P<unit>P\\d+)", "data.bits": 12}
    chosen = recipes.for_data("scans").replace(data | {"data.channels": 3, "data.window": [40, 80]})
    said = instead.command(chosen, "images")
    again = shlex.split(said)
    assert again[:7] == ["sfumato", "train", "images", "--data", "scans", "--epsilon", "8"]
    given = dict(zip(again[7::2], again[8::2], strict=True))
    assert (given["--unit"], given["--unit-pattern"]) == ("patient", "(?P<unit>P\\d+)")
    settings = [parse_setting(word) for word in again if word.startswith("data.")]
    assert dict(settings) == {"data.bits": 12, "data.window": [40, 80]}


def test_only_a_recipe_that_nobody_chose_is_exchanged(tmp_path: Path) -> None:
    folder = str(tmp_path)
    budget = {"privacy.epsilon": 3.0, "data.size": 32}
    for asked in ((folder, None, budget), (None, folder, budget | {"data.name": folder})):
        quick = quick_choice(*asked)
        assert quick is not None
        assert quick.make(True).model.options["reads"] == ["conv3", "wavelets"]
        found = quick.make(False)
        assert (found.name, found.data.name) == ("last-layer", folder)
        assert (found.privacy.epsilon, found.data.size) == (3.0, 32)
    for asked in (
        ("images", folder, {"data.name": folder}),
        (folder, None, {"model.name": "resnet9"}),
        (folder, None, {"training.steps": 10}),
        (folder, None, {"start.source": "dead-leaves"}),
        (None, None, {}),
    ):
        assert quick_choice(*asked) is None


@pytest.mark.parametrize(("private", "few"), [(True, True), (True, False), (False, True)])
def test_with_few_examples_the_quick_recipe_is_taken(
    private: bool, few: bool, tmp_path: Path
) -> None:
    asked: list[tuple[int, float, bool]] = []

    def better(examples: int, epsilon: float, grey: bool) -> bool:
        asked.append((examples, epsilon, grey))
        return few

    whole = recipes.find("digits").replace({"privacy.enabled": private, "training.steps": 1})
    smaller = whole.replace({"name": "smaller"})
    watching = Listening()
    train(
        whole, out=tmp_path / "run", device="cpu", reporter=watching,
        quick=Quick(lambda grey: smaller if grey else whole, better),
    )  # fmt: skip
    taken = private and few
    assert recipes.of_run(tmp_path / "run").name == ("smaller" if taken else "digits")
    assert any("With 1,438 training examples" in words for words in watching.said) == taken
    assert asked == ([(1438, whole.privacy.epsilon, True)] if private else [])


def test_the_estimate_grows_with_the_work() -> None:
    """A layer that sleeps makes the time known, whatever else the machine does."""

    class Sleeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(64, 10)

        def forward(self, x: Tensor) -> Tensor:
            time.sleep(0.01 * len(x))
            out: Tensor = self.head(x.flatten(1))
            return out

    chosen = recipes.find("digits").replace({"training.steps": 1000, "training.batch": 100})
    data = dataset_of(chosen.data)
    plan = setup.plan(chosen, data.train.examples)
    once = 0.01 * (len(data.train) + len(data.test))
    found = time_estimate.seconds_on_cpu(Sleeps(), plan, data, setup.views(chosen))
    assert once <= found <= 10 * once, "all but the last layer run once for each image"
    flipped = Views(augment=Augment(flip=True), count=2)
    always = 0.01 * 1000 * 100 * 2
    assert always <= time_estimate.seconds_on_cpu(Sleeps(), plan, data, flipped) <= 10 * always


def test_a_run_that_takes_hours_is_exchanged_for_a_quick_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    for label in ("ill", "well"):
        (tmp_path / "scans" / label).mkdir(parents=True)
        for number in range(12):
            grey = Image.fromarray(rng.integers(0, 255, (8, 8)).astype(np.uint8))
            grey.save(tmp_path / "scans" / label / f"{number}.png")
    monkeypatch.setattr(time_estimate, "LONG", 0.0)
    monkeypatch.setattr(time_estimate, "SHORT", 0.0)
    watching = Listening()
    folder = str(tmp_path / "scans")
    chosen = recipes.for_data(folder, {"model.name": "tanh-cnn"})
    changes = {"model.name": "tanh-cnn", "data.channels": 3, "data.cache": False}
    steps = {"training.steps": 3, "training.batch": 4, "privacy.delta": 1e-3}
    train(chosen.replace(changes | steps), out=tmp_path / "run", device="cpu", reporter=watching)
    assert any("sfumato train last-layer " in words for words in watching.said)
    assert any(words.startswith("Estimated time") for words in watching.said)

    quick = quick_choice(folder, None, {"data.cache": False})
    assert quick is not None and quick.make(False).model.options["reads"] == ["conv3"]
    smaller = chosen.replace(changes | steps | {"name": "smaller"})
    watching.said.clear()
    (tmp_path / "scans" / "ill" / "notes.txt").write_text("no image")
    train(
        chosen.replace(changes | steps), out=tmp_path / "other", device="cpu", reporter=watching,
        quick=Quick(lambda grey: smaller, better=lambda *given: False),
    )  # fmt: skip
    assert recipes.of_run(tmp_path / "other").name == "smaller"
    assert any("name its recipe" in words for words in watching.said)
    assert sum("Ignored: " in words for words in watching.said) == 1, "the data is read twice"


def test_grey_images_are_grey_before_they_are_shown_to_a_network_of_colour(tmp_path: Path) -> None:
    digits = dataset_of(recipes.find("digits").data).train
    np.savez(tmp_path / "grey.npz", images=digits.images[:60], labels=digits.labels[:60])
    asked: list[tuple[int, float, bool]] = []

    def better(examples: int, epsilon: float, grey: bool) -> bool:
        asked.append((examples, epsilon, grey))
        return True

    whole = recipes.for_data(str(tmp_path / "grey.npz"), {"data.cache": False})
    assert whole.start.source == "dead-leaves"
    smaller = recipes.find("digits").replace({"training.steps": 1})
    quick = Quick(lambda grey: smaller if grey else whole, better)
    train(whole, out=tmp_path / "run", device="cpu", reporter=Listening(), quick=quick)
    assert [grey for _, _, grey in asked] == [True]
