"""Ctrl-C while modules are loaded."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def loading() -> Iterator[None]:
    """Let Ctrl-C end the program at once with one line: for as long as nothing is written.

    A module that is interrupted while it is loaded may raise anything, or nothing.
    """
    usual = signal.getsignal(signal.SIGINT)
    main = threading.current_thread() is threading.main_thread()
    if not main or usual is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


def _leave(_number: int, _frame: FrameType | None) -> None:
    os.write(2, b"Stopped before anything was written.\n")
    os._exit(130)
