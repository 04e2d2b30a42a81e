"""The one exception that speaks to people."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake in what the user gave: one sentence that says what is wrong, where, and what to do.

    The command line prints the sentence without a traceback and exits with status 2.
    """


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint such as `` Did you mean 'cifar10'?`` for a misspelt name, or the empty string."""
    match = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean '{match[0]}'?" if match else ""
