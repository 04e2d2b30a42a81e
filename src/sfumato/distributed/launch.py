"""Start of the processes of a run, and the process group that they form."""

from __future__ import annotations

import logging
import os
import signal
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from sfumato.distributed.heartbeat import watched
from sfumato.distributed.ranks import OtherRankError, Ranks, sharing_errors
from sfumato.errors import UserError

_MEETING = timedelta(minutes=5)
"""Longest time between the starts of the first process and the last."""

_WAITING = timedelta(minutes=30)
"""Longest time that ranks wait for each other; the end of a process is known at once."""


@contextmanager
def joined(device: str, lost: Callable[[str], None]) -> Iterator[Ranks]:
    """Form the process group that the environment describes, for a `with` block.

    An error within the block is one on all ranks; rank 0 is then the first to return.

    Args:
        device: `auto`, `cpu`, `cuda`, `cuda:N` or `mps`.
        lost: Ends this process with a sentence, if another one gives no sign of life.

    Raises:
        UserError: The group cannot be formed.
    """
    try:
        store, rank, size = next(rendezvous("env://", timeout=_MEETING))
        # The store may outlive processes that torchrun starts again, with their addresses in it.
        store = PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
        backend = "cpu:gloo,cuda:nccl" if _own_gpus(device) else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_WAITING)
    except (RuntimeError, ValueError) as error:
        where = ":".join(os.environ.get(name, "?") for name in ("MASTER_ADDR", "MASTER_PORT"))
        reason = str(error).splitlines()[0].rstrip(".")
        raise UserError(
            f"The processes of this run cannot meet at {where} ({reason}). If the port is in use, "
            "choose another (MASTER_PORT, or torchrun --master-port), and check that all machines "
            "reach that address."
        ) from None
    ranks = Ranks.current()
    try:
        with watched(ranks, lost), sharing_errors():
            yield ranks
    except BaseException:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Whoever started the processes ends them.
        if not ranks.leader:
            _wait_for_leader(ranks)
        raise
    dist.destroy_process_group()


def _own_gpus(device: str) -> bool:
    """Tell whether each rank has a GPU of its own: not if the user names one by its number."""
    return device == "cuda" or (device == "auto" and torch.cuda.is_available())


def take_gpu(device: str) -> None:
    """Use the GPU that has the number of this process on its machine, if ranks have their own.

    Raises:
        UserError: There are fewer GPUs than processes.
    """
    number, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if not _own_gpus(device):
        return
    if number >= count:
        raise UserError(
            f"There are {count} CUDA devices here and at least {number + 1} processes: start one "
            "process for each device, or let them share one with --device cuda:0."
        )
    torch.cuda.set_device(number)


def _wait_for_leader(ranks: Ranks) -> None:
    """Return once the process of rank 0 has ended, which has a sentence to say before."""
    with suppress(OtherRankError):
        while True:
            ranks.exchange(error="")


def count_gpus(wanted: str, device: str) -> int:
    """The number of processes for a number of GPUs or `all`.

    On the CPU, and on one GPU that is named as in `cuda:0`, any number of processes may share it.

    Raises:
        UserError: It is no number, or there are not so many GPUs.
    """
    found = torch.cuda.device_count()
    if wanted != "all" and (not wanted.isdecimal() or int(wanted) < 1):
        raise UserError(f"--gpus takes a number from 1 on, or all, not '{wanted}'.")
    shared = device == "cpu" or (found > 0 and device.startswith("cuda:"))
    if shared and wanted != "all":
        return int(wanted)
    if not found or (wanted != "all" and int(wanted) > found):
        there = f"are {found} CUDA devices" if found > 1 else "is one CUDA device"
        raise UserError(
            f"--gpus {wanted}: there {there if found else 'is no CUDA device'} here. "
            + (f"Give --gpus {found} or fewer, or let processes share one with --device cuda:0."
               if found else "Leave it away, or give --device cpu "
               "with a number to share the work among processes on the CPU.")
        )  # fmt: skip
    return found if wanted == "all" else int(wanted)


def start(count: int, arguments: Sequence[str]) -> int:
    """Run `python -m sfumato` in several processes on this machine.

    Returns:
        The exit status: 0, that of a process that failed, or 128 and the number of a signal.

    Raises:
        UserError: Rank 0, which would have said why, was killed.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count)))
    logging.disable(logging.ERROR)  # Rank 0 says what has happened.
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=count, run_id=uuid.uuid4().hex,
        rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=0,
    )  # fmt: skip
    try:
        elastic_launch(config, sys.executable)("-m", "sfumato", *arguments)
    except SignalException as stopped:
        return 128 + stopped.sigval
    except ChildFailedError as failed:
        codes = {rank: failure.exitcode for rank, failure in failed.failures.items()}
        if codes.get(0, 0) < 0:
            raise UserError(
                f"Rank 0 of the {count} processes was ended by signal {-codes[0]}. If its run has "
                "a folder, `sfumato train --resume FOLDER` continues it."
            ) from None
        return max(max(codes.values()), 1)
    return 0
