"""Processes with a group of their own, started from a server that has the imports done."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import multiprocessing.forkserver
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from sfumato.training import release

_START = multiprocessing.get_context("forkserver")
_START.set_forkserver_preload(["sfumato.cli", "sfumato.training.pipeline", "torch._dynamo"])


class Failed(str):
    """The name and the sentence of an error on a rank."""


def on_ranks(size: int, work: Callable[..., Any], *args: Any) -> list[Any]:
    """What `work` returns on each of some ranks, or `Failed`; one rank has no process group."""
    return _started([(rank, size, work, args) for rank in range(size)])


def commands(lines: Sequence[Sequence[str]], **environment: str) -> list[tuple[int, str, str]]:
    """Exit status, output and errors of `sfumato` on each of some ranks, as torchrun starts it."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    given = {"WORLD_SIZE": str(len(lines)), "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    work = [
        (rank, 1, _command, (line, given | {"RANK": str(rank)} | environment))
        for rank, line in enumerate(lines)
    ]
    return _started(work)


def _command(line: Sequence[str], environment: dict[str, str]) -> tuple[int, str, str]:
    from sfumato import cli

    os.environ.update(environment)
    sys.argv = ["sfumato", *line]
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
    return code, out.getvalue(), err.getvalue()


def _started(members: Sequence[tuple[int, int, Callable[..., Any], Any]]) -> list[Any]:
    with mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES=""):  # No GPU in forked processes.
        multiprocessing.forkserver.ensure_running()
    with tempfile.TemporaryDirectory() as folder:
        started = []
        for member in members:
            ours, theirs = _START.Pipe(duplex=False)
            given = (theirs, Path(folder) / "store", *member)
            process = _START.Process(target=_member, args=given)
            process.start()
            theirs.close()
            started.append((process, ours))
        found = []
        for process, ours in started:
            try:
                found.append(ours.recv() if ours.poll(100) else Failed("no answer"))
            except EOFError:
                found.append(Failed("killed"))
            process.join(10)
            process.kill()
        return found


def _no_picture(_: object, path: Path, **__: object) -> None:
    path.write_bytes(b"\x89PNG\r\n\x1a\n")


def _member(
    answer: Connection, store: Path, rank: int, size: int, work: Callable[..., Any], args: Any
) -> None:
    torch.set_num_threads(1)
    release.curves = SimpleNamespace(draw=_no_picture)  # type: ignore[assignment]
    if size > 1:
        where = dist.FileStore(str(store), size)
        dist.init_process_group("gloo", store=where, rank=rank, world_size=size)
    try:
        answer.send(work(*args))
    except Exception as error:
        answer.send(Failed(f"{type(error).__name__}: {error}"))
    answer.close()
    if size > 1:
        dist.destroy_process_group()
