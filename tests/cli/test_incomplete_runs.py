"""Finished runs that have lost a file, or the end of one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cli_result import Run, refused

from tiny_run import train_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_run(tmp_path_factory.mktemp("runs") / "run", {"training.log_every": 1})


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--resume", "run"], ["evaluate", "run"], ["card", "run"], ["audit", "run"],
        ["predict", "run", "images.npz"], ["train", "--start", "run"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_weights_that_were_removed_cannot_be_resumed(
    sfumato: Run, copy: Path, words: list[str]
) -> None:
    (copy / "model.safetensors").unlink()
    result = sfumato(*words)
    refused(result, "model.safetensors was removed", "sfumato train run/recipe.toml")
    assert "--resume" not in result.err


def test_a_run_without_its_weights_is_shown_as_one(sfumato: Run, copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    assert "The weights were removed" in sfumato("verify", "run").out
    result = sfumato("report", "run")
    assert result.code == 0 and "model.safetensors was removed" in result.err
    page = Path("report.html").read_text(encoding="utf-8")
    assert ">without weights<" in page and "not finished" not in page.lower()


def test_weights_of_an_interrupted_run_come_by_resuming(sfumato: Run, copy: Path) -> None:
    for name in ("model.safetensors", "statement.md"):
        (copy / name).unlink()
    refused(sfumato("evaluate", "run"), "has not finished", "sfumato train --resume run")


@pytest.mark.parametrize("end", [b"", b'{"step'])
def test_a_ledger_without_its_end(sfumato: Run, copy: Path, end: bytes) -> None:
    """It is said first, once, and the steps are those of the ledger."""
    path = copy / "ledger.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3]) + end)
    result = sfumato("verify", "run")
    assert result.code == 1 and "consistent" not in result.out
    assert result.out.splitlines()[2].startswith(
        "wrong: The ledger ends after step 2, but guarantee.json counts 4 steps"
    )
    assert result.out.count("wrong:") == 1
    (steps,) = [line for line in result.out.splitlines() if line.startswith("steps")]
    assert steps.split() == ["steps", "2", "in", "the", "ledger"]


@pytest.mark.parametrize("lost", ["end", "line", "everything"])
def test_half_a_metrics_file_is_said(sfumato: Run, copy: Path, lost: str) -> None:
    path = copy / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 5
    kept, words = {
        "end": ([*lines[:2], lines[2][:20]], "metrics.jsonl ends after step 2"),
        "line": ([lines[0], lines[1][:20] + b"\n", *lines[2:]], "1 lines of metrics.jsonl"),
        "everything": ([], "metrics.jsonl ends before the first record"),
    }[lost]
    path.write_bytes(b"".join(kept))
    result = sfumato("report", "run")
    assert result.code == 0 and f"Note: run: {words}" in result.err
    assert words in Path("report.html").read_text(encoding="utf-8")


def test_nothing_is_said_of_a_whole_run(sfumato: Run, copy: Path) -> None:
    result = sfumato("report", "run")
    assert result.code == 0 and "Note" not in result.err
