"""Locks: one process at a time, and none that outlives its process."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sfumato.errors import UserError
from sfumato.io import json_lines, locks
from sfumato.io.locks import InUse, alone
from sfumato.privacy import ledger


def test_one_at_a_time(tmp_path: Path) -> None:
    with alone(tmp_path / "run"):
        with pytest.raises(InUse, match="another process is at work"), alone(tmp_path / "run"):
            pass
        with alone(tmp_path / "other"):
            pass
    with alone(tmp_path / "run"):
        pass
    assert not list(tmp_path.iterdir()), "nothing is left"
    assert issubclass(InUse, UserError)


def test_a_process_that_was_killed_holds_nothing(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from sfumato.io.locks import alone\n"
        "with alone(Path(sys.argv[1])): os._exit(9)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")], check=False)
    assert done.returncode == 9 and (tmp_path / ".run.lock").exists()
    with alone(tmp_path / "run"):
        pass
    assert not (tmp_path / ".run.lock").exists()


def test_a_lock_that_was_taken_away_meanwhile_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when its owner ends between our opening the file and our locking it."""
    take, taken = locks.lock_descriptor, []

    def late(file: int, *, blocking: bool) -> bool:
        if not taken:
            (tmp_path / ".run.lock").unlink()
        taken.append(file)
        return take(file, blocking=blocking)

    monkeypatch.setattr(locks, "lock_descriptor", late)
    with alone(tmp_path / "run"):
        assert len(taken) == 2 and (tmp_path / ".run.lock").exists()


def test_a_place_that_cannot_be_written_to_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(UserError, match="Cannot write to"), alone(tmp_path / "runs" / "row" / "a"):
        pass


def test_many_at_once(tmp_path: Path) -> None:
    inside, most, tries = [], [], range(200)

    def work() -> None:
        for _ in tries:
            try:
                with alone(tmp_path / "run"):
                    inside.append(1)
                    most.append(len(inside))
                    inside.pop()
            except InUse:
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(most) == {1}
    assert not os.listdir(tmp_path)


def test_file_systems_without_locks_are_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object, **__: object) -> bool:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locks, "lock_descriptor", none)
    with alone(tmp_path / "run"), alone(tmp_path / "other", wait=True):
        pass


def test_places_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with alone(Path(".")):
        pass
    with pytest.raises(UserError, match="choose another folder"), alone(Path("/")):
        pass


def test_waiting_for_another(tmp_path: Path) -> None:
    order: list[str] = []

    def second() -> None:
        with alone(tmp_path / "run", wait=True):
            order.append("second")

    waiting = threading.Thread(target=second)
    with alone(tmp_path / "run"):
        waiting.start()
        waiting.join(0.2)
        order.append("first")
    waiting.join(10)
    assert order == ["first", "second"]


def test_lines_of_two_writers_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"

    def write(name: str) -> None:
        for number in range(20):
            json_lines.append(path, f'"{name}{number}"')

    writers = [threading.Thread(target=write, args=(name,)) for name in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    found = [line for _, line in json_lines.read(path)]
    assert sorted(found) == sorted(f'"{name}{number}"' for name in "ab" for number in range(20))
    assert os.listdir(tmp_path) == ["lines.jsonl"]


def test_a_ledger_is_open_once_and_can_be_read_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with ledger.Ledger.create(path, {"examples": 3}):
        with pytest.raises(InUse, match="is in use"):
            ledger.Ledger.open(path)
        assert ledger.read(path)[0]["examples"] == 3
    ledger.Ledger.open(path).close()
    assert os.listdir(tmp_path) == ["ledger.jsonl"]
