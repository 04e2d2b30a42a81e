"""Work in progress at the bottom of the screen: bars, one below the other, in one live display.

Two live displays on one terminal write over each other, and over what is printed meanwhile. So
whoever shows a bar hands it to `shown`, and whoever prints beside bars names the console by `use`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sfumato.text import duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.progress import Progress

_FIRST_LINE = 10.0
_BETWEEN_LINES = 10.0

_lock = threading.RLock()
_shown: list[Progress] = []
_consoles: list[Console] = []
_live: Live | None = None


@contextmanager
def use(console: Console) -> Iterator[None]:
    """Show bars on this console within a `with` block, so that it prints above them."""
    with _lock:
        _consoles.append(console)
    try:
        yield
    finally:
        with _lock:
            _consoles.remove(console)


@contextmanager
def shown(bar: Progress) -> Iterator[None]:
    """Show a bar, which must not be started, below those that are shown, and remove it at the end.

    It is drawn again ten times a second, by a thread.
    """
    global _live
    with _lock:
        _shown.append(bar)
        if _live is None:
            _live = _started()
    try:
        yield
    finally:
        with _lock:
            if _shown == [bar] and _live is not None:
                _live.stop()
                _live = None
            _shown.remove(bar)


@contextmanager
def working(label: str) -> Iterator[None]:
    """Show that work of unknown length is going on, and since when.

    On a terminal a bar without an end; elsewhere a line on stderr for work that takes longer than
    ten seconds, and one more every ten seconds.
    """
    if sys.stderr.isatty():
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        name = TextColumn("{task.description}", markup=False)
        bar = Progress(name, BarColumn(bar_width=24), TimeElapsedColumn())
        bar.add_task(label, total=None)
        with shown(bar):
            yield
        return
    over = threading.Event()
    thread = threading.Thread(target=_say_time, args=(label, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def leave() -> None:
    """Give the terminal its cursor back, from any thread, before the process ends at once."""
    if _live is not None:
        _live.console.show_cursor(True)


def _started() -> Live:
    from rich.console import Console, Group
    from rich.live import Live

    # What is printed by other means than the console has to be printed above the bars as well,
    # but what goes to a pipe has to arrive there.
    live = Live(
        console=_consoles[-1] if _consoles else Console(stderr=True, markup=False, emoji=False),
        get_renderable=lambda: Group(*(bar.get_renderable() for bar in list(_shown))),
        refresh_per_second=10,
        transient=True,
        redirect_stdout=sys.stdout.isatty(),
        redirect_stderr=sys.stderr.isatty(),
    )
    live.start(refresh=True)
    return live


def _say_time(label: str, over: threading.Event) -> None:
    began, wait = time.monotonic(), _FIRST_LINE
    while not over.wait(wait):
        print(f"{label}: {duration(time.monotonic() - began)}", file=sys.stderr, flush=True)
        wait = _BETWEEN_LINES
