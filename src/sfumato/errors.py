"""The one exception that speaks to people."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable


class UserError(Exception):
    """A mistake in what the user gave: one sentence that says what is wrong, where, and what to do.

    The command line prints the sentence without a traceback and exits with status 2.
    """


class CodeError(UserError):
    """Model code that a file names and that may not be run."""


class UntrustedCodeError(CodeError):
    """A file that names model code that the user has not named.

    Attributes:
        module: The module to trust, if the user knows it.
    """

    def __init__(self, where: str, model: str, *, variable: str) -> None:
        self.module = model.partition(":")[0]
        super().__init__(
            f"{where} names the model '{model}', whose code is not part of sfumato: nothing was "
            f"imported, because a file from somebody else could run anything this way. If you know "
            f"and trust the module '{self.module}', name it yourself: --trust-code {self.module} "
            f"(trust_code=['{self.module}'] in Python), or set {variable}={self.module}."
        )


def check_number(value: object, name: str) -> None:
    """Refuse a value that is no number, such as the text of one.

    Args:
        value: The value.
        name: Its name, which begins the sentence.

    Raises:
        UserError: It is no number.
    """
    if not hasattr(value, "__float__"):
        raise UserError(f"{name} must be a number, not {value!r}.")


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint such as `` Did you mean 'cifar10'?`` for a misspelt name, or the empty string."""
    match = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean '{match[0]}'?" if match else ""


def nearest_path(path: str) -> str:
    """The same hint for a file or folder that does not exist."""
    path = path.rstrip("/" + os.sep)
    folder, name = os.path.split(path)
    if folder and not os.path.isdir(folder):
        return nearest_path(folder)
    match = difflib.get_close_matches(name, names_in(folder or "."), n=1, cutoff=0.5)
    return f" Did you mean '{os.path.join(folder, match[0])}'?" if match else ""


def names_in(folder: str) -> list[str]:
    """Names in a folder, without hidden ones; none if it cannot be read."""
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError:
        return []
