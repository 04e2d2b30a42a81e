"""Killed with SIGKILL at any moment, a seeded run ends bit for bit where it would have ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sfumato.training import run_folder

DRIVER = Path(__file__).with_name("kill_driver.py")


def drive(folder: Path, *, kills: int, steps: int) -> int:
    """Train folder/whole, and folder/killed with kills; the number of those that took place."""
    done = subprocess.run(
        [sys.executable, str(DRIVER), str(folder), "1", str(kills), str(steps)],
        capture_output=True,
        text=True,
        timeout=580,
        env=None,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.splitlines()[-1])


@pytest.mark.timeout(600)
@pytest.mark.slow
@pytest.mark.parametrize("kills", [2, 40])
def test_killed_at_random_moments_and_resumed(tmp_path: Path, kills: int) -> None:
    steps = 10 * kills
    assert drive(tmp_path, kills=kills, steps=steps) >= 0.8 * kills
    for name in (run_folder.WEIGHTS, run_folder.LEDGER, run_folder.STATEMENT, run_folder.RECIPE):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    leftovers = [p.name for p in (tmp_path / "killed").iterdir() if p.name.startswith(".")]
    assert leftovers == []
