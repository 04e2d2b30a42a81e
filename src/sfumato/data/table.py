"""A table of images: a path and a label in each row, and perhaps a unit of privacy and a part."""

from __future__ import annotations

import os
import posixpath
import re
from array import array
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from sfumato.data.dicom_listing import holds_dicom
from sfumato.data.image_files import FolderFiles
from sfumato.data.imageset import Array
from sfumato.data.listing import PARTS, Listing, some
from sfumato.data.packed_names import PackedNames
from sfumato.data.progress_bar import progress
from sfumato.data.table_columns import choose_columns, given_columns, no_unit_column
from sfumato.data.table_rows import about_rows, header_of, rows_of
from sfumato.data.units import IMAGE, refuse_divided_units, unit_numbers
from sfumato.errors import UserError

_ORDER = ("train", "validation", "test")
_NONE = np.empty(0, dtype=np.int64)
_NUMBER = re.compile(r"-?\d{1,18}")
_MOST_NAMED = 5
_AT_ONCE = 1024


def list_table(table: Path, *, columns: Sequence[str], unit: str, pattern: str) -> Listing:
    """Find the images that a table names, with their labels, units and parts.

    Paths are relative to the table's folder. With train and val alone, val is the test set. Units
    that paths or headers name are not looked for.

    Args:
        table: The file.
        columns: Columns that the user gave; see `sfumato.data.table_columns.given_columns`.
        unit: The word for a unit of privacy.
        pattern: A pattern that will find units in paths, so that no column has to.

    Raises:
        UserError: The table, or what it says, cannot be used.
    """
    given = given_columns(columns)
    if pattern and given.get("unit"):
        raise UserError(
            f"Both data.unit_pattern and the column '{given['unit']}' say which images belong to "
            f"one {unit}: give one of them."
        )
    header = header_of(table)
    chosen = choose_columns(header, given, unit, table)
    if pattern:
        chosen.pop("unit", None)
    rows = _Rows(table, chosen)
    if unit == IMAGE and "unit" not in given and "unit" in rows.holes:
        del chosen["unit"], rows.holes["unit"]  # Nobody asked for units.
    rows.refuse_holes()
    files = FolderFiles(table.parent, rows.paths, table)
    _check_files(files)
    classes, labels = rows.numbered()
    parts, note = rows.parts()
    _check_classes(table, classes, labels, parts)
    listing = Listing(
        table,
        classes,
        files,
        labels,
        parts["train"],
        parts.get("test", _NONE),
        parts.get("validation", _NONE),
        (_in_words(header, chosen), *note),
    )
    if "unit" not in chosen:
        if unit != IMAGE and not pattern and not holds_dicom(listing):
            raise no_unit_column(header, unit, table)
        return listing
    units, word = unit_numbers(rows.units), "unit" if unit == IMAGE else unit
    refuse_divided_units(
        units, listing.parts(), rows.units.__getitem__, where=str(table), unit=word
    )
    return replace(listing, units=units)


