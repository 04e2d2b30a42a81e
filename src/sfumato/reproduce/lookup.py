"""Rows by the names that the command takes: `PAPER`, `PAPER/ROW`, `PAPER/PATTERN`."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from sfumato.errors import UserError, nearest
from sfumato.recipes import current_name
from sfumato.reproduce.row import Paper, Row
from sfumato.reproduce.rows import PAPERS


def every_row() -> dict[str, Row]:
    """All rows by `PAPER/ROW`."""
    return {row.id: row for paper in PAPERS for row in paper.rows}


def find(name: str) -> tuple[Paper, Sequence[Row]]:
    """The paper and rows for `PAPER`, `PAPER/ROW` or `PAPER/PATTERN` (with `*`)."""
    key, slash, rest = current_name(name.strip("/")).partition("/")
    paper = next((p for p in PAPERS if p.key == key), None)
    if paper is None:
        known = [p.key for p in PAPERS]
        raise UserError(
            f"There is no paper '{key}': choose {', '.join(known)}.{nearest(key, known)} "
            "`sfumato reproduce` lists them with their rows."
        )
    if not slash:
        return paper, paper.rows
    if "*" not in rest:
        return paper, (paper.row(rest),)
    found = tuple(row for row in paper.rows if fnmatchcase(row.name, rest))
    if not found:
        raise UserError(
            f"No row of paper {key} is called like '{rest}'. `sfumato reproduce {key} --list` "
            "shows them."
        )
    return paper, found


def find_all(names: Sequence[str]) -> list[Row]:
    """The rows for several names, each once."""
    return list({row.id: row for name in names for row in find(name)[1]}.values())
