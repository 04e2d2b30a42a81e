"""A private run writes nothing about its batches unless asked: no metrics, no counts, no clock."""

from __future__ import annotations

import json
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

from sfumato import recipes
from sfumato.training import checkpoint, loop, metrics, release, run_folder, snapshots
from sfumato.training.loop import Loop
from sfumato.training.pipeline import train
from sfumato.training.reporter import Progress, Silent
from sfumato.training.tensorboard import Stream

EXACT = {"loss", "train_accuracy", "clipped", "not_finite"}
CLOCK = {"seconds", "views_per_second", "time"}


class Screen(Silent):
    """Keeps what a user is shown."""

    def __init__(self) -> None:
        self.shown: list[Progress] = []

    def show(self, progress: Progress) -> None:
        self.shown.append(progress)


def trained(folder: Path, **changes: Any) -> Screen:
    """Six steps on digits with a record, a checkpoint and a snapshot for each."""
    settings: dict[str, Any] = {
        "model.options": {"filters": 4}, "training.epochs": None, "training.steps": 6,
        "training.batch": 64, "training.seed": 0, "training.log_every": 1,
        "training.checkpoint_every": 1, "training.snapshots": 7,
    }  # fmt: skip
    screen = Screen()
    recipe = recipes.find("digits").replace(settings | changes)
    train(recipe, out=folder, device="cpu", reporter=screen)
    return screen


def records(folder: Path) -> list[dict[str, Any]]:
    return metrics.read(folder / run_folder.METRICS)


def test_records_tell_nothing_of_batches(tmp_path: Path) -> None:
    screen = trained(tmp_path / "run")
    found = records(tmp_path / "run")
    assert len(found) == 7
    for record in found[:-1]:
        assert not record.keys() & (EXACT | CLOCK)
        assert record["epsilon"] > 0
    assert not found[-1].keys() & EXACT
    shown = [p for p in screen.shown if p.loss is not None and p.accuracy is not None]
    assert len(shown) == 6, "the screen shows them all the same"


def test_records_tell_all_when_asked(tmp_path: Path) -> None:
    trained(tmp_path / "run", **{"training.train_metrics": True})
    for record in records(tmp_path / "run")[:-1]:
        assert record.keys() >= EXACT | CLOCK
    said = (tmp_path / "run" / run_folder.STATEMENT).read_text()
    assert "metrics.jsonl" in said and "clock" in said


def test_without_privacy_there_is_nothing_to_keep_back(tmp_path: Path) -> None:
    trained(tmp_path / "run", **{"privacy.enabled": False, "optimizer.lr": 0.1})
    assert all("loss" in record for record in records(tmp_path / "run")[:-1])


def test_files_do_not_depend_on_the_time_that_steps_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step takes the longer the more images it drew."""
    plain, step = tmp_path / "plain", Loop.take_step
    trained(plain)

    def slower(loop: Loop, draw: Any = None) -> Any:
        time.sleep(0.05 * (loop.step % 3))
        return step(loop, draw)

    monkeypatch.setattr(Loop, "take_step", slower)
    slow = tmp_path / "slow"
    trained(slow)
    assert records(plain)[:-1] == records(slow)[:-1]
    for path in sorted((plain / run_folder.CHECKPOINTS).iterdir()):
        one, other = (
            checkpoint.read(path),
            checkpoint.read(slow / run_folder.CHECKPOINTS / path.name),
        )
        assert one is not None and other is not None and one.numbers == other.numbers
    for folder in (snapshots.SNAPSHOTS, run_folder.CHECKPOINTS):
        stamps = {path.stat().st_mtime_ns for path in (slow / folder).iterdir()}
        assert len(stamps) == 1, "modification times travel with copies"


@pytest.mark.parametrize("steps", [4, 5])
def test_total_time_of_few_steps_is_not_written_and_others_are_coarse(
    tmp_path: Path, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With five steps for many, which are a hundred."""
    assert release.MANY == loop.MANY == metrics.MANY == 100
    for module in (release, loop):
        monkeypatch.setattr(module, "MANY", 5)
    trained(tmp_path / "run", **{"training.steps": steps, "training.checkpoint_every": 3})
    final = records(tmp_path / "run")[-1]
    assert bool(final.keys() & CLOCK) == (steps >= 5)
    if steps < 5:
        return
    for key in ("seconds", "views_per_second"):
        assert float(f"{final[key]:.1e}") == final[key] > 0, "two digits"
    assert "time" not in final


def test_modification_times_do_not_tell_the_total_time(tmp_path: Path) -> None:
    run = tmp_path / "run"
    trained(run)
    stamps = {path.stat().st_mtime_ns for path in (run, *run.rglob("*"))}
    assert stamps == {(run / run_folder.RECIPE).stat().st_mtime_ns}
    assert not (run / run_folder.KEY).exists()


def test_checkpoints_of_few_steps_have_no_clock(tmp_path: Path) -> None:
    trained(tmp_path / "run")
    state, _ = checkpoint.latest(tmp_path / "run" / run_folder.CHECKPOINTS)
    assert state is not None and not state.numbers.keys() & (EXACT | CLOCK)


def test_tensorboard_has_one_time_for_all_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[str, float | None]] = []

    class Writer:
        def __init__(self, *_: Any, **__: Any) -> None: ...
        def flush(self) -> None: ...
        def close(self) -> None: ...
        def add_scalar(self, tag: str, *_: Any, walltime: float | None) -> None:
            written.append((tag, walltime))

    fake = types.SimpleNamespace(SummaryWriter=Writer)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    with metrics.listening(Stream()):
        trained(tmp_path / "run")
    assert "privacy/epsilon spent" in {tag for tag, _ in written}
    assert not [tag for tag, _ in written if "training batches" in tag]
    times = {walltime for _, walltime in written}
    assert len(times) == 1 and None not in times


def test_a_trial_that_diverged_does_not_quote_the_loss(tmp_path: Path) -> None:
    from sfumato.training.tune import tune

    base = recipes.find("digits").replace(
        {"training.steps": 3, "training.diverged": 1e-3, "model.options": {"filters": 4}}
    )
    tune(base, {"optimizer.lr": [1.0]}, out=tmp_path / "t", device="cpu")
    (line,) = (tmp_path / "t" / "trials.jsonl").read_text().splitlines()
    assert "diverged" in json.loads(line)["note"]
    assert "loss of step" not in line