class _Rows:
    """The rows of a table, packed.

    Attributes:
        paths: one path per row, with forward slashes.
        units: names of units, if there is a column for them.
        holes: lines with an empty cell, by the role of the column.
    """

    def __init__(self, table: Path, chosen: Mapping[str, int]) -> None:
        self.paths, self.units = PackedNames(), PackedNames()
        self.holes: defaultdict[str, list[int]] = defaultdict(list)
        self._table = table
        self._labels, self._splits = array("q"), array("b")
        self._classes: dict[str, int] = {}
        with progress("reading the table", about_rows(table)) as advance:
            self._read(chosen, advance)
        if not len(self.paths):
            raise UserError(f"{table} has a header and no rows: it needs one for each image.")

    def _read(self, chosen: Mapping[str, int], advance: Callable[[int], None]) -> None:
        roles = list(chosen)
        known: dict[str, str] = {}  # Most paths differ; the words of other columns repeat.
        for line, cells in rows_of(self._table, list(chosen.values())):
            row = dict(zip(roles, cells, strict=True))
            for role, cell in row.items():
                if not cell:
                    self.holes[role].append(line)
            self.paths.extend((plain_path(self._table.parent, row["path"]),))
            label = row["label"]
            self._labels.append(self._classes.setdefault(label, len(self._classes)))
            if "unit" in row:
                self.units.extend((row["unit"],))
            if row.get("split"):
                part = known.setdefault(row["split"], PARTS.get(row["split"].lower(), ""))
                if not part:
                    raise UserError(
                        f"Line {line} of {self._table} has the part '{row['split']}': parts are "
                        "train, val (valid, validation) and test. If the column is about something "
                        "else, say that there is none: --columns split="
                    )
                self._splits.append(_ORDER.index(part))
            if len(self.paths) % _AT_ONCE == 0:
                advance(_AT_ONCE)

    def refuse_holes(self) -> None:
        """Refuse rows with an empty cell."""
        for role, lines in self.holes.items():
            few = ", ".join(map(str, lines[:5])) + (" and others" if len(lines) > 5 else "")
            raise UserError(
                f"{self._table} has {len(lines)} rows without a {role} (line {few}): fill the "
                "cells or remove the rows."
            )

    def numbered(self) -> tuple[tuple[str, ...], Array]:
        """Names of the classes, in the order of numbers if they are, and the label of each row."""
        names = sorted(self._classes)
        if all(_NUMBER.fullmatch(name) for name in names):
            names.sort(key=int)
        number = {name: label for label, name in enumerate(names)}
        new = np.array([number[name] for name in self._classes], dtype=np.int64)
        return tuple(names), new[np.frombuffer(self._labels, dtype=np.int64)]

    def parts(self) -> tuple[dict[str, Array], tuple[str, ...]]:
        """Positions of each part's rows, and a sentence if the validation part is the test part."""
        if not self._splits:
            return {"train": np.arange(len(self.paths), dtype=np.int64)}, ()
        split = np.frombuffer(self._splits, dtype=np.int8)
        found = {part: np.flatnonzero(split == k) for k, part in enumerate(_ORDER)}
        parts = {part: positions for part, positions in found.items() if len(positions)}
        if "train" not in parts:
            raise UserError(f"{self._table} has no rows of the part train: it needs some.")
        if "validation" in parts and "test" not in parts:
            parts["test"] = parts.pop("validation")
            return parts, ("There are no test rows: those for validation are the test set.",)
        return parts, ()


def plain_path(folder: Path, path: str) -> str:
    """A path with forward slashes and without detours, so that equal ones are equal."""
    if "\\" in path and not os.path.exists(os.path.join(folder, path)):
        path = path.replace("\\", "/")  # Written on Windows.
    return posixpath.normpath(path) if path else ""


def _check_files(files: FolderFiles) -> None:
    """Refuse paths that are no files, and one that comes twice."""
    if (twice := files.paths.repeated()) is not None:
        raise UserError(
            f"{files.root()} has several rows for '{files.paths[twice[0]]}': keep one. One image "
            "that counts twice would spend twice its privacy."
        )
    check_exist(files)


def check_exist(files: FolderFiles) -> None:
    """Refuse paths that are no files, the first of them named.

    Raises:
        UserError: There are some.
    """
    missing, count = [], 0
    with progress("checking files", len(files)) as advance:
        for done, path in enumerate(files.paths, start=1):
            if not os.path.isfile(os.path.join(files.folder, path)):
                count += 1
                missing += [path] if count <= _MOST_NAMED else []
            if done % _AT_ONCE == 0:
                advance(_AT_ONCE)
    if count:
        more = f" and {count - _MOST_NAMED} more" if count > _MOST_NAMED else ""
        raise UserError(
            f"{count} of {len(files)} files that {files.root()} names do not exist: "
            f"{some(missing)}{more}. Paths are relative to {files.folder.absolute()}, the folder "
            "of the table."
        )


def _check_classes(
    table: Path, classes: tuple[str, ...], labels: Array, parts: Mapping[str, Array]
) -> None:
    """Refuse data of one class, and classes without training images."""
    if len(classes) < 2:
        raise UserError(
            f"{table} holds only one class, '{classes[0]}', but a classifier needs at least two."
        )
    lost = np.setdiff1d(np.arange(len(classes)), labels[parts["train"]])
    if len(lost):
        raise UserError(
            f"{table} has no training rows of {some([classes[label] for label in lost])}: every "
            "class must have training images."
        )


def _in_words(header: Sequence[str], chosen: Mapping[str, int]) -> str:
    """A sentence on the columns that are read."""
    used = ", ".join(f"{role} from '{header[column]}'" for role, column in chosen.items())
    return f"Columns: {used}."
