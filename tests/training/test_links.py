"""Run folders with links in them: nothing elsewhere is deleted, overwritten or added to."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sfumato.api import resume
from sfumato.charts import style
from sfumato.errors import UserError
from sfumato.io.locks import alone
from sfumato.recipes import find
from sfumato.training.tune import tune
from tiny_run import train_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    changes = {"training.seed": 0, "training.snapshots": 3, "training.checkpoint_every": 1}
    return train_run(tmp_path_factory.mktemp("runs") / "run", changes)


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """An interrupted run."""
    folder = shutil.copytree(trained, tmp_path / "run")
    (folder / "model.safetensors").unlink()
    (folder / "statement.md").unlink()
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize(
    "name", ["checkpoints", "snapshots", "tensorboard", "ledger.jsonl", "metrics.jsonl"]
)
def test_a_link_out_of_the_run_folder_stops_resuming(run: Path, tmp_path: Path, name: str) -> None:
    away = tmp_path / "away"
    if (run / name).is_dir():
        shutil.move(run / name, away)
    else:
        away.mkdir()
        if (run / name).exists():
            shutil.move(run / name, away / name)
    for victim in ("step-0000000.safetensors", "step-9999999.safetensors", ".file.12345678"):
        (away / victim).write_bytes(b"somebody's")
    if name.endswith(".jsonl"):
        with open(away / name, "ab") as file:
            file.write(b'{"torn')
    (run / name).symlink_to(away / name if name.endswith(".jsonl") else away)
    before = contents(away)
    with pytest.raises(UserError, match="is a link out of the run folder"):
        resume(run, device="cpu")
    assert contents(away) == before


def test_a_linked_checkpoint_is_refused(run: Path, tmp_path: Path) -> None:
    (tmp_path / "theirs").write_bytes(b"somebody's")
    (run / "checkpoints" / "step-0000001.safetensors").symlink_to(tmp_path / "theirs")
    with pytest.raises(UserError, match=r"step-0000001\.safetensors is a link out of the run"):
        resume(run, device="cpu")


def test_links_within_the_run_and_to_the_run_are_no_harm(run: Path, tmp_path: Path) -> None:
    shutil.move(run / "checkpoints", run / "kept")
    (run / "checkpoints").symlink_to("kept")
    (tmp_path / "link").symlink_to(run)
    assert resume(tmp_path / "link", device="cpu").steps == 4


def test_a_linked_file_of_trials_is_refused(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_bytes(b"")
    recipe = find("digits")
    out = tmp_path / "out"
    with pytest.raises(UserError):
        tune(recipe.replace({"model.name": "none"}), {"optimizer.lr": [1.0]}, out=out)
    (out / "trials.jsonl").symlink_to(theirs)
    with pytest.raises(UserError, match=r"trials\.jsonl is a link out of"):
        tune(recipe.replace({"model.name": "none"}), {"optimizer.lr": [1.0]}, out=out)


@pytest.mark.usefixtures("real_pictures")
def test_a_picture_is_not_written_through_a_link(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_bytes(b"somebody's")
    (tmp_path / ".curves.png.part").symlink_to(theirs)
    (tmp_path / "curves.png").symlink_to(theirs)
    with style.figure(1, 1, tmp_path / "curves.png"):
        pass
    assert theirs.read_bytes() == b"somebody's"
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "curves.png").stat().st_mode & 0o777 == 0o644


def test_a_lock_is_not_made_through_a_link(tmp_path: Path) -> None:
    (tmp_path / ".run.lock").symlink_to(tmp_path / "new")
    with pytest.raises(UserError, match="Cannot write to"), alone(tmp_path / "run"):
        pass
    assert not (tmp_path / "new").exists()
