"""What an interrupted run must find as it was before it goes on, and what it makes anew."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from short_runs import halves
from short_runs import recipe as short

from sfumato import recipes
from sfumato.api import resume, train
from sfumato.errors import UserError
from sfumato.privacy import ledger
from sfumato.recipe import Recipe
from sfumato.run import Run
from sfumato.training import run_folder, snapshots
from sfumato.training.reporter import Progress, Silent
from tiny_run import TINY


class Crash(Silent):
    """Fails after a step, as a process does that is killed there."""

    def __init__(self, after: int) -> None:
        self._after = after

    def show(self, progress: Progress) -> None:
        if progress.step == self._after:
            raise RuntimeError("crashed")


def ten_steps(**changes: Any) -> Recipe:
    """Ten steps on digits with checkpoints after every fifth."""
    settings = TINY | {
        "training.epochs": None,
        "training.steps": 10,
        "training.seed": 0,
        "training.checkpoint_every": 5,
        "training.log_every": 1,
    }
    return recipes.find("digits").replace(settings | changes)


@pytest.fixture(scope="module")
def crash(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that crashed after step 8, with snapshots of steps 0, 5 and 7 and more to come."""
    recipe, folder = (
        ten_steps(**{"training.snapshots": 5}),
        tmp_path_factory.mktemp("crash") / "run",
    )
    with pytest.raises(RuntimeError, match="crashed"):
        train(recipe, out=folder, device="cpu", reporter=Crash(8))
    assert len(ledger.read(folder / run_folder.LEDGER)[1]) == 8
    return folder


@pytest.fixture
def crashed(crash: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(crash, tmp_path / "run"))


def rewritten(folder: Path, change: Any) -> None:
    """Another first line of the ledger, and the lines after it hashed anew."""
    path = folder / run_folder.LEDGER
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    path.unlink()
    first = {k: v for k, v in lines[0].items() if k not in ("kind", "previous")}
    made = ledger.Ledger.create(path, first)
    for line in lines[1:]:
        made.record(line["step"], ledger.Step(line["q"], line["sigma"]))
    made.close()


def test_a_run_of_version_0_1_finds_its_split(tmp_path: Path) -> None:
    """Its files do not name the rule by which images were set aside."""
    halves(tmp_path)
    changes = {"data.split_rule": "stratified", "data.validation": 0.1, "training.seed": 0}
    changes |= {"training.checkpoint_every": 1}
    folder = tmp_path / "run"
    with pytest.raises(RuntimeError, match="crashed"):
        train(short(tmp_path, "scans", changes), out=folder, device="cpu", reporter=Crash(2))
    rewritten(folder, lambda lines: lines[0]["recipe"]["data"].pop("split_rule"))
    path = folder / run_folder.RECIPE
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not line.startswith("split_rule")))
    assert recipes.of_run(folder).data.split_rule == "stratified"
    assert recipes.find(str(path)).data.split_rule == "independent", "a new run is a new run"
    resume(folder, device="cpu")
    assert run_folder.finished(folder)
    opened = Run(folder)
    assert opened.recipe.data.split_rule == "stratified"
    assert len(opened.dataset.train) == ledger.read(folder / run_folder.LEDGER)[0]["examples"]


def test_the_ledger_says_where_noise_came_from(crashed: Path) -> None:
    header, _ = ledger.read(crashed / run_folder.LEDGER)
    wanted = {"source": "chacha20", "device": "cpu", "torch": torch.__version__}
    assert header["noise"] == wanted
    resume(crashed, device="cpu")


def test_steps_are_not_repeated_with_noise_of_another_device(crashed: Path) -> None:
    """Both versions of a step would be out, with different noise, and be counted once."""
    rewritten(crashed, lambda lines: lines[0]["noise"].update(device="cuda"))
    with pytest.raises(UserError, match=r"began on cuda .*go on there"):
        resume(crashed, device="cpu")


