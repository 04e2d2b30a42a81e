"""A run that is asked to stop in a long step abandons it, and loses nothing."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from sfumato import recipes
from sfumato.privacy import ledger
from sfumato.recipe import Recipe
from sfumato.training import pipeline, run_folder, trouble
from sfumato.training.draw_feed import DrawFeed
from sfumato.training.interrupt import Stopped, stop_on_signal
from tiny_run import TINY


def six_steps() -> Recipe:
    steps = {"training.epochs": None, "training.steps": 6, "training.seed": 0}
    return recipes.find("digits").replace(TINY | steps | {"training.checkpoint_every": 1})


def ask_and_wait(*_: object) -> None:
    """Ask the run to stop, and work on for a minute, unless somebody ends that."""
    signal.raise_signal(signal.SIGINT)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        time.sleep(0.01)
    raise AssertionError("the step went on for a minute")


def before_the_release(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = DrawFeed.accumulate

    def accumulate(self: DrawFeed, draw: Any, step: int) -> None:
        usual(self, draw, step)
        if step == 4:
            ask_and_wait()

    monkeypatch.setattr(DrawFeed, "accumulate", accumulate)


def after_the_release(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(recipe: Recipe, statistics: object, number: int, rate: str) -> None:
        if number == 4:
            ask_and_wait()

    monkeypatch.setattr(trouble, "check_divergence", check)


@pytest.mark.parametrize(
    ("where", "counted"), [(before_the_release, 3), (after_the_release, 4)], ids=["before", "after"]
)
def test_a_long_step_is_abandoned_and_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: Any, counted: int
) -> None:
    """A step that was not released is not in the ledger; one that was, is there before."""
    run, whole = tmp_path / "run", tmp_path / "whole"
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "GRACE", 0.1)
        where(patch)
        with pytest.raises(Stopped) as stopped:
            pipeline.train(six_steps(), out=run, device="cpu")
    assert (stopped.value.step, stopped.value.signal) == (3, signal.SIGINT)
    assert len(ledger.read(run / run_folder.LEDGER)[1]) == counted
    pipeline.resume(run, device="cpu")
    pipeline.train(six_steps(), out=whole, device="cpu")
    for name in (run_folder.WEIGHTS, run_folder.LEDGER, run_folder.STATEMENT):
        assert (run / name).read_bytes() == (whole / name).read_bytes(), name


def test_a_step_that_ends_in_time_is_kept() -> None:
    handler = signal.getsignal(signal.SIGINT)
    with stop_on_signal(grace=60.0) as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop and stop.signal == signal.SIGINT and not stop.late
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is handler
