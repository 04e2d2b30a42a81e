"""The time since a command was given."""

from __future__ import annotations

import time

_began = time.monotonic()


def begin() -> None:
    """Set the clock to zero, when a command is given."""
    global _began
    _began = time.monotonic()


def seconds() -> float:
    """Seconds since the command was given, those that modules took to load included."""
    return time.monotonic() - _began
