"""One line on the screen about work that takes more than a second."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Timer

AFTER = 1.0
"""Seconds after which work is announced."""


def on_stderr(message: str) -> None:
    """Print a line on stderr."""
    print(message, file=sys.stderr, flush=True)


@contextmanager
def announced(message: str, say: Callable[[str], None]) -> Iterator[None]:
    """Say what is going on, unless it is over within a second.

    Nothing is said where memory does not suffice for a thread: the work may need less.
    """
    timer = Timer(AFTER, say, [message])
    timer.daemon = True
    with suppress(RuntimeError):
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
