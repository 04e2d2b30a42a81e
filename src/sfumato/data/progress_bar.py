"""A progress bar in a terminal, occasional lines elsewhere, nothing for short work."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_FIRST_LINE = 3.0
_BETWEEN_LINES = 10.0


@contextmanager
def progress(label: str, total: int, *, unit: str = "") -> Iterator[Callable[[int], None]]:
    """Show the progress of some work on stderr.

    Yields:
        A function to call with the number of items that were just finished. It may be called from
        one thread only.
    """
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

        bar = Progress(
            "{task.description}",
            BarColumn(),
            MofNCompleteColumn() if not unit else f"{{task.percentage:>3.0f}}% of {total} {unit}",
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        with bar:
            task = bar.add_task(label, total=total)
            yield lambda count: bar.advance(task, count)
        return

    done = 0
    next_line = time.monotonic() + _FIRST_LINE

    def advance(count: int) -> None:
        nonlocal done, next_line
        done += count
        if time.monotonic() >= next_line:
            next_line = time.monotonic() + _BETWEEN_LINES
            print(f"{label}: {done} of {total}{' ' + unit if unit else ''}", file=sys.stderr)

    yield advance
