"""Modules that take seconds to load: what is shown meanwhile, and Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType

from sfumato import live


@contextmanager
def loading(what: str = "") -> Iterator[None]:
    """Let Ctrl-C end the program at once with one line: for as long as nothing is written.

    A module that is interrupted while it is loaded may raise anything, or nothing.

    Args:
        what: What takes seconds to load, to be shown meanwhile on a terminal; nothing if empty.
    """
    with _ending_at_once(), live.working(what) if what and sys.stderr.isatty() else nullcontext():
        yield


def load_pytorch() -> None:
    """Load PyTorch and what opens runs, which takes seconds, and show it on a terminal."""
    with loading("loading PyTorch"):
        from sfumato import run as run


@contextmanager
def _ending_at_once() -> Iterator[None]:
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
    live.leave()
    os.write(2, b"Stopped before anything was written.\n")
    os._exit(130)
