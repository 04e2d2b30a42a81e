"""`--trust-code`: the option of every command that may meet a model outside sfumato in a file."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import typer

TRUST_CODE: Any = typer.Option(
    [],
    "--trust-code",
    metavar="MODULE",
    help="A module outside sfumato whose code a run, weights or recipe file may use; may be given "
    "again.",
)
"""The option; each command has the parameter `trust_code: list[str] = TRUST_CODE`."""


def named(
    trust_code: Sequence[str],
    changes: Mapping[str, Any],
    tried: Mapping[str, Any] | None = None,
) -> tuple[str, ...]:
    """The code that this command line names: by --trust-code, and as the model to train.

    Args:
        trust_code: The values of the option.
        changes: Settings given on the command line.
        tried: Settings to vary, given there too.
    """
    from sfumato.models._trust import is_library_name, is_model_name

    typed = [changes.get("model.name"), *_values((tried or {}).get("model.name"))]
    names = [name for name in typed if isinstance(name, str)]
    return (*trust_code, *(n for n in names if is_model_name(n) or is_library_name(n)))


def again(trusted: Sequence[str]) -> str:
    """The options that name this code in a later command; models of timm and the like need none."""
    from sfumato.models._trust import is_library_name

    names = [name for name in trusted if not is_library_name(name)]
    return "".join(f" --trust-code {shlex.quote(name)}" for name in names)


def _values(choice: Any) -> Sequence[Any]:
    return choice if isinstance(choice, list | tuple) else ()
