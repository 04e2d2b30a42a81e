"""The columns of a table that hold paths, labels, units and parts: found by name, or given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from sfumato.data.units import IMAGE, PERSON
from sfumato.errors import UserError, nearest

ROLES = ("path", "label", "unit", "split")
"""Roles of columns."""

NAMES: Mapping[str, tuple[str, ...]] = {
    "path": (
        *("path", "file", "filename", "file_name", "filepath", "file_path"),
        *("image", "image_path", "image_file", "img", "img_path"),
    ),
    "label": ("label", "class", "class_name", "target", "category", "diagnosis", "dx"),
    "split": ("split", "part", "partition", "subset"),
}
"""Names by which columns are found, in any case; spaces and hyphens count as underscores."""

_PERSON_COLUMNS = ("pid", "mrn")
_OPTION = "--columns path=file,label=dx"


def given_columns(texts: Sequence[str]) -> dict[str, str]:
    """The columns that the user gave, by roles, from texts such as ``label=dx``.

    A role with an empty name has no column.

    Raises:
        UserError: A text does not name a role and a column.
    """
    found: dict[str, str] = {}
    for text in texts:
        role, equals, name = (part.strip() for part in text.partition("="))
        if not equals or role not in ROLES:
            raise UserError(
                f"data.columns has '{text}', which is not ROLE=COLUMN with a role among "
                f"{', '.join(ROLES)}, as in {_OPTION}.{nearest(role, ROLES)}"
            )
        if role in found:
            raise UserError(f"data.columns names the column for {role} twice: name one.")
        found[role] = name
    return found


def choose_columns(
    header: Sequence[str],
    given: Mapping[str, str],
    unit: str,
    where: Path,
    *,
    needed: Sequence[str] = ("path", "label"),
) -> dict[str, int]:
    """Positions of the columns by their roles.

    Args:
        header: Names of all columns.
        given: Names that the user gave, by roles.
        unit: The word for a unit of privacy, by which its column is found.
        where: The table, for messages.
        needed: Roles that must have a column.

    Raises:
        UserError: A column is missing, or several could be meant.
    """
    chosen: dict[str, int] = {}
    names = {**NAMES, "unit": _unit_names(unit)}
    for role in ROLES:
        if role in given:
            matches = [k for k, name in enumerate(header) if name == given[role]]
            if given[role] and not matches:
                raise UserError(
                    f"{where} has no column '{given[role]}': it has {_listed(header)}."
                    f"{nearest(given[role], header)}"
                )
        else:
            matches = [k for k, name in enumerate(header) if _plain(name) in names[role]]
        if len(matches) > 1:
            several = " and ".join(f"'{header[k]}'" for k in matches)
            raise UserError(
                f"{where} has several columns that may hold the {role} ({several}): name one, as "
                f"in --columns {role}={header[matches[0]]}. Two columns need different names."
            )
        if matches:
            chosen[role] = matches[0]
    for role in needed:
        if role not in chosen:
            raise UserError(
                f"{where} has no column for the {role} of images: it has {_listed(header)}. Name "
                f"the column, as in {_OPTION}."
            )
    return chosen


def no_unit_column(header: Sequence[str], unit: str, where: Path) -> UserError:
    """An error that says how to name the units of a table without a column for them."""
    return UserError(
        f"{where} does not say which images belong to one {unit}: it has {_listed(header)}. Name "
        r'the column, as in --columns unit=pid, or give --unit-pattern "(?P<unit>P\d+)_" for paths.'
    )


def _unit_names(unit: str) -> frozenset[str]:
    """Names of columns that hold such units; those of persons if none is named."""
    own = unit.replace(" ", "_")
    words = PERSON if unit == IMAGE or own in PERSON else (own,)
    found = {f"{word}{ending}" for word in ("unit", *words) for ending in ("", "_id", "id")}
    return frozenset(found | set(_PERSON_COLUMNS if words is PERSON else ()))


def _plain(name: str) -> str:
    return name.strip().lower().replace(" ", "_").replace("-", "_")


def _listed(header: Sequence[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in header[:20])
    return shown + (f" and {len(header) - 20} more" if len(header) > 20 else "")
