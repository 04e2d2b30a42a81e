"""Ctrl-C and SIGTERM as a request to stop after the current step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


class Stopped(Exception):
    """The run was asked to stop and has saved its state."""

    def __init__(self, folder: Path, step: int, signal: int) -> None:
        super().__init__(f"stopped after step {step}")
        self.folder, self.step, self.signal = folder, step, signal


class StopRequest:
    """Flag that is true once the run was asked to stop; a second request stops it at once."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None

    def _ask(self, number: int, _frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number


@contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    """Turn SIGINT and SIGTERM into a request within a `with` block (main thread only)."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {n: signal.signal(n, request._ask) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
