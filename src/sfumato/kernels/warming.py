"""Compilation of kernels in threads as soon as their shapes are traced.

A network needs a dozen kernels, a few seconds each, and a compiler that traces a step knows their
shapes long before the first is launched. Compiling ahead only saves time: a kernel that is not
ready, or failed to compile, is compiled when it is launched.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

_THREADS = 8


class Ahead:
    """Jobs that run in threads, each once."""

    def __init__(self, threads: int = _THREADS) -> None:
        self._threads = max(1, min(threads, os.cpu_count() or 1))
        self._pool: ThreadPoolExecutor | None = None
        self._known: set[Hashable] = set()
        self._pending: list[Future[None]] = []

    def begin(self, key: Hashable, work: Callable[[], object]) -> None:
        """Start a job, unless one of this key was started before; exceptions are ignored."""
        if key in self._known:
            return
        self._known.add(key)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="sfumato-kernels")
        self._pending.append(self._pool.submit(_quietly, work))

    def wait(self) -> None:
        """Wait for all jobs that were started."""
        while self._pending:
            self._pending.pop().result()


def _quietly(work: Callable[[], object]) -> None:
    with contextlib.suppress(Exception):
        work()


ahead = Ahead()


def compile_ahead(
    operator: Callable[..., object], device: torch.device, *arguments: object
) -> None:
    """Compile an operator's kernels for arguments like these; the values of tensors are not read.

    Args:
        operator: Runs on tensors without memory, for which `launch` only compiles.
        device: The device to compile for; nothing is done for one without kernels.
        arguments: The operator's arguments.
    """
    if device.type != "cuda" or not torch.cuda.is_available():
        return
    tensors = [a for a in arguments if isinstance(a, Tensor)]
    if any(type(size) is not int for t in tensors for size in t.shape):
        return
    likes = tuple((tuple(a.shape), a.dtype) if isinstance(a, Tensor) else (a,) for a in arguments)

    def work() -> None:
        made = [
            torch.empty(like[0], dtype=like[1], device="meta") if len(like) > 1 else like[0]
            for like in likes
        ]
        with torch.cuda.device(device):
            operator(*made)

    ahead.begin((operator, device, repr(likes)), work)


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    """Launch a kernel; on tensors without memory, compile it."""
    if any(isinstance(a, Tensor) and a.is_meta for a in arguments):
        likes = (a.dtype if isinstance(a, Tensor) else a for a in arguments)
        kernel.warmup(*likes, grid=grid, **options)
        return
    ahead.wait()
    kernel[grid](*arguments, **options)
