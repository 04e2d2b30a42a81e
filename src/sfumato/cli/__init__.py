"""The command `sfumato`: one small file per verb, no logic that the Python API lacks."""

from __future__ import annotations

import atexit
import errno
import gc
import importlib
import os
import shlex
import sys
import warnings
from typing import Any

import typer
from rich.text import Text
from typer.core import TyperGroup

from sfumato.cli import clock
from sfumato.cli.processes import refuse_several
from sfumato.cli.terminal import Terminal, echo
from sfumato.errors import UntrustedCodeError, UserError
from sfumato.interrupted_import import loading
from sfumato.memory import out_of_memory

VERBS = (
    "init", "train", "pretrain", "tune", "evaluate", "calibrate", "predict", "report", "card",
    "export", "analyze", "budget", "plan", "verify", "audit", "sign", "recipes", "models", "data",
    "reproduce", "bench",
)  # fmt: skip


class _Verbs(TyperGroup):
    def make_context(self, *args: Any, **more: Any) -> Any:
        with loading():
            return super().make_context(*args, **more)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            echo("Stopped.", err=True)
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=_Verbs,
    help="Train image classifiers with differential privacy.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _version(show: bool) -> None:
    if show:
        from sfumato import version

        echo(f"sfumato {version.of()}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    if context.invoked_subcommand is not None:
        refuse_several(context.invoked_subcommand)


def _prepare_pytorch() -> None:
    """Say what PyTorch reads from the environment while it is loaded, unless the user has said it.

    Threads that wait for each other spin briefly and then sleep. By default GNU OpenMP spins 300
    times longer: where another program keeps one processor busy, threads then wait for one that
    waits for them, and training is many times slower.

    Memory of a CUDA device is taken in segments that grow, so that what layers give back serves
    larger ones too, in captured graphs as well.

    The compiler's loggers tell errors alone: its advice is for whoever writes the code.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = "1000"
    if not {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} & os.environ.keys():
        os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    os.environ.setdefault("TORCH_LOGS", "-dynamo,-inductor")


def _quiet_compiler() -> None:
    """Ignore Python warnings of PyTorch's compiler, unless the user asked for warnings."""
    if "PYTHONWARNINGS" not in os.environ and not sys.warnoptions:
        warnings.filterwarnings("ignore", module=r"torch\._(dynamo|inductor|functorch)\b")


_prepare_pytorch()
for _verb in VERBS:
    importlib.import_module(f"sfumato.cli.{_verb}").register(app)


def _say(sentence: str) -> None:
    words = Text.assemble(("error:", "bold red"), " ", sentence)
    Terminal(stderr=True, soft_wrap=True).print(words)


def _too_little_memory(error: Exception) -> str:
    reason = str(error).splitlines()[0].rstrip(".") if str(error) else ""
    return (
        f"There is not enough memory for this{f' ({reason})' if reason else ''}. Use smaller "
        "images, fewer of them or a smaller model."
    )


def main() -> None:
    """Run the command; a user's mistake is one sentence on stderr and exit status 2.

    Ctrl-C is a line on stderr and exit status 130.
    """
    clock.begin()
    atexit.register(gc.freeze)  # Collecting what a process leaves behind takes over a second.
    _quiet_compiler()
    try:
        with loading():
            command = typer.main.get_command(app)
        command()
    except UntrustedCodeError as error:
        again = shlex.join(["sfumato", *sys.argv[1:], "--trust-code", error.module])
        _say(f"{error} The whole command: {again}")
        sys.exit(2)
    except UserError as error:
        _say(str(error))
        sys.exit(2)
    except BrokenPipeError:
        sys.exit(1)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        _say(_too_little_memory(error))
        sys.exit(2)
    except OSError as error:
        if error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            _say(f"Nothing more can be written: {error.strerror}.")
            sys.exit(2)
        if error.filename is None or error.strerror is None:
            raise
        _say(f"{error.filename} cannot be used: {error.strerror}.")
        sys.exit(2)
