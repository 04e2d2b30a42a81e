"""The options of several verbs that say which images belong to one unit of privacy."""

from __future__ import annotations

from typing import Any

import typer

UNIT: Any = typer.Option(
    None, metavar="WORD", help="Unit of privacy, such as patient, with all of its images."
)

UNIT_PATTERN: Any = typer.Option(
    None, metavar="REGEX", help="Pattern of file paths whose group `unit` is the unit."
)

COLUMNS: Any = typer.Option(
    None, metavar="ROLE=NAME,...", help="Columns of a table, as in path=file,label=dx,unit=pid."
)


def columns_of(text: str | None) -> list[str] | None:
    """The columns in the text of the option, one by one; None if it is not given."""
    return None if text is None else text.split(",")
