"""One process at a time: locks that end with the process that holds them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sfumato.errors import UserError

try:
    import fcntl
except ImportError:  # Not on Windows.
    fcntl = None  # type: ignore[assignment]


_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)  # Not on Windows.


class InUse(UserError):
    """Another process is at work there."""


def take(file: int, path: Path) -> None:
    """Have an open file for this process alone, until it is closed or the process ends.

    Raises:
        InUse: If another has it. File systems without locks never say so.
    """
    if fcntl is None:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InUse(
            f"{path} is in use: another process is at work on this run. Let it go on, or wait "
            "until it has ended."
        ) from None
    except OSError:
        return


def wait_for(file: int) -> None:
    """As `take`, once whoever has it lets go of it."""
    if fcntl is not None:
        with suppress(OSError):  # File systems without locks.
            fcntl.flock(file, fcntl.LOCK_EX)


@contextmanager
def alone(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Be the only one at work on a folder, which need not be there yet.

    Args:
        folder: Where.
        wait: Whether to wait for another process that is.

    Raises:
        InUse: If another process is, and is not waited for.
    """
    folder = folder.absolute()
    if not folder.name:
        raise UserError(f"{folder} cannot be written to: choose another folder.")
    path = folder.with_name(f".{folder.name}.lock")
    file = _taken(path, folder, wait)
    try:
        yield
    finally:
        with suppress(OSError):  # Where files that are open cannot be removed.
            path.unlink()
        os.close(file)


def _taken(path: Path, folder: Path, wait: bool) -> int:
    """The lock file, open and locked."""
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT | _NOFOLLOW, 0o644)
        except OSError as error:
            raise UserError(
                f"Cannot write to {path.parent}: {error.strerror}. Choose another folder."
            ) from None
        try:
            if wait:
                wait_for(file)
            else:
                take(file, folder)
        except InUse:
            os.close(file)
            raise
        if _same(file, path):
            return file
        os.close(file)  # Whoever had it took it away in between.


def _same(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False
