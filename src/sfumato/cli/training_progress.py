"""Progress on the terminal: a bar where there is one, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as Bar

from sfumato.cli.terminal import Terminal, echo
from sfumato.privacy.statement import upwards
from sfumato.training.reporter import Progress, Reporter

console = Terminal()


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def describe(p: Progress) -> str:
    """The numbers of a step on one line."""
    parts = [] if math.isinf(p.epsilon) else [f"ε {upwards(p.epsilon, places=3)}"]
    if p.loss is not None:
        parts.append(f"loss {p.loss:.3f}")
    if p.accuracy is not None:
        parts.append(f"accuracy {100 * p.accuracy:.1f} %")
    if p.views_per_second:
        parts.append(f"{p.views_per_second:,.0f} views/s")
    if p.seconds_left is not None:
        parts.append(f"{_duration(p.seconds_left)} left")
    return " · ".join(parts)


class _OnTerminal:
    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._task: TaskID | None = None

    def say(self, message: str) -> None:
        self._bar.console.print(message, soft_wrap=True)

    def show(self, progress: Progress) -> None:
        if self._task is None:
            self._task = self._bar.add_task("", total=progress.steps)
        self._bar.update(self._task, completed=progress.step, description=describe(progress))


class _AsLines:
    """A line every two seconds at first, every minute in a run of hours: a log is read later."""

    def __init__(self) -> None:
        self._step = math.inf
        self._begun = self._last = 0.0

    def say(self, message: str) -> None:
        echo(message)
        sys.stdout.flush()

    def show(self, progress: Progress) -> None:
        now = time.monotonic()
        if progress.step <= self._step:  # Of another run.
            self._begun, self._last = now, -math.inf
        self._step = progress.step
        wait = min(max(2.0, (now - self._begun) / 20), 60.0)
        if now - self._last >= wait or progress.step == progress.steps:
            self._last = now
            print(f"step {progress.step}/{progress.steps}  {describe(progress)}", flush=True)


@contextmanager
def watched() -> Iterator[Reporter]:
    """A reporter that suits where the output goes."""
    if not console.is_terminal:
        yield _AsLines()
        return
    numbers = TextColumn("{task.description}", markup=False)
    with Bar(BarColumn(bar_width=24), MofNCompleteColumn(), numbers, console=console) as bar:
        yield _OnTerminal(bar)
