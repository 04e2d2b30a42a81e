"""`--part I/N`: the share of one of several processes side by side."""

from __future__ import annotations

import re

from sfumato.errors import UserError


def parse_part(text: str | None) -> slice:
    """The share that `--part` takes of a list: every N-th from the I-th on, or all without it."""
    if text is None:
        return slice(None)
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise UserError(f"--part is I/N with I from 1 to N, as in 2/4, not '{text}'.")
    return slice(int(match[1]) - 1, None, int(match[2]))
