"""The time since a command was given."""

from __future__ import annotations

import os
import time
from pathlib import Path

_BEGAN = "SFUMATO_BEGAN"
"""Environment variable for the beginning of a command that starts others to do its work."""

_LOADING = 60.0
"""Seconds within which a process that was started for a command comes to it."""

_began = time.monotonic()


def begin() -> None:
    """Set the clock to the time when a command was given."""
    global _began
    _began = time.monotonic() - _age()
    if started := os.environ.get(_BEGAN):
        _began = min(_began, float(started))


def hand_on() -> None:
    """Let the processes that this one starts count from its own beginning."""
    os.environ[_BEGAN] = repr(_began)


def seconds() -> float:
    """Seconds since the command was given, those included in which Python and modules loaded."""
    return time.monotonic() - _began


def _age() -> float:
    """Seconds since this process was started for the command; 0 where the system does not tell."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        since_boot = float(Path("/proc/uptime").read_text().split()[0])
        age = since_boot - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0
    return age if 0 < age < _LOADING else 0.0
