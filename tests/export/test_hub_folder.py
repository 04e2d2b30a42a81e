"""A folder for a hub: what it holds, who can read it, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sfumato import UserError, export
from sfumato.training.classifier import load
from tiny_run import make_run, train_run


def test_the_folder_is_read_back(tmp_path: Path) -> None:
    run = train_run(tmp_path / "run", {"training.seed": 7})
    folder, missing = export.write_folder(run, tmp_path / "hub")
    assert not missing
    names = {"README.md", "config.json", "model.safetensors", "statement.md"}
    assert {path.name for path in folder.iterdir()} == names
    images = torch.rand(4, 1, 8, 8)
    assert torch.equal(load(folder).predict(images), load(run).predict(images))
    state = load(run).network.state_dict()
    assert all(
        torch.equal(value, state[name])
        for name, value in load_file(folder / "model.safetensors").items()
    )
    config = json.loads((folder / "config.json").read_text())
    guarantee = json.loads((run / "guarantee.json").read_text())
    assert config["id2label"]["3"] == "3" and config["image_size"] == [8, 8]
    assert config["guarantee"]["epsilon"] == guarantee["epsilon"]
    card = (folder / "README.md").read_text()
    assert card.startswith("---\n") and "pipeline_tag: image-classification" in card
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".hub")]


def test_a_folder_with_files_is_left_alone(tmp_path: Path) -> None:
    run = train_run(tmp_path / "run", {"training.seed": 7})
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "mine").write_text("mine")
    with pytest.raises(UserError, match="exists already and is left alone"):
        export.write_folder(run, tmp_path / "hub")
    assert [path.name for path in (tmp_path / "hub").iterdir()] == ["mine"]
    with pytest.raises(UserError, match="cannot be made in"):
        export.write_folder(run, tmp_path / "no" / "hub")


def test_weights_alone_have_no_card(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    for source in (run, run / "model.safetensors"):
        with pytest.raises(UserError, match="not a finished run folder"):
            export.write_folder(source, tmp_path / "hub")
    assert not (tmp_path / "hub").exists()


def test_nothing_is_left_when_writing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train_run(tmp_path / "run", {"training.seed": 7})

    def full(*_: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sfumato.export.hub_folder.card", full)
    with pytest.raises(UserError, match="No space left"):
        export.write_folder(run, tmp_path / "hub")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
