"""The run folder: the names of its files, and checks on writing to it."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sfumato.errors import UserError

if TYPE_CHECKING:
    from sfumato.models import Code, Trust

RECIPE = "recipe.toml"
LEDGER = "ledger.jsonl"
METRICS = "metrics.jsonl"
WEIGHTS = "model.safetensors"
STATEMENT = "statement.md"
GUARANTEE = "guarantee.json"
CURVES = "curves.png"
AUDIT = "audit.json"
AUDIT_PICTURE = "audit.png"
CHECKPOINTS = "checkpoints"
KEY = "secret.key"
VERSION = 2
"""Version of run folders, in the ledger's first line: from 2 on they hold `guarantee.json`."""


def without_clock(path: Path, folder: Path) -> None:
    """Give a file, or a folder, of a run the modification time of the run's recipe.

    *Guarantee:* Copies and archives of a run folder do not show when its steps were taken, nor when
    the last was, and so not how many images they drew. (The file system of the original still
    knows.)
    """
    with contextlib.suppress(OSError):
        began = os.stat(folder / RECIPE).st_mtime_ns
        os.utime(path, ns=(began, began))


def trust(code: Iterable[Code], source: Path | None = None) -> Trust:
    """The model code that a file may run: what the user named, and never from a run folder.

    Args:
        code: Modules, or models as `package.module:function`, that the user named, and a model
            that the user has given as an object.
        source: The file or run folder that is read; None for a recipe.
    """
    from sfumato.models import Trust

    marks = (LEDGER, STATEMENT)
    code = tuple(code)
    names = tuple(item for item in code if isinstance(item, str))
    given = tuple(item for item in code if not isinstance(item, str))
    if source is None:
        return Trust(names, marks=marks, given=given)
    # A file of a run lies in its folder or, for checkpoints and snapshots, one below it.
    near = [source] if source.is_dir() else list(source.absolute().parents[:2])
    known = (RECIPE, LEDGER, WEIGHTS, STATEMENT)
    runs = [f for f in near if f == source or any((f / name).exists() for name in known)]
    return Trust(names, str(source), tuple(runs), marks, given)


def check_run(folder: Path) -> None:
    """Refuse what is no run folder.

    Raises:
        UserError: If it holds neither a ledger nor a recipe.
    """
    known = (LEDGER, RECIPE)
    if not folder.exists():
        raise UserError(f"There is no run folder {folder}.")
    if folder.is_file() and any((folder.parent / name).is_file() for name in known):
        raise UserError(f"{folder} is a file of a run: give its folder, {folder.parent}.")
    if not any((folder / name).is_file() for name in known):
        raise UserError(
            f"{folder} is not a run folder: it holds neither {LEDGER} nor {RECIPE}. Give folders "
            "that `sfumato train` made, such as runs/digits-001."
        )


def is_run(path: Path) -> bool:
    """Tell whether a path is the folder of a run that began."""
    return (path / LEDGER).is_file()


def refuse_links(folder: Path) -> None:
    """Refuse to write to a run folder with links out of it.

    Guarantee: A run writes, replaces or deletes only files in its folder, whoever made the folder.

    Raises:
        UserError: If a file or folder in it is a link to somewhere else.
    """
    home = os.path.realpath(folder)
    for where, folders, names in os.walk(home):
        for name in (*folders, *names):
            path = os.path.join(where, name)
            target = os.path.realpath(path)
            if os.path.islink(path) and not target.startswith(home + os.sep):
                raise UserError(
                    f"{path} is a link out of the run folder, to {target}. Nothing is written or "
                    "deleted outside a run folder: put the file or folder itself in its place."
                )


def sweep(folder: Path) -> None:
    """Remove temporary files that a kill in the middle of `write_whole` left in a run folder."""
    for where in (folder, folder / CHECKPOINTS):
        for path in where.glob(".*.????????"):
            path.unlink(missing_ok=True)


def finished(folder: Path) -> bool:
    """Tell whether a run came to its end: weights and statement are written last."""
    return (folder / WEIGHTS).exists() and (folder / STATEMENT).exists()


def weights_removed(folder: Path) -> bool:
    """Tell whether a run came to its end and lost its weights since: the statement comes later."""
    return (folder / STATEMENT).exists() and not (folder / WEIGHTS).exists()


def without_weights(folder: Path) -> str:
    """The sentence on a run without weights: why there are none, and what to do."""
    if weights_removed(folder):
        again = shlex.quote(str(folder / RECIPE))
        return (
            f"{folder} has finished, but its {WEIGHTS} was removed. It cannot be resumed: take the "
            f"file from a copy of the folder, or train anew by `sfumato train {again}`."
        )
    command = f"sfumato train --resume {shlex.quote(str(folder))}"
    return f"{folder} has not finished and holds no {WEIGHTS}: `{command}` goes on with it."


def begun(name: str, out: Path | None) -> set[Path]:
    """The runs that exist at `out`, or under this name where runs are made without it."""
    folders = [out] if out is not None else Path("runs").glob(f"{glob.escape(_stem(name))}-*")
    return {folder for folder in folders if (folder / LEDGER).exists()}


def _stem(name: str) -> str:
    """A folder name from a recipe's name, which may contain any character."""
    return re.sub(r"[^\w.+=-]+", "-", name)[:100] or "run"


def check_free(out: Path) -> None:
    """Refuse a folder that already holds something, or that cannot be made."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        hint = "nothing in it is touched;"
        if (out / LEDGER).exists() and not finished(out):
            hint = f"go on with it by `sfumato train --resume {shlex.quote(str(out))}`, or"
        raise UserError(f"{out} already exists: {hint} choose another --out.")
    above = next((path for path in (out, *out.parents) if path.exists()), Path())
    if above != out and not above.is_dir():
        raise UserError(
            f"Cannot make the run folder {out}: {above} is a file. Choose another with --out."
        )
    if not os.access(above, os.W_OK | os.X_OK):
        raise UserError(
            f"Cannot make the run folder {out}: nothing may be written in {above}. Choose another "
            "with --out."
        )


def new_run_folder(out: Path | None, name: str) -> Path:
    """Make the folder of a new run: the requested one, or the next free `runs/NAME-NNN`.

    Raises:
        UserError: If the requested folder already holds something, or cannot be made.
    """
    try:
        if out is not None:
            check_free(out)
            out.mkdir(parents=True, exist_ok=True)
            folder = out
        else:
            runs = Path("runs")
            runs.mkdir(exist_ok=True)
            number = 1
            while True:
                folder = runs / f"{_stem(name)}-{number:03d}"
                try:
                    folder.mkdir()
                    break
                except FileExistsError:
                    number += 1
        (folder / CHECKPOINTS).mkdir()
    except OSError as error:
        where = out or Path("runs")
        raise UserError(
            f"Cannot make the run folder {where}: {error.strerror}. Choose another with --out."
        ) from None
    return folder


@contextmanager
def unless_refused(folder: Path, begun: Callable[[], bool]) -> Iterator[None]:
    """Remove a new run folder if the run is refused before it has begun."""
    try:
        yield
    except UserError:
        if not begun():
            shutil.rmtree(folder, ignore_errors=True)
        raise


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Turn a failed write into a `UserError` that says what it means for the run."""
    try:
        yield
    except OSError as error:
        resumable = (folder / LEDGER).exists()
        command = f"sfumato train --resume {shlex.quote(str(folder))}"
        raise UserError(
            f"Cannot write to {error.filename or folder}: {error.strerror}. "
            + (
                f"Nothing is lost: make room, then `{command}` goes on from the last checkpoint."
                if resumable
                else "The run has not started."
            )
        ) from None
