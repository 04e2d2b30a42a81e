"""Ctrl-C and SIGTERM as a request to stop after the current step, or within seconds."""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

GRACE = 2.0
"""Seconds that a step may still take when a run is asked to stop; a longer one is abandoned."""


class Stopped(Exception):
    """The run was asked to stop and has saved its state."""

    def __init__(self, folder: Path, step: int, signal: int) -> None:
        super().__init__(f"stopped after step {step}")
        self.folder, self.step, self.signal = folder, step, signal


class StopRequest:
    """Flag that is true once the run was asked to stop; a second request stops it at once.

    Args:
        grace: Seconds after a request at which the block that is under way is left with a
            `KeyboardInterrupt`, if it has not ended by itself; None waits for it.

    Attributes:
        signal: The signal of the request, if there was one.
        late: Whether the time of grace is over.
    """

    def __init__(self, grace: float | None = None) -> None:
        self.signal: int | None = None
        self.late = False
        self._grace = grace
        self._timer: threading.Timer | None = None

    def __bool__(self) -> bool:
        return self.signal is not None

    def _ask(self, number: int, _frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number
        if self._grace is not None:
            self._timer = threading.Timer(self._grace, self._hurry, [number])
            self._timer.daemon = True
            self._timer.start()

    def _hurry(self, number: int) -> None:
        self.late = True
        _thread.interrupt_main(signal.Signals(number))

    def _over(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


@contextmanager
def stop_on_signal(grace: float | None = None) -> Iterator[StopRequest]:
    """Turn SIGINT and SIGTERM into a request within a `with` block (main thread only).

    Args:
        grace: See `StopRequest`.
    """
    request = StopRequest(grace)
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {n: signal.signal(n, request._ask) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        request._over()
        for number, handler in before.items():
            signal.signal(number, handler)
