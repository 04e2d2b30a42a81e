"""Progress in words."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from sfumato import recipes
from sfumato.cli import training_progress as shown
from sfumato.cli.training_progress import describe
from sfumato.training import loop
from sfumato.training.pipeline import train
from sfumato.training.reporter import Progress, Silent


def test_what_is_not_known_yet_is_not_said() -> None:
    assert describe(Progress(1, 10, 1.0, None, None, 0.0, None)) == "ε 1.000"
    later = Progress(5, 10, float("inf"), 0.5, 0.25, 1234.0, 75.0)
    assert describe(later) == "loss 0.500 · accuracy 25.0 % · 1,234 views/s · 1:15 left"


def test_the_log_of_a_long_run_is_short(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two runs of two hours, a step a second: lines are dense at first, and never far apart."""
    clock = [0.0]
    monkeypatch.setattr(shown.time, "monotonic", lambda: clock[0])
    with shown.watched() as reporter:
        for _ in range(2):
            for step in range(1, 7201):
                clock[0] += 1.0
                reporter.show(Progress(step, 7200, 1.0, None, None, 0.0, None))
            lines = [
                int(line.split()[1].split("/")[0]) for line in capsys.readouterr().out.splitlines()
            ]
            assert lines[:4] == [1, 3, 5, 7] and lines[-1] == 7200
            assert max(b - a for a, b in pairwise(lines)) <= 60
            assert len(lines) < 240


def test_a_slow_first_step_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is checked and compiled; later ones take a second each here."""
    clock, seen = [0.0], []

    class Watcher(Silent):
        def show(self, progress: Progress) -> None:
            seen.append(progress)

    step = loop.Loop.take_step

    def timed(self: loop.Loop, *arguments: object) -> object:
        clock[0] += 1000.0 if self.step == 0 else 1.0
        return step(self)

    monkeypatch.setattr(loop.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(loop.Loop, "take_step", timed)
    changes = {"training.epochs": None, "training.steps": 6, "training.log_every": 2}
    recipe = recipes.find("digits").replace(changes)
    train(recipe, out=tmp_path / "run", device="cpu", reporter=Watcher())
    assert [p.seconds_left for p in seen] == [None, 4.0, 3.0, 2.0, 1.0, 0.0]
    views = recipe.training.batch * recipe.training.views
    assert [p.views_per_second for p in seen] == [0.0, *[pytest.approx(views)] * 5]
