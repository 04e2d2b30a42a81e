"""Kernels are compiled as soon as their shapes are traced, beside whatever else is compiled then.

A network needs a dozen of them, a few seconds each, and a compiler that traces a step knows their
shapes long before the first is launched. What is compiled ahead only saves time: a kernel that is
not ready, or could not be, is compiled when it is launched.
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
    """Work that is done in threads, each piece once."""

    def __init__(self, threads: int = _THREADS) -> None:
        self._threads = max(1, min(threads, os.cpu_count() or 1))
        self._pool: ThreadPoolExecutor | None = None
        self._known: set[Hashable] = set()
        self._pending: list[Future[None]] = []

    def begin(self, key: Hashable, work: Callable[[], object]) -> None:
        """Begin a piece of work, unless it was before; what it raises is of no account."""
        if key in self._known:
            return
        self._known.add(key)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="sfumato-kernels")
        self._pending.append(self._pool.submit(_quietly, work))

    def wait(self) -> None:
        """Return once all that was begun is done."""
        while self._pending:
            self._pending.pop().result()


def _quietly(work: Callable[[], object]) -> None:
    with contextlib.suppress(Exception):
        work()


ahead = Ahead()


def compile_ahead(
    operator: Callable[..., object], device: torch.device, *arguments: object
) -> None:
    """Have an operator's kernels compiled for arguments like these, of which tensors are not read.

    Args:
        operator: Runs on tensors without memory, for which `launch` compiles and does no more.
        device: For which; nothing is done for one without kernels.
        arguments: The operator's.
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
