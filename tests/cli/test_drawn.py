"""The commands around images that the program draws."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_result import Run, refused

QUICK = (
    "--size", "8", "--model", "tanh-cnn", "--seed", "0", "--device", "cpu",
    "--set", "training.batch=6", "--set", "training.steps=3", "--set", "model.options.filters=4",
)  # fmt: skip


def test_samples_can_be_looked_at(
    sfumato: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = sfumato("data", "show", "dead-leaves", "--picture", "leaves.png")
    assert result.code == 0 and "Samples: leaves.png" in result.out
    assert Path("leaves.png").stat().st_size > 5_000
    assert sfumato("data", "show", "dead-leaves", "--picture", "leaves.png").code == 2
    assert "dead-leaves" in sfumato("data", "list").out


def test_a_start_is_trained_and_used(
    sfumato: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = sfumato("pretrain", "--data", "dead-leaves", *QUICK, "--set", "data.channels=1")
    assert result.code == 0, result.err
    folder = "runs/pretrain-dead-leaves-001"
    assert "nothing to protect: every image was drawn by the program" in result.out
    assert "views matched" in result.out and folder in result.out
    options = ("--set", "model.options.filters=4", "--set", "training.steps=2", "--device", "cpu")
    private = sfumato("train", "digits", "--start", folder, *options, "--out", "private")
    assert private.code == 0, private.err
    assert "taken from 'runs/pretrain-dead-leaves-001'" in private.out
    for verb in ("report", "card"):
        refused(sfumato(verb, folder), "is a start for other runs")
    refused(sfumato("evaluate", folder), "there is nothing to load")
    refused(sfumato("predict", folder, "."), "its head is not trained")
    refused(sfumato("predict", "private", "no-image.png"), "no file or folder no-image.png")


def test_private_training_on_them_makes_no_sense(sfumato: Run) -> None:
    words = ("train", "dead-leaves", "--set", "privacy.enabled=true", "--set", "data.public=false")
    refused(sfumato(*words), "there is nobody to protect")


def test_two_channels_are_refused_before_anything_is_made(sfumato: Run) -> None:
    refused(sfumato("data", "show", "dead-leaves", "--channels", "2"), "channels = 2 is impossible")
    words = ("pretrain", "--data", "dead-leaves", *QUICK, "--out", "two")
    refused(sfumato(*words, "--set", "data.channels=2"), "channels = 2 is impossible")
    assert not Path("two").exists()


def test_there_is_nothing_to_tune_on(sfumato: Run) -> None:
    words = ("tune", "dead-leaves", "--try", "optimizer.lr=0.1,0.2", "--out", "tuning")
    refused(sfumato(*words), "no images are held out")
    assert not Path("tuning").exists()
