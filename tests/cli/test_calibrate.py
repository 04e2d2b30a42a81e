"""`sfumato calibrate` as a user types it."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_result import Run, refused

from sfumato.data import load
from tiny_run import train_run

CPU = ("--device", "cpu")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with validation images; the tests leave it as it was."""
    changes = {"data.validation": 0.2, "training.seed": 0, "training.steps": 20}
    return train_run(tmp_path_factory.mktemp("runs") / "run", changes)


def files_of(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}


def rows_of(name: str) -> list[dict[str, Any]]:
    return list(csv.DictReader(Path(name).read_text(encoding="utf-8").splitlines()))


def test_a_temperature_comes_is_used_and_goes(sfumato: Run, trained: Path) -> None:
    files = files_of(trained)
    np.savez("some.npz", images=np.random.default_rng(0).integers(0, 256, (9, 8, 8), np.uint8))
    sfumato("predict", trained, "some.npz", "-o", "before.csv", *CPU)
    done = sfumato("calibrate", trained, *CPU)
    assert done.code == 0, done.err
    kept = json.loads((trained / "temperature.json").read_text())
    assert kept["after"]["nll"] <= kept["before"]["nll"]
    assert f"{kept['before']['ece']:.4f} → {kept['after']['ece']:.4f}" in done.out
    assert f"temperature  {kept['value']:g}, fitted on" in done.out
    assert "validation images of 'digits'" in done.out and "does not cover" in done.out
    refused(sfumato("calibrate", trained, *CPU), "left alone", "--remove")
    sfumato("predict", trained, "some.npz", "-o", "after.csv", *CPU)
    before, after = rows_of("before.csv"), rows_of("after.csv")
    assert [r["class"] for r in before] == [r["class"] for r in after]
    assert [r["probability"] for r in before] != [r["probability"] for r in after]
    done = sfumato("verify", trained)
    assert done.code == 0 and f"{kept['value']:g}, fitted on" in done.out
    statement = (trained / "statement.md").read_text(encoding="utf-8")
    uncovered = statement.partition("## Not covered")[2].partition("## ")[0]
    assert "temperature.json" in uncovered, "it was sealed before, and leads to the number"
    refused(sfumato("train", "--resume", trained, *CPU), "is finished")
    (trained / "temperature.json").write_text("{}", encoding="utf-8")
    done = sfumato("verify", trained)
    assert done.code == 1 and "cannot be read as a temperature" in done.out
    assert sfumato("calibrate", trained, "--remove").code == 0
    assert files_of(trained) == files
    refused(sfumato("calibrate", trained, "--remove"), "no temperature")


@pytest.mark.slow
def test_whoever_describes_the_model_names_the_temperature(
    sfumato: Run, trained: Path, tmp_path: Path
) -> None:
    sfumato("calibrate", trained, *CPU)
    kept = json.loads((trained / "temperature.json").read_text())
    done = sfumato("evaluate", trained, *CPU, "--resamples", "0", "--out", "judged", "--json")
    assert json.loads(done.out)["temperature"] == kept["value"]
    assert sfumato("card", trained, *CPU, "--out", "CARD.md").code == 0
    assert "### Temperature" in Path("CARD.md").read_text(encoding="utf-8")
    assert sfumato("report", trained, *CPU, "--out", "page.html").code == 0
    assert "Logits are divided by a temperature" in Path("page.html").read_text(encoding="utf-8")
    assert sfumato("export", trained, "--to", "huggingface", "--out", "hub").code == 0
    content = (trained / "temperature.json").read_bytes()
    assert (tmp_path / "hub" / "temperature.json").read_bytes() == content
    assert json.loads(Path("hub/config.json").read_text())["temperature"]["value"] == kept["value"]
    assert sfumato("calibrate", trained, "--remove").code == 0


def test_which_images_are_taken(sfumato: Run, trained: Path, tmp_path: Path) -> None:
    refused(sfumato("calibrate", trained, "--on", "all", *CPU), "training images")
    refused(sfumato("calibrate", trained, "--data", "digits", *CPU), "outside its guarantee")
    refused(sfumato("calibrate", "nowhere"), "There is no run folder")
    digits = load("digits").test
    np.savez("others.npz", images=digits.images[:60], labels=digits.labels[:60].astype(str))
    done = sfumato("calibrate", trained, "--data", "others.npz", *CPU)
    assert done.code == 0 and "60 images of 'others" in done.out, done
    assert sfumato("calibrate", trained, "--remove").code == 0
    done = sfumato("calibrate", trained, "--on", "test", *CPU)
    assert done.code == 0 and "look a little better" in done.out
    assert sfumato("calibrate", trained, "--remove").code == 0
    recipe = trained / "recipe.toml"
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("model.safetensors", "recipe.toml"):
        (bare / name).write_bytes((trained / name).read_bytes())
    text = recipe.read_text(encoding="utf-8").replace("validation = 0.2", "validation = 0.0")
    (bare / "recipe.toml").write_text(text, encoding="utf-8")
    refused(sfumato("calibrate", bare, *CPU), "held out no images", "--on test")
    refused(sfumato("calibrate", bare, "--on", "validation", *CPU), "no validation part")
