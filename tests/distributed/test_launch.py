"""`torchrun -m sfumato train` and `sfumato train --gpus`: one run, one voice, one exit status."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import typer
from processes import commands, on_ranks

from sfumato import cli
from sfumato.cli.processes import SHARED, restarted
from sfumato.distributed import launch
from sfumato.errors import UserError
from sfumato.training import run_folder

LINE = (
    "train", "digits", "--device", "cpu", "--seed", "4", "--set", "training.steps=4",
    "--set", "training.batch=64", "--set", "model.options.filters=4", "--physical-batch", "16",
    "--set", "training.checkpoint_every=1", "--set", "privacy.noise_multiplier=3.0",
)  # fmt: skip
FILES = (run_folder.WEIGHTS, run_folder.LEDGER, run_folder.STATEMENT)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in one process."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    ((code, _, err),) = commands([[*LINE, "--out", str(folder)]])
    assert code == 0, err
    return folder


def same(folder: Path, whole: Path) -> bool:
    return all((folder / name).read_bytes() == (whole / name).read_bytes() for name in FILES)


def test_rank_0_alone_prints(tmp_path: Path, whole: Path) -> None:
    first, *others = commands([[*LINE, "--out", str(tmp_path / "run")]] * 3)
    assert first[0] == 0 and "test accuracy" in first[1], first
    assert others == [(0, "", "")] * 2
    assert same(tmp_path / "run", whole)


def test_an_error_of_any_rank_is_one_sentence_of_rank_0(tmp_path: Path) -> None:
    good = [*LINE, "--out", str(tmp_path / "run")]
    for line, sentence in (
        ([*good, "--set", "optimizer.lr=0.9"], "Rank 1 of 2 has another recipe than rank 0"),
        ([*good, "--set", "optimizer.speed=0.9"], "Rank 1 of 2: Unknown setting"),
        ([*good, "--data", "./nowhere"], "Rank 1 of 2"),
    ):
        leader, other = commands([good, line])
        assert leader[0] == 2 and leader[2].startswith(f"error: {sentence}"), leader
        assert leader[2].count("error:") == 1 and other == (2, "", "")
    assert not (tmp_path / "run").exists()


def test_a_command_whose_work_is_not_shared_is_refused_on_all_ranks(tmp_path: Path) -> None:
    line = ["audit", *LINE[1:6], "--out", str(tmp_path / "run")]
    leader, other = commands([line] * 2)
    assert leader[0] == 2 and other == (2, "", ""), (leader, other)
    said = "error: `sfumato audit` runs in one process, and this is one of 2"
    assert leader[2].startswith(said) and leader[2].count("error:") == 1 and not leader[1]
    assert not (tmp_path / "run").exists()


def test_every_verb_that_takes_gpus_is_one_whose_work_is_shared() -> None:
    verbs = typer.main.get_command(cli.app).commands.items()
    estimated = {"plan"}  # Asks what several GPUs would take, on none.
    takes = {name for name, verb in verbs if "gpus" in {p.name for p in verb.params}}
    assert takes - estimated == {*SHARED}


def test_a_port_in_use_is_said(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        found = commands([LINE], WORLD_SIZE="2", MASTER_PORT=port)
    assert found[0][0] == 2 and f"cannot meet at localhost:{port}" in found[0][2]
    assert "MASTER_PORT" in found[0][2] and "Traceback" not in found[0][2]


@pytest.mark.parametrize(
    ("wanted", "device", "devices", "sentence"),
    [
        ("0", "auto", 2, "--gpus takes a number from 1 on, or all, not '0'"),
        ("two", "auto", 2, "--gpus takes a number from 1 on, or all, not 'two'"),
        ("2", "auto", 0, "there is no CUDA device here. Leave it away, or give --device cpu"),
        ("all", "auto", 0, "there is no CUDA device here"),
        ("3", "cuda", 2, "there are 2 CUDA devices here. Give --gpus 2 or fewer"),
        ("2", "cuda", 1, "there is one CUDA device here. Give --gpus 1"),
    ],
)
def test_a_number_of_gpus_that_are_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch, wanted: str, device: str, devices: int, sentence: str
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    with pytest.raises(UserError) as error:
        launch.count_gpus(wanted, device)
    assert sentence in str(error.value)


def test_all_gpus_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    assert launch.count_gpus("all", "auto") == 8 and launch.count_gpus("3", "cpu") == 3


def test_any_number_of_processes_may_share_a_gpu_that_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert launch.count_gpus("2", "cuda:0") == 2
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(UserError, match="there is no CUDA device here"):
        launch.count_gpus("2", "cuda:0")


def test_a_process_without_a_gpu_of_its_own_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "2")
    for device in ("cpu", "cuda:0"):
        launch.take_gpu(device)
    with pytest.raises(UserError, match="2 CUDA devices here and at least 3 processes"):
        launch.take_gpu("cuda")


def test_gpus_beside_torchrun_are_refused(tmp_path: Path) -> None:
    (code, _, err), other = commands([[*LINE, "--gpus", "4"]] * 2, LOCAL_WORLD_SIZE="2")
    assert code == 2 and "leave --gpus away" in err and other == (2, "", "")


def half(folder: Path) -> None:
    """A run that is killed after its second step."""
    from sfumato.api import train
    from sfumato.recipe import parse_setting
    from sfumato.recipes.choice import choose
    from sfumato.training.loop import Loop

    step = Loop.take_step

    def dying(loop: Loop, draw: torch.Tensor | None = None) -> object:
        if loop.step == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(loop, draw)

    Loop.take_step = dying  # type: ignore[assignment,method-assign]
    changes = dict(parse_setting(text) for text in LINE if "=" in text)
    changes |= {"training.seed": 4, "training.physical_batch": 16}
    train(choose("digits", None, changes), out=folder, device="cpu")


def test_processes_that_are_started_again_resume(tmp_path: Path, whole: Path) -> None:
    assert on_ranks(2, half, tmp_path / "run") == ["killed"] * 2
    again = {"TORCHELASTIC_MAX_RESTARTS": "1", "TORCHELASTIC_RESTART_COUNT": "1"}
    found = commands([[*LINE, "--out", str(tmp_path / "run")]] * 3, **again)
    assert [code for code, _, _ in found] == [0, 0, 0], found
    assert "after step 2 of 4" in found[0][1]
    assert same(tmp_path / "run", whole)


def test_restarts_need_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "2")
    with pytest.raises(UserError, match="--out"):
        restarted(None)
    assert restarted(tmp_path) is None


@pytest.mark.slow
def test_gpus_starts_processes_here(tmp_path: Path, whole: Path) -> None:
    """On the CPU, which a number of processes can share as well."""
    line = [*LINE, "--gpus", "2", "--out", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-m", "sfumato", *line], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0 and done.stdout.count("test accuracy") == 1, done.stderr
    assert same(tmp_path / "run", whole)


@pytest.mark.slow
def test_a_mistake_in_processes_started_here_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "note").touch()
    line = [*LINE, "--gpus", "2", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "sfumato", *line], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2 and done.stderr.count("already exists") == 1, done.stderr
    assert "Traceback" not in done.stderr and done.stdout == ""


_DRIVER = """
import os, signal, sys
from sfumato.training.loop import Loop
from sfumato.cli import main
step = Loop.take_step
def dying(loop, draw=None):
    if loop.step == 2 and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return step(loop, draw)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    Loop.take_step = dying
main()
"""


@pytest.mark.slow
def test_elastic_restarts_of_torchrun_resume_the_run(tmp_path: Path, whole: Path) -> None:
    (tmp_path / "driver.py").write_text(_DRIVER)
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    words += ["--max-restarts", "1", str(tmp_path / "driver.py"), *LINE]
    done = subprocess.run(
        [*words, "--out", str(tmp_path / "run")], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert "Another process of this run has ended" in done.stderr
    assert "after step 2 of 4" in done.stdout
    assert same(tmp_path / "run", whole)
