"""Limits on the unpacked size of a file, checked before memory is allocated."""

from __future__ import annotations

import os
from pathlib import Path

from sfumato.errors import UserError

VARIABLE = "SFUMATO_MAX_GIB"
"""Environment variable: GiB that one data file may unpack to."""

_USUAL = 4.0
_RATIO = 20
"""Ratio that compressed images rarely exceed; a file of zeros reaches a thousand."""


def check_unpacked(path: Path, size: int) -> None:
    """Refuse a file that would unpack to more than the limit.

    A file may always unpack to twenty times its own size, so that large sets of images need no
    setting.

    Args:
        path: The file.
        size: Bytes that it would take in memory.

    Raises:
        UserError: If they are too many.
    """
    limit = gibibytes()
    if size <= max(limit * 2**30, _RATIO * path.stat().st_size):
        return
    raise UserError(
        f"{path} would unpack from {bytes_in_words(path.stat().st_size)} to "
        f"{bytes_in_words(size)} of memory, and the limit is {limit:g} GiB. If that is what it "
        f"should hold, raise the limit: {VARIABLE}={_rounded_up(size)}."
    )


def gibibytes() -> float:
    """The GiB that one file, or images that no disk has room for, may take in memory."""
    text = os.environ.get(VARIABLE, "")
    try:
        limit = float(text) if text else _USUAL
    except ValueError:
        limit = -1.0
    if not 0 < limit < float("inf"):
        raise UserError(f"{VARIABLE} is a number of GiB greater than 0, not '{text}'.")
    return limit


def _rounded_up(size: int) -> int:
    return -(-size // 2**30)


def bytes_in_words(size: int) -> str:
    """A number of bytes as people write it, such as 11.4 GiB."""
    for unit, bytes_in_it in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= bytes_in_it:
            return f"{size / bytes_in_it:,.1f} {unit}"
    return f"{size} bytes"