def test_steps_are_not_repeated_with_noise_of_another_pytorch(crashed: Path) -> None:
    rewritten(crashed, lambda lines: lines[0]["noise"].update(torch="2.11.0"))
    with pytest.raises(UserError, match=r"PyTorch 2\.11\.0, .*steps 6 to 8 .*other noise"):
        resume(crashed, device="cpu")
    rewritten(crashed, lambda lines: lines.__delitem__(slice(6, None)))
    assert resume(crashed, device="cpu").steps == 10


@pytest.mark.parametrize(
    "change", [lambda first: first.pop("noise"), lambda first: first["noise"].pop("source")]
)
def test_runs_that_began_with_other_noise_go_on_without_repeating_steps(
    crashed: Path, change: Any
) -> None:
    """Runs of before had noise from PyTorch's generators."""
    rewritten(crashed, lambda lines: change(lines[0]))
    with pytest.raises(UserError, match=r"another source: steps 6 to 8 .*other noise"):
        resume(crashed, device="cpu")
    rewritten(crashed, lambda lines: lines.__delitem__(slice(6, None)))
    assert resume(crashed, device="cpu").steps == 10


def test_a_ledger_that_is_too_short_is_refused(crashed: Path) -> None:
    rewritten(crashed, lambda lines: lines.__delitem__(slice(3, None)))
    with pytest.raises(UserError, match=r"ends at step 2, .*of step 5"):
        resume(crashed, device="cpu")


def test_snapshots_of_steps_to_be_repeated_are_made_anew(crashed: Path) -> None:
    marked = snapshots.read(crashed)[-1][1]
    assert snapshots.read(crashed)[-1][0] == 8
    good = marked.read_bytes()
    marked.write_bytes(b"from the first attempt")
    resume(crashed, device="cpu")
    assert [step for step, _ in snapshots.read(crashed)] == [0, 3, 5, 8, 10]
    assert marked.read_bytes() == good


def test_speed_says_nothing_about_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Views a second times seconds would be the number of images drawn."""
    clock = iter(range(1_000_000))
    monkeypatch.setattr("sfumato.training.loop.time.monotonic", lambda: float(next(clock)))
    recipe = ten_steps(**{"training.checkpoint_every": None, "training.train_metrics": True})
    train(recipe, out=tmp_path / "run", device="cpu")
    lines = (tmp_path / "run" / run_folder.METRICS).read_text().splitlines()
    found = [json.loads(line) for line in lines if "views_per_second" in line]
    assert len({r["views_per_second"] for r in found[1:]}) == 1


def test_a_run_has_one_process_at_a_time(crashed: Path) -> None:
    """Two would both write to its ledger, and neither statement could be checked."""
    other = ledger.Ledger.open(crashed / run_folder.LEDGER)
    with pytest.raises(UserError, match=r"another process .*run.* wait"):
        resume(crashed, device="cpu")
    other.close()
    assert resume(crashed, device="cpu").steps == 10
    assert len(ledger.read(crashed / run_folder.LEDGER)[1]) == 10


def test_a_ledger_is_closed_however_a_run_ends(crashed: Path) -> None:
    with pytest.raises(RuntimeError, match="crashed") as first:
        resume(crashed, device="cpu", reporter=Crash(9))
    with pytest.raises(UserError, match="another recipe") as second:
        resume(crashed, device="cpu", changes={"training.batch": 7})
    assert resume(crashed, device="cpu").steps == 10
    assert first.value and second.value


def test_nothing_is_stated_from_a_ledger_that_was_changed(tmp_path: Path) -> None:
    class Spoil(Silent):
        def show(self, progress: Progress) -> None:
            path = tmp_path / "run" / run_folder.LEDGER
            if progress.step == 9:
                path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-2]))

    with pytest.raises(UserError, match="ledger"):
        train(ten_steps(), out=tmp_path / "run", device="cpu", reporter=Spoil())
    assert not (tmp_path / "run" / run_folder.STATEMENT).exists()
