"""Work in several processes: every task once, and one process alone at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sfumato.bench.jobs import Alone, in_processes


def tick(task: tuple[Path, int], alone: Alone) -> tuple[int, float, float]:
    """Write down the time again and again, and be alone for a while in the middle."""
    folder, number = task
    with open(folder / str(os.getpid()), "a") as file:
        for _ in range(20):
            print(time.time(), file=file, flush=True)
            time.sleep(0.01)
        with alone():
            began = time.time()
            time.sleep(0.3)
            ended = time.time()
        for _ in range(20):
            print(time.time(), file=file, flush=True)
            time.sleep(0.01)
    return number, began, ended


def broken(task: int, alone: Alone) -> int:
    if task == 1:
        with alone():
            os._exit(3)
    return task


def test_one_process_is_alone_at_a_time(tmp_path: Path) -> None:
    tasks = [(tmp_path, k) for k in range(5)]
    found = list(in_processes(tasks, tick, 3, ended=lambda task: None))
    assert sorted(number for number, *_ in found) == list(range(5))
    files = list(tmp_path.iterdir())
    assert len(files) == 3
    ticks = [float(line) for file in files for line in file.read_text().splitlines()]
    assert len(ticks) == 200
    for _, began, ended in found:
        assert not [t for t in ticks if began < t < ended]


def test_a_process_that_ends_costs_its_task_alone() -> None:
    found = list(in_processes(range(4), broken, 2, ended=lambda task: f"{task} ended"))
    assert sorted(found, key=str) == [0, "1 ended", 2, 3]


SLEEPERS = """
import os, sys, time
from pathlib import Path
from sfumato.bench.jobs import in_processes

def sleep(folder, alone):
    Path(folder, str(os.getpid())).touch()
    time.sleep(300)

if __name__ == "__main__":
    list(in_processes([sys.argv[1]] * 2, sleep, 2, ended=lambda task: None))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_processes_end_with_the_one_that_started_them(tmp_path: Path, number: int) -> None:
    script, folder = tmp_path / "sleepers.py", tmp_path / "begun"
    script.write_text(SLEEPERS)
    folder.mkdir()
    started = subprocess.Popen([sys.executable, str(script), str(folder)])
    _wait(lambda: len(list(folder.iterdir())) == 2)
    started.send_signal(number)
    started.wait(30)
    _wait(lambda: not any(_alive(int(file.name)) for file in folder.iterdir()))


def _wait(until: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not until():
        assert time.monotonic() < end
        time.sleep(0.05)


def _alive(process: int) -> bool:
    """Tell whether a process runs; one that nobody has waited for does not."""
    try:
        os.kill(process, 0)
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
