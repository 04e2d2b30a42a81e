"""Work in several processes of which one at a time has the machine to itself.

Networks are compiled at the same time, which takes most of a measurement on a GPU; before steps are
timed all other processes are stopped, and go on afterwards.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

Alone = Callable[[], AbstractContextManager[None]]
"""A context in which the other processes are stopped."""

Work = Callable[[Any, Alone], Any]

_SETTLE = 0.2
"""Seconds after a process is stopped until the GPU has done what it was given before."""


def in_processes(
    tasks: Sequence[Any], work: Work, jobs: int, *, ended: Callable[[Any], Any]
) -> Iterator[Any]:
    """The results of tasks, as they come, from `jobs` processes.

    Args:
        tasks: Arguments of `work`, begun in this order.
        work: A function of a module; called with a task and a context to be alone in.
        jobs: Processes.
        ended: The result of a task whose process ended without one.
    """
    left = list(reversed(tasks))
    running: dict[Connection, tuple[BaseProcess, Any]] = {}
    start = multiprocessing.get_context("spawn")

    def begin() -> None:
        ours, theirs = start.Pipe()
        process = start.Process(target=_process, args=(theirs, work), daemon=False)
        process.start()
        theirs.close()
        running[ours] = process, left.pop()
        ours.send(running[ours][1])

    try:
        while len(running) < jobs and left:
            begin()
        while running:
            connection = wait(list(running))[0]
            assert isinstance(connection, Connection)
            process, task = running[connection]
            try:
                kind, result = connection.recv()
            except (EOFError, ConnectionResetError):
                del running[connection]
                if left:
                    begin()
                yield ended(task)
                continue
            if kind == "alone":
                _leave_alone(connection, [p for p, _ in running.values() if p is not process])
                continue
            if left:
                running[connection] = process, left.pop()
                connection.send(running[connection][1])
            else:
                del running[connection]
                connection.close()
            yield result
    finally:
        for connection, (process, _) in running.items():
            connection.close()
            _signal(process, signal.SIGTERM)


def _leave_alone(connection: Connection, others: Sequence[BaseProcess]) -> None:
    """Stop the other processes until this one says that it is done, or ends."""
    try:
        for other in others:
            _signal(other, signal.SIGSTOP)
        time.sleep(_SETTLE)
        with contextlib.suppress(EOFError, OSError):
            connection.send(None)
            connection.recv()
    finally:
        for other in others:
            _signal(other, signal.SIGCONT)


def _signal(process: BaseProcess, number: signal.Signals) -> None:
    """Send a signal to a process and to all that it started."""
    if process.pid is None:
        return
    for send in (os.killpg, os.kill):  # A process that is being started has no group yet.
        with contextlib.suppress(ProcessLookupError):
            return send(process.pid, number)


def _end_with(parent: int) -> None:
    """End this process group once the process that started it has ended, killed perhaps."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _process(connection: Connection, work: Work) -> None:
    """Do tasks until there are no more, in a process group with all processes that they start."""
    os.setsid()
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()

    @contextlib.contextmanager
    def alone() -> Iterator[None]:
        connection.send(("alone", None))
        connection.recv()
        try:
            yield
        finally:
            connection.send(("done", None))

    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            connection.send(("result", work(connection.recv(), alone)))
