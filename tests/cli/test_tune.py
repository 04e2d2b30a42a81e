"""`sfumato tune` on the command line."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from cli_result import Run, refused

from sfumato.io.locks import alone
from sfumato.training import pruning
from sfumato.training import tune as tuning

QUICK = ("--set", "training.steps=2", "--set", "training.seed=0")


@pytest.fixture
def run(sfumato: Run) -> Run:
    return lambda *words: sfumato("tune", *words)


def test_the_best_comes_first_with_words_for_the_statement(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "t"
    tried = ("digits", "--try", "optimizer.lr=1e-6,4", *QUICK, "--out", str(out))
    found = run(*tried)
    assert found.code == 0
    table = found.out[found.out.index("held out") :].splitlines()
    assert table[1].split()[0] == "4" and table[2].split()[0] == "1e-06"
    assert "Best: --set optimizer.lr=4" in found.out
    assert "privacy.tuned='the accuracy of 2 runs" in found.out
    assert "no bound on what they give away together" in found.out
    assert (out / "trials.png").is_file()
    again = run(*tried)
    assert again.code == 0 and "step" not in again.out
    other = run("digits", "--try", "privacy.clip=2", *QUICK, "--out", str(out))
    assert other.code == 0 and "3 runs" in other.out
    assert "optimizer.lr 1e-06, 4; privacy.clip 2" in other.out


def test_what_others_are_still_at_is_waited_for(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "t"
    words = ("digits", "--try", "optimizer.lr=1,4", *QUICK, "--out", str(out))
    assert run("digits", "--try", "optimizer.lr=1", *QUICK, "--out", str(out)).code == 0
    with alone(out / tuning._name({"optimizer.lr": 4})):
        found = run(*words)
    assert found.code == 0 and "another process is making it" in found.out
    assert "still at 1 of the runs" in found.out
    assert "Best" not in found.out and "privacy.tuned" not in found.out
    assert "privacy.tuned='the accuracy of 2 runs" in run(*words).out


@pytest.mark.slow
def test_runs_with_noise_of_their_own_have_a_sum(run: Run, tmp_path: Path) -> None:
    words = ("digits", "--try", "optimizer.lr=1,4", "--set", "training.steps=2")
    found = run(*words, "--out", str(tmp_path / "t"))
    assert found.code == 0 and "Together these runs spend epsilon" in found.out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "Say what to try"),
        (("--try", "data.test=true,false"), "never on test images"),
        (("--try", "data.validation=0.1,0.2"), "the same held-out"),
        (("--try", "data.test_fraction=0.1,0.2"), "never on test images"),
        (("--try", "data.split_seed=0,1"), "never on test images"),
        (("--try", "data.name='digits','mnist'"), "never on test images"),
        (("--try", "optimizer.lr=1", "--try", "optimizer.lr=2"), "is given twice"),
        (("--try", "optimizer.lr=8..1"), "the smaller one first"),
        (("--try", "optimizer.lr=1..8"), "--trials"),
        (("--try", "optimizer.lt=1"), "Did you mean 'lr'"),
        (("--try", "optimizer.lr=1,2", "--pruner", "best"), "none, median or hyperband"),
        (
            ("--try", "optimizer.lr=1,2", "--private", "--pruner", "median"),
            "with --private every run is taken to its end",
        ),
    ],
)
def test_mistakes(run: Run, tmp_path: Path, words: tuple[str, ...], sentence: str) -> None:
    refused(run("digits", *words, *QUICK, "--out", str(tmp_path / "t")), sentence)


def test_runs_without_privacy_have_no_sum(run: Run, tmp_path: Path) -> None:
    out = ("--set", "training.steps=2", "--out", str(tmp_path / "t"))
    found = run("digits", "--try", "privacy.enabled=true,false", *out)
    assert found.code == 0 and "1 of these runs are not private" in found.out
    assert "Together" not in found.out
    assert "--set privacy.enabled=true" in found.out or "--set privacy.enabled=false" in found.out


def test_nothing_is_best_where_all_diverged(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "t"
    words = ("--set", "training.steps=2", "--set", "training.diverged=1e-6", "--out", str(out))
    found = run("digits", "--try", "optimizer.lr=1,2", *words)
    assert found.code == 0 and "Every run diverged" in found.out and "Best" not in found.out
    assert not list(out.glob("trial-*/secret.key")), "nothing goes on from here"


def test_a_folder_without_runs_takes_another_recipe(run: Run, tmp_path: Path) -> None:
    words = ("digits", "--try", "optimizer.lr=1", *QUICK, "--out", str(tmp_path / "t"))
    words = (*words, "--set", "privacy.enabled=false")
    refused(run(*words, "--set", "training.batch=100000"), "100000")
    assert run(*words).code == 0


def test_images_that_come_for_validation_are_named(run: Run, tmp_path: Path) -> None:
    drawn = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", 60), ("val", 12), ("test", 12)):
        arrays[f"x_{part}"] = drawn.integers(0, 256, (count, 8, 8), dtype=np.uint8)
        arrays[f"y_{part}"] = np.arange(count) % 3
    np.savez(tmp_path / "own.npz", **arrays)
    words = ("--set", "model.name=tanh-cnn", "--set", "privacy.enabled=false", *QUICK)
    words = (*words, "--set", "training.batch=20")
    found = run(str(tmp_path / "own.npz"), "--try", "optimizer.lr=1,2", *words,
                "--out", str(tmp_path / "t"))  # fmt: skip
    assert found.code == 0
    assert "on the 12 validation images that come with the data" in found.out


def test_pruned_runs_are_shown_and_counted(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run is stopped after its first step, where it seemed better than the other at its end."""

    class Second:
        def __init__(self, name: str, planned: int, others: list[object]) -> None:
            self.stop = bool(others)

        def stops(self, own: dict[int, float]) -> bool:
            return self.stop

    monkeypatch.setattr(pruning, "_Judge", Second)
    words = ("digits", "--try", "optimizer.lr=1e-6,4", "--set", "training.steps=3")
    words = (*words, "--set", "training.log_every=1", "--pruner", "hyperband")
    words = (*words, "--set", "training.batch=64", "--set", "model.options={filters = 4}")
    found = run(*words, "--out", str(tmp_path / "t"))
    assert found.code == 0, found.err
    table = found.out[found.out.index("held out") :].splitlines()
    assert table[1].split()[0] == "1e-06" and "at step 1, pruned" in table[2]
    assert "Best: --set optimizer.lr=1e-06" in found.out
    assert "2 runs, of which 1 was stopped early," in found.out
    planned = re.search(r"spend epsilon ([\d.]+)", found.out)
    taken = re.search(r"by the steps taken it would be ([\d.]+\d)", found.out)
    assert planned and taken and float(planned[1]) > float(taken[1])
    assert (tmp_path / "t" / "trials.png").is_file()
