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
