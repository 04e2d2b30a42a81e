"""What a call of `sfumato` leaves behind, and what a mistake of the user must look like."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Result(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Result]
"""Words of a command line, of any type, to what the command left."""


def refused(result: Result, *words: str) -> None:
    """Exit status 2, a sentence as the last line of stderr, all these words, no traceback."""
    assert result.code == 2, result
    assert "Traceback" not in result.err, result.err
    assert result.err.splitlines()[-1].startswith("error: "), result.err
    for word in words:
        assert word in result.err, (word, result.err)
