"""A progress bar in a terminal, occasional lines elsewhere, nothing for short work."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sfumato import live
from sfumato.text import duration, printable

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

_FIRST_LINE = 3.0
_BETWEEN_LINES = 10.0


@contextmanager
def progress(
    label: str, total: int, *, unit: str = "", done: int = 0
) -> Iterator[Callable[[int], None]]:
    """Show the progress of some work on stderr, with its speed and the time that is left.

    Args:
        label: what is done.
        total: number of items.
        unit: what an item is.
        done: number of items that were finished before; they do not count for the speed.

    Yields:
        A function to call with the number of items that were just finished. It may be called from
        one thread only.
    """
    start, before = time.monotonic(), done

    def speed() -> float:
        return (done - before) / max(time.monotonic() - start, 1e-9)

    if sys.stderr.isatty():
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        columns: list[str | ProgressColumn] = [
            TextColumn("{task.description}", markup=False),  # A folder's name is text.
            BarColumn(bar_width=24),
            MofNCompleteColumn() if not unit else f"{{task.percentage:>3.0f}}% of {total} {unit}",
            "{task.fields[speed]}",
            TimeRemainingColumn(),
        ]
        bar = Progress(*columns)
        task = bar.add_task(printable(label), total=total, completed=done, speed="")

        def advance_bar(count: int) -> None:
            nonlocal done
            done += count
            bar.update(task, advance=count, speed=_per_second(speed()))

        with live.shown(bar):
            yield advance_bar
        return

    next_line = start + _FIRST_LINE

    def advance(count: int) -> None:
        nonlocal done, next_line
        done += count
        if time.monotonic() >= next_line:
            next_line = time.monotonic() + _BETWEEN_LINES
            counted = f"{printable(label)}: {done} of {total}{' ' + unit if unit else ''}"
            left = (total - done) / speed() if done > before else None
            print(f"{counted}, {_per_second(speed())}, {duration(left)} left", file=sys.stderr)

    yield advance


def _per_second(speed: float) -> str:
    return f"{speed:,.0f}/s" if speed >= 10 else f"{speed:.2g}/s"
