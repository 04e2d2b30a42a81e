"""Grey images after a start on colour ones: they are shown in three equal channels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sfumato import data
from sfumato.data.adapt import adapt
from sfumato.errors import UserError
from sfumato.privacy.ledger import read
from sfumato.recipe import Recipe
from sfumato.recipes import find
from sfumato.training import run_folder
from sfumato.training.classifier import load
from sfumato.training.initial import start
from sfumato.training.loop import Stopped
from sfumato.training.pipeline import resume, train
from sfumato.training.reporter import Progress, Silent


class Listening(Silent):
    """Hears what is said, and may stop the run after its first step."""

    def __init__(self, *, stop: bool = False) -> None:
        self.said: list[str] = []
        self.stop = stop

    def say(self, message: str) -> None:
        self.said.append(message)

    def show(self, progress: Progress) -> None:
        if self.stop and progress.step == 1:
            raise KeyboardInterrupt


@pytest.fixture(scope="module", params=[pytest.param("uint8", marks=pytest.mark.slow), "uint16"])
def scans(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of grey images of two classes."""
    folder = tmp_path_factory.mktemp("scans") / "scans"
    rng, top = np.random.default_rng(0), np.iinfo(request.param).max
    for label in ("ill", "well"):
        (folder / label).mkdir(parents=True)
        for number in range(20):
            grey = rng.integers(0, top, (8, 8)).astype(request.param)
            Image.fromarray(grey).save(folder / label / f"{number}.png")
    return folder


def chosen(scans: Path, **changes: object) -> Recipe:
    return find("images").replace(
        {
            "data.name": str(scans), "model.name": "eq-resnet9-d4", "start.source": "dead-leaves",
            "training.steps": 2, "training.batch": 2, "training.views": 1, "training.seed": 1,
            "training.checkpoint_every": 1, **changes,
        }
    )  # fmt: skip


@pytest.mark.slow  # test_middle_layer trains on grey images too.
def test_grey_images_are_trained_in_three_equal_channels(scans: Path, tmp_path: Path) -> None:
    watching = Listening()
    train(chosen(scans), out=tmp_path / "run", device="cpu", reporter=watching)
    assert any("three equal channels" in words for words in watching.said)
    header, _ = read(tmp_path / "run" / run_folder.LEDGER)
    assert "16 of 18 parameters were taken from 'dead-leaves'" in header["start"]["words"]
    assert header["recipe"]["data"]["channels"] == 3
    described = load(tmp_path / "run").description
    assert (described.channels, described.mean) == (3, (0.5, 0.5, 0.5))


def test_a_stated_number_of_channels_is_not_overruled(scans: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not match this run's model"):
        train(chosen(scans, **{"data.channels": 1}), out=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_the_images_are_those_that_a_resumed_run_loads(scans: Path) -> None:
    changed = adapt(data.load(str(scans)), size=None, channels=3)
    loaded = data.load(str(scans), channels=3)
    assert np.array_equal(changed.train.images, loaded.train.images)
    assert (changed.mean, changed.std) == (loaded.mean, loaded.std)


@pytest.mark.slow
@pytest.mark.parametrize("scans", ["uint16"], indirect=True)
def test_an_interrupted_run_ends_where_it_would_have(scans: Path, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    train(chosen(scans), out=whole, device="cpu")
    with pytest.raises((Stopped, KeyboardInterrupt)):
        train(chosen(scans), out=cut, device="cpu", reporter=Listening(stop=True))
    resume(cut, device="cpu")
    assert (cut / run_folder.WEIGHTS).read_bytes() == (whole / run_folder.WEIGHTS).read_bytes()


def test_a_misspelt_start_is_guessed(scans: Path) -> None:
    recipe = chosen(scans, **{"start.source": "dead-leafs"})
    with pytest.raises(UserError, match=r"no run folder or weights file .* mean 'dead-leaves'\?"):
        start.open_donor(recipe)
