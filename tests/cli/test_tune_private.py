"""`sfumato tune --private` on the command line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_result import Run, refused

from sfumato.privacy.accounting.selection import Selection
from sfumato.training.private_tuning import BEST, RECORD, WORK

QUICK = ("--set", "training.steps=2", "--set", "training.batch=64")


@pytest.fixture
def run(sfumato: Run) -> Run:
    return lambda *words: sfumato("tune", "digits", *words)


def test_the_cost_is_said_before_and_one_run_is_left(
    run: Run, sfumato: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Selection, "number", lambda self, uniform: 3)
    out = tmp_path / "t"
    words = ("--private", "--tuning-mean", "4", "--try", "optimizer.lr=1..4", *QUICK)
    found = run(*words, "--out", str(out))
    assert found.code == 0, found
    assert "4 runs on average (logarithmic), 2 steps and epsilon" in found.out
    assert (
        "The best of them costs epsilon" in found.out and "Best: --set optimizer.lr=" in found.out
    )
    assert "step 1" not in found.out and "trial" not in found.out, "nothing of single runs"
    assert sorted(path.name for path in out.iterdir()) == [BEST, RECORD]
    assert sfumato("verify", out / BEST).code == 0
    again = run(*words, "--out", str(out))
    assert again.code == 0 and again.out == found.out
    other = run(*words, "--set", "optimizer.momentum=0.5", "--out", str(out))
    refused(other, "holds a private tuning of something else", "optimizer.momentum")


def test_no_run_drawn_is_said(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Selection, "number", lambda self, uniform: 0)
    words = ("--private", "--tuning-distribution", "poisson", "--try", "optimizer.lr=1", *QUICK)
    found = run(*words, "--out", str(tmp_path / "t"))
    assert found.code == 1 and "No run was drawn" in found.out
    assert "budget is spent all the same" in " ".join(found.out.split())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--private",), "Say what to try"),
        (("--private", "--try", "optimizer.lr="), "--try takes"),
        (("--private", "--try", "optimizer.lr=1", "--trials", "5"), "drawn independently"),
        (("--private", "--try", "optimizer.lr=1", "--cheaper", "2"), "within it"),
        (("--private", "--try", "optimizer.lr=1", "--part", "1/2"), "draws some"),
        (("--private", "--try", "optimizer.lr=1", "--tuning-mean", "0.5"), "from 1 to 1000"),
        (("--private", "--try", "optimizer.lr=1", "--tuning-distribution", "x"), "choose one of"),
        (("--private", "--try", "training.batch=8,16"), "runs of one mechanism"),
        (("--private", "--try", "optimizer.lr=1", "--set", "training.seed=1"), "training.seed"),
        (("--private", "--try", "optimizer.lr=1", "--set", "privacy.epsilon=0.002"), "Raise"),
        (("--private", "--try", "optimizer.lr=1", "--score-data", "digits"), "themselves"),
        (("--private", "--try", "optimizer.lr=1", "--score-data", "no"), "no"),
        (("--tuning-mean", "5", "--try", "optimizer.lr=1"), "--tuning-mean: only with --private"),
        (("--score-data", "x", "--try", "optimizer.lr=1"), "--score-data: only with --private"),
    ],
)
def test_mistakes(run: Run, tmp_path: Path, words: tuple[str, ...], sentence: str) -> None:
    refused(run(*words, *QUICK, "--out", str(tmp_path / "t")), sentence)
    assert not (tmp_path / "t").exists(), "nothing was begun"


@pytest.mark.slow
def test_a_tuning_that_is_interrupted_goes_on(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "t"
    words = ["--private", "--tuning-mean", "1", "--try", "optimizer.lr=1..4"]
    words += ["--set", "training.steps=400", "--set", "training.batch=64"]
    command = [sys.executable, "-m", "sfumato", "tune", "digits", *words, "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ})
    ledger = out / WORK / "1" / "ledger.jsonl"
    until = time.monotonic() + 100
    while (
        process.poll() is None
        and time.monotonic() < until
        and not (ledger.is_file() and ledger.stat().st_size > 20_000)
    ):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 130 and "The budget was spent by starting" in said
    assert not (out / BEST).exists()
    found = run(*words, "--out", str(out))
    assert found.code == 0 and sorted(path.name for path in out.iterdir()) == [BEST, RECORD]
