"""Ctrl-C while a run is trained: an answer at once, the end within five seconds.

Python calls the handler of a signal between two of its own instructions, and one layer of a large
batch may take many seconds. So a thread answers, which the signal wakes whatever is computed. A run
can be killed at any time without loss, so the thread may end the process too.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer

from sfumato import live
from sfumato.cli.terminal import echo

PATIENCE = 4.0
"""Seconds after which the process is ended that was asked to stop."""


@contextmanager
def interruptible(
    names: Sequence[str], out: Path | None, resumed: Path | None, code: str
) -> Iterator[None]:
    """Answer Ctrl-C, and say what is left of a run that it ends without saving anything.

    Args:
        names: The name of the recipe, and of those that may be taken instead.
        out: The folder asked for, if any.
        resumed: The run that goes on, if it is not a new one.
        code: Options that going on needs.
    """
    from sfumato.training import run_folder

    def begun() -> set[Path]:
        return set().union(*(run_folder.begun(name, out) for name in names))

    before = begun()

    def what_is_left() -> str:
        left = [resumed] if resumed else sorted(begun() - before)
        if not left:
            return "Stopped before training began."
        return f"Stopped. Go on with: sfumato train --resume {shlex.quote(str(left[0]))}{code}"

    try:
        with _answered(what_is_left):
            yield
    except KeyboardInterrupt:
        echo(what_is_left(), err=True)
        raise typer.Exit(130) from None


@contextmanager
def _answered(last_words: Callable[[], str]) -> Iterator[None]:
    """Answer SIGINT and SIGTERM from a thread, and end the process if it does not end by itself."""
    alone = int(os.environ.get("WORLD_SIZE", "1")) == 1  # Several processes stop together.
    if not alone or threading.current_thread() is not threading.main_thread():
        yield
        return
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    over = threading.Event()
    usual = signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    thread = threading.Thread(target=_answer, args=(woken, over, last_words), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        signal.set_wakeup_fd(usual)
        os.close(wakes)
        thread.join()
        os.close(woken)


def _answer(woken: int, over: threading.Event, last_words: Callable[[], str]) -> None:
    stops = {signal.SIGINT, signal.SIGTERM}
    while received := os.read(woken, 1):
        if received[0] in stops:
            break
    else:
        return
    print("Stopping; everything that is done is saved.", file=sys.stderr, flush=True)
    if over.wait(PATIENCE):
        return
    live.leave()
    print(last_words(), file=sys.stderr, flush=True)
    os._exit(128 + received[0])
