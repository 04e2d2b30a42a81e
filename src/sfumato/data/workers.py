"""Jobs spread over all cores: by threads of this process, or by processes of their own."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from sfumato.errors import UserError

Job = TypeVar("Job")
Answer = TypeVar("Answer")

_MOST = 64


def cores() -> int:
    """The number of cores that this process may use, up to 64."""
    usable = getattr(os, "sched_getaffinity", None)  # Not on macOS and Windows.
    return min(_MOST, len(usable(0)) if usable else os.cpu_count() or 1)


def spread(
    jobs: Iterable[Job], work: Callable[[Job], Answer], count: int
) -> Generator[tuple[Job, Answer], None, None]:
    """Jobs with their answers, in the order in which they are finished.

    Args:
        jobs: the jobs; only a few are taken ahead of those that are finished.
        work: called from several threads at once.
        count: number of threads.
    """
    pending: dict[Future[Answer], Job] = {}

    def finished() -> Iterator[tuple[Job, Answer]]:
        for future in wait(pending, return_when=FIRST_COMPLETED).done:
            yield pending.pop(future), future.result()

    pool = ThreadPoolExecutor(count)
    try:
        for job in jobs:
            pending[pool.submit(work, job)] = job
            if len(pending) >= 2 * count:
                yield from finished()
        while pending:
            yield from finished()
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def processes() -> Iterator[Callable[[dict[str, Any]], dict[str, Any]]]:
    """A function that has jobs done as `sfumato.data.worker.work` does them, by other processes.

    It may be called from several threads at once: each call takes a process that has nothing to do,
    or starts one. All end when the context does.

    Yields:
        The function. It raises what `work` raises, and UserError if a process was ended.
    """
    idle: queue.SimpleQueue[subprocess.Popen[str]] = queue.SimpleQueue()
    started: list[subprocess.Popen[str]] = []

    def call(job: dict[str, Any]) -> dict[str, Any]:
        try:
            process = idle.get_nowait()
        except queue.Empty:
            process = _start()
            started.append(process)
        answer = _asked(process, job)
        idle.put(process)
        return answer

    try:
        yield call
    finally:
        for process in started:
            with suppress(OSError):
                process.stdin.close()  # type: ignore[union-attr]
        for process in started:
            process.wait()
            process.stdout.close()  # type: ignore[union-attr]


def _start() -> subprocess.Popen[str]:
    home = str(Path(__file__).parents[2])  # Where this sfumato is, whatever others there are.
    path = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH", ""))))
    return subprocess.Popen(
        [sys.executable, "-m", "sfumato.data.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"},
        encoding="ascii",
    )


def _asked(process: subprocess.Popen[str], job: dict[str, Any]) -> dict[str, Any]:
    """The answer of a process to one job."""
    line = ""
    with suppress(BrokenPipeError):
        process.stdin.write(json.dumps(job) + "\n")  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]
        line = process.stdout.readline()  # type: ignore[union-attr]
    if not line.endswith("\n"):
        raise UserError(
            f"A process that decodes images was ended (status {process.wait()}), perhaps for lack "
            "of memory. Start again: the images that are decoded are kept."
        )
    answer: dict[str, Any] = json.loads(line)
    if "refused" in answer:
        raise UserError(answer["refused"])
    if "failed" in answer:
        raise OSError(*answer["failed"])
    done: dict[str, Any] = answer["done"]
    return done
