"""Ranks that hang or vanish end the run on all others, with a sentence."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from sfumato.distributed import heartbeat
from sfumato.distributed.ranks import Ranks


class Lost(list[str]):
    """Sentences about lost ranks."""

    def wait(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while not self and time.monotonic() < end:
            time.sleep(0.01)
        return bool(self)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> TCPStore:
    made = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", str(made.port))
    monkeypatch.setattr(heartbeat, "SECONDS", 0.05)
    return made


def test_a_rank_that_never_gives_a_sign_is_lost(store: TCPStore) -> None:
    lost = Lost()
    with heartbeat.watched(Ranks(1, 3), lost.append):
        assert lost.wait(10)
    assert lost[0].startswith("Rank 2 of 3 has given no sign of life") and len(lost) == 1


def test_ranks_that_live_or_have_ended_are_not_lost(store: TCPStore) -> None:
    lost = Lost()
    with heartbeat.watched(Ranks(0, 2), lost.append):
        with heartbeat.watched(Ranks(1, 2), lost.append):
            assert not lost.wait(2.0)  # Four times as long as signs may be missed.
        assert not lost.wait(2.0)


def test_a_store_that_does_not_answer_is_noticed(
    store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, answer = Lost(), TCPStore.add

    def silent(*_: object) -> int:
        time.sleep(60)
        return 0

    with heartbeat.watched(Ranks(0, 1), lost.append):
        assert not lost.wait(1.0)
        monkeypatch.setattr(TCPStore, "add", silent)
        assert lost.wait(10)
        monkeypatch.setattr(TCPStore, "add", answer)


_DRIVER = """
import os, signal
from sfumato.distributed import heartbeat
from sfumato.training.loop import Loop
from sfumato.cli import main
heartbeat.SECONDS = 0.3
step = Loop.take_step
def hanging(loop, draw=None):
    if loop.step == 2 and os.environ["RANK"] == os.environ["HANGS"]:
        os.kill(os.getpid(), signal.SIGSTOP)
    return step(loop, draw)
Loop.take_step = hanging
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("hangs", ["0", "1"])
def test_a_rank_that_hangs_ends_the_run(tmp_path: Path, hangs: str) -> None:
    (tmp_path / "driver.py").write_text(_DRIVER)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    line = [
        sys.executable, str(tmp_path / "driver.py"), "train", "digits", "--device", "cpu",
        "--set", "training.steps=4", "--out", str(tmp_path / "run"),
    ]  # fmt: skip
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port, "HANGS": hangs}
    ranks = [
        subprocess.Popen(line, env=os.environ | common | {"RANK": str(k)}, stderr=subprocess.PIPE)
        for k in range(2)
    ]
    try:
        other = ranks[1 - int(hangs)]
        _, err = other.communicate(timeout=120)
        assert other.returncode == 2
        assert err.decode().count("error:") == 1
        assert f"Rank {hangs} of 2 has given no sign of life" in err.decode()
    finally:
        for rank in ranks:
            rank.send_signal(signal.SIGKILL)
