"""Several processes for one command: `--gpus N`, or `torchrun -m sfumato`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import typer

from sfumato.cli import clock
from sfumato.errors import UserError
from sfumato.interrupted_import import loading
from sfumato.training import run_folder

GPUS = typer.Option(None, metavar="N", help="Share the work among N GPUs of this machine, or all.")
SHARED = ("train",)
"""Verbs whose work processes share (`together`); all others run in one."""

_SPOKEN = 3.0
"""Seconds in which rank 0 has said why all of them end."""

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def refuse_several(verb: str) -> None:
    """Refuse several processes for a verb that runs in one, where they would race for its files.

    Raises:
        UserError: Rank 0 is to say so; the others end with the same exit status.
    """
    if verb in SHARED or not _several():
        return
    if os.environ["RANK"] != "0":
        time.sleep(_SPOKEN)  # torchrun ends all processes once one of them has ended.
        raise typer.Exit(2)
    raise UserError(
        f"`sfumato {verb}` runs in one process, and this is one of {os.environ['WORLD_SIZE']}: "
        "start it without torchrun, or unset RANK and WORLD_SIZE. Processes share the work of "
        f"`sfumato {SHARED[0]}` alone."
    )


def _started() -> bool:
    """Tell whether the environment is that of a process which torchrun started."""
    return all(os.environ.get(name) for name in _VARIABLES)


def _several() -> bool:
    """Tell whether it is one of several."""
    return _started() and os.environ["WORLD_SIZE"] != "1"


@contextmanager
def together(gpus: str | None, device: str) -> Iterator[None]:
    """Run a `with` block on all ranks, of which rank 0 alone prints.

    Args:
        gpus: Number of GPUs, for which processes are started here; as the user started them if
            None.
        device: The device that the user named.
    """
    if not _several() and gpus is None:
        yield
        return
    with loading():
        from sfumato.distributed import launch
    if not _started() and gpus is not None:
        count = launch.count_gpus(gpus, device)
        if count > 1:
            clock.hand_on()
            raise typer.Exit(launch.start(count, sys.argv[1:]))
        yield
        return
    spoken_for = False
    try:
        with launch.joined(device, _end) as ranks, _silent(not ranks.leader):
            spoken_for = not ranks.leader
            if gpus not in (None, "all", os.environ.get("LOCAL_WORLD_SIZE")):
                raise UserError("The processes are started already: leave --gpus away.")
            launch.take_gpu(device)
            yield
    except UserError:
        if not spoken_for:
            raise
        raise typer.Exit(2) from None


def _end(sentence: str) -> None:
    """End this process, whose main thread waits for a rank that does not answer."""
    print(f"error: {sentence}", file=sys.__stderr__, flush=True)
    os._exit(2)


@contextmanager
def _silent(silent: bool) -> Iterator[None]:
    """Print nothing within a `with` block."""
    if not silent:
        yield
        return
    with open(os.devnull, "w") as null, redirect_stdout(null), redirect_stderr(null):
        yield


def restarted(out: Path | None) -> Path | None:
    """The run folder to resume after `torchrun --max-restarts` has started the processes again.

    Raises:
        UserError: Processes may be started again, and could not know the folder then.
    """
    if int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) == 0:
        return None
    if out is None:
        raise UserError(
            "torchrun --max-restarts starts the command again after a failure, which has to find "
            "its run then: say where it is with --out."
        )
    from sfumato.distributed.ranks import Ranks

    again = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    unfinished = (out / run_folder.LEDGER).exists() and not run_folder.finished(out)
    return out if Ranks.current().from_leader(again and unfinished) else None
