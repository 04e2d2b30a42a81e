"""A command in a terminal of its own, with the time of everything that it shows."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass
class Session:
    """The screen of a command, from its start to its end.

    Attributes:
        shown: Times and bytes, in seconds since the start.
        code: Exit status.
        seconds: Time of the end.
        interrupted: Time of Ctrl-C, if it was pressed.
    """

    shown: list[tuple[float, bytes]] = field(default_factory=list)
    code: int = 0
    seconds: float = 0.0
    interrupted: float | None = None

    @property
    def text(self) -> str:
        """Everything that was shown, without what moves the cursor and colours."""
        whole = b"".join(part for _, part in self.shown).decode(errors="replace")
        return re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", whole)

    @property
    def longest_silence(self) -> float:
        """The longest time in which nothing was shown."""
        times = [0.0, *(at for at, _ in self.shown), self.seconds]
        return max(b - a for a, b in pairwise(times))

    def first(self, words: str) -> float:
        """The time at which some words had been shown; infinite if they never were."""
        so_far = b""
        for at, part in self.shown:
            so_far += part
            if words.encode() in so_far:
                return at
        return float("inf")


def in_terminal(
    command: Sequence[str],
    *,
    columns: int = 80,
    environment: Mapping[str, str] | None = None,
    interrupt_at: str = "",
    limit: float = 120.0,
) -> Session:
    """Run a command in a terminal of some width; press Ctrl-C once when some words are shown."""
    child, screen = pty.fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # A background job may ignore it.
        size = struct.pack("HHHH", 24, columns, 0, 0)
        fcntl.ioctl(1, termios.TIOCSWINSZ, size)
        changes = {"TERM": "xterm", "COLUMNS": str(columns), **(environment or {})}
        os.execvpe(command[0], list(command), {**os.environ, **changes})
    session, began = Session(), time.monotonic()
    while True:
        ready, _, _ = select.select([screen], [], [], 0.05)
        now = time.monotonic() - began
        if ready:
            try:
                part = os.read(screen, 65536)
            except OSError:  # The terminal is closed.
                break
            if not part:
                break
            session.shown.append((now, part))
        due = session.first(interrupt_at) < float("inf") if interrupt_at else False
        if due and session.interrupted is None:
            session.interrupted = now
            os.kill(child, signal.SIGINT)
        if now > limit:
            os.kill(child, signal.SIGKILL)
            break
    _, status = os.waitpid(child, 0)
    os.close(screen)
    session.code, session.seconds = os.waitstatus_to_exitcode(status), time.monotonic() - began
    return session
