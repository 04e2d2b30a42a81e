"""One process at a time: locks that end with the process that holds them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import lock_descriptor

from sfumato.errors import UserError

_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)  # Not on Windows.


class InUse(UserError):
    """Another process is at work there."""


@contextmanager
def alone(place: Path, *, wait: bool = False) -> Iterator[None]:
    """Be the only one at work on a file or folder, which need not be there yet.

    The lock is a file beside it: on Windows nobody else could read a file that is locked itself.

    Args:
        place: The file or folder.
        wait: Whether to wait for another process that is at work on it.

    Raises:
        InUse: If another process is, and is not waited for. File systems without locks never say.
        UserError: If nothing can be written beside it.
    """
    place = place.absolute()
    if not place.name:
        raise UserError(f"{place} cannot be written to: choose another folder.")
    path = place.with_name(f".{place.name}.lock")
    file = _taken(path, place, wait)
    try:
        yield
    finally:
        with suppress(OSError):  # Where files that are open cannot be removed.
            path.unlink()
        os.close(file)


def _taken(path: Path, place: Path, wait: bool) -> int:
    """The lock file, open and locked."""
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT | _NOFOLLOW, 0o644)
        except OSError as error:
            raise UserError(
                f"Cannot write to {path.parent}: {error.strerror}. Choose another folder."
            ) from None
        held = True
        with suppress(OSError):  # File systems without locks.
            held = lock_descriptor(file, blocking=wait)
        if held and _same(file, path):
            return file
        os.close(file)
        if not held:
            raise InUse(
                f"{place} is in use: another process is at work on this run. Let it go on, or wait "
                "until it has ended."
            )
        # Whoever had it took it away in between.


def _same(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False
