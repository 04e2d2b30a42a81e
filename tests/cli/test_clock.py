"""The clock of a command."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from sfumato.cli import clock

SCRIPT = """
import sys, time
time.sleep(0.7)
from sfumato.cli import clock
clock.begin()
print(clock.seconds())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell")
def test_the_time_in_which_modules_loaded_is_counted() -> None:
    began = time.monotonic()
    found = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, check=True)
    assert 0.6 < float(found.stdout) < time.monotonic() - began + 0.1


def test_processes_count_from_the_beginning_of_the_one_that_started_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clock, "_age", lambda: 40.0)
    monkeypatch.setenv("SFUMATO_BEGAN", "")
    clock.begin()
    clock.hand_on()
    monkeypatch.setattr(clock, "_age", lambda: 0.0)
    clock.begin()
    assert clock.seconds() >= 40
