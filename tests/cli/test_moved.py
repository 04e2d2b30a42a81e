"""Runs whose data is no longer where the recipe says: `--data` names another place."""

from __future__ import annotations

import html
import shutil
from pathlib import Path

import numpy as np
import pytest
from cli_result import Run, refused

from sfumato import recipes
from sfumato.training.classifier import load
from sfumato.training.loop import Loop
from sfumato.training.recipe_data import images_of
from tiny_run import train_run

OTHER_PLACE = "--data names another place"


@pytest.fixture
def run(sfumato: Run) -> Run:
    return lambda *words: sfumato(*words, "--device", "cpu")


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run on images that were beside it, and where these are now."""
    before, after = tmp_path_factory.mktemp("before"), tmp_path_factory.mktemp("after")
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (150, 8, 8), dtype=np.uint8)
    np.savez(before / "few.npz", images=images, labels=np.arange(150) % 3)
    with pytest.MonkeyPatch.context() as there:
        there.chdir(before)
        train_run(Path("run"), {"data.name": "./few.npz", "training.seed": 1})
    shutil.move(before / "run", after / "run")
    shutil.move(before / "few.npz", after / "few-moved.npz")
    return after / "run", after / "few-moved.npz"


def test_analyze(run: Run, places: tuple[Path, Path]) -> None:
    folder, data = places
    refused(run("analyze", folder, "--only", "calibration"), "'./few.npz'", OTHER_PLACE)
    result = run("analyze", folder, "--only", "calibration", "--data", data)
    assert result.code == 0, result.err
    assert "Brier score" in result.out and "has changed since training" not in result.err


def test_analyze_a_run_that_has_not_finished(
    run: Run, places: tuple[Path, Path], tmp_path: Path
) -> None:
    folder, data = places
    half = tmp_path / "half"
    shutil.copytree(folder, half)
    for name in ("model.safetensors", "statement.md"):
        (half / name).unlink()
    refused(run("analyze", half, "--only", "cost"), OTHER_PLACE)
    result = run("analyze", half, "--only", "cost", "--data", data)
    assert result.code == 0, result.err
    assert "has not finished" in result.err


def test_resume(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = np.random.default_rng(0).integers(0, 256, (150, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "few.npz", images=images, labels=np.arange(150) % 3)
    original = Loop.take_step

    def failing(self: Loop) -> object:
        if self.step == 2:
            raise RuntimeError("the power is cut")
        return original(self)

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="power"):
        patch.setattr(Loop, "take_step", failing)
        changes = {"data.name": str(tmp_path / "few.npz"), "training.checkpoint_every": 1}
        train_run(tmp_path / "run", changes)
    (tmp_path / "few.npz").rename(tmp_path / "moved.npz")
    refused(run("train", "--resume", tmp_path / "run"), "--data says where it is now")
    other = images.copy()
    other[0] = 0
    np.savez(tmp_path / "other.npz", images=other, labels=np.arange(150) % 3)
    result = run("train", "--resume", tmp_path / "run", "--data", tmp_path / "other.npz")
    refused(result, "not the ones the run started with")
    result = run("train", "--resume", tmp_path / "run", "--data", tmp_path / "moved.npz")
    assert result.code == 0, result.err
    stated = load(tmp_path / "run").description.guarantee["exposures"]
    assert [exposure["data"] for exposure in stated] == ["few"]


@pytest.mark.parametrize(("verb", "file"), [("report", "page.html"), ("card", "card.md")])
def test_report_and_card(
    run: Run, places: tuple[Path, Path], tmp_path: Path, verb: str, file: str
) -> None:
    folder, data = places
    without = run(verb, folder, "-o", f"no-{file}")
    assert without.code == 0 and OTHER_PLACE in without.err
    assert OTHER_PLACE in (tmp_path / f"no-{file}").read_text(encoding="utf-8")
    refused(run(verb, folder, "-o", file, "--data", "nowhere"), "called 'nowhere'")
    assert not (tmp_path / file).exists()
    result = run(verb, folder, "-o", file, "--data", data)
    assert result.code == 0 and "Note: " not in result.err
    text = (tmp_path / file).read_text(encoding="utf-8")
    held = len(images_of(recipes.of_run(folder), data=str(data)).test)
    named = {"report": "On the test set of", "card": f"On {held} test images of"}[verb]
    assert f"{named} 'few-moved" in html.unescape(text) and OTHER_PLACE not in text


def test_other_images_are_not_taken_for_those_of_the_run(
    run: Run, places: tuple[Path, Path], tmp_path: Path
) -> None:
    folder, _ = places
    images = np.random.default_rng(7).integers(0, 256, (150, 12, 12), dtype=np.uint8)
    np.savez(tmp_path / "other.npz", images=images, labels=np.repeat([0, 1, 2], [10, 20, 120]))
    result = run("card", folder, "-o", "card.md", "--data", "other.npz")
    assert result.code == 0, result.err
    text = (tmp_path / "card.md").read_text(encoding="utf-8")
    assert "on the test set of 'other" in text and "not those of then" in text
    assert "type: brier_score" not in text
