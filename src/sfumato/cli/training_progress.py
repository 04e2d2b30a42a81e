"""Progress on the terminal: a bar where there is one, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rich.console import RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as Bar
from rich.text import Text

from sfumato import live
from sfumato.cli.terminal import Terminal, echo
from sfumato.privacy.statement import upwards
from sfumato.training.reporter import Progress, Reporter

console = Terminal()


def say(message: str) -> None:
    """Print a message: its sentences between words, indented commands as they are, to be copied."""
    for line in message.splitlines():
        console.print(line, soft_wrap=line.startswith("  "))


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _left(p: Progress) -> str:
    return "" if p.seconds_left is None else f"{_duration(p.seconds_left)} left"


def describe(p: Progress, *, left: bool = True) -> str:
    """The numbers of a step, by default with the time that is left."""
    parts = [] if math.isinf(p.epsilon) else [f"ε {upwards(p.epsilon, places=3)}"]
    if p.loss is not None:
        parts.append(f"loss {p.loss:.3f}")
    if p.accuracy is not None:
        parts.append(f"accuracy {100 * p.accuracy:.1f} %")
    if p.views_per_second:
        parts.append(f"{p.views_per_second:,.0f} views/s")
    if left and p.seconds_left is not None:
        parts.append(_left(p))
    return " · ".join(parts)


class _Steps(Bar):
    """The bar of a run: its steps and the time that is left, and below it the numbers of a step."""

    def __init__(self) -> None:
        self._numbers = Text()  # Both are used while the bar is made.
        self._task: TaskID | None = None
        time_left = TextColumn("{task.fields[left]}")
        super().__init__(BarColumn(bar_width=24), MofNCompleteColumn(), time_left)

    def step(self, progress: Progress) -> None:
        """Show the progress after a step."""
        if self._task is None:
            self._task = self.add_task("", total=progress.steps, left="")
        self.update(self._task, completed=progress.step, total=progress.steps, left=_left(progress))
        self._numbers = Text(describe(progress, left=False))

    def get_renderables(self) -> Iterable[RenderableType]:
        """The bar, and the numbers on as many lines as they need."""
        if self._task is not None:
            yield self.make_tasks_table(self.tasks)
            yield self._numbers


class _OnTerminal:
    def __init__(self, bar: _Steps) -> None:
        self._bar = bar
        self.last: Progress | None = None

    def say(self, message: str) -> None:
        say(message)

    def show(self, progress: Progress) -> None:
        self.last = progress
        self._bar.step(progress)


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
    bar = _Steps()
    reporter = _OnTerminal(bar)
    with live.use(console), live.shown(bar):
        yield reporter
    if (last := reporter.last) is not None:
        console.print(f"step {last.step}/{last.steps}  {describe(last, left=False)}")
