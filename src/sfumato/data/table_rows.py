"""Header and rows of a table in a file: text with separators as spreadsheets write it, or Parquet.

Rows are read one after another, so that a table of millions takes no memory.
"""

from __future__ import annotations

import codecs
import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from sfumato.errors import UserError

TABLES = (".csv", ".tsv", ".parquet")
"""Endings of tables."""

_SEPARATORS = ",;\t"
_SEPARATOR_LINE = "sep="
"""The beginning of a first line by which Excel states the separator."""

_WORKBOOK = b"PK\x03\x04"
_START = 1 << 16
_AT_ONCE = 1 << 16
_ADVICE = "save it again as 'CSV UTF-8'"


def is_table(path: Path) -> bool:
    """Tell whether a file is a table by the ending of its name."""
    return path.suffix.lower() in TABLES


class _Text(NamedTuple):
    """Encoding and separator of a table."""

    encoding: str
    separator: str
    skipped: int


def header_of(path: Path) -> list[str]:
    """The names of a table's columns.

    Raises:
        UserError: The file cannot be read or is no table.
    """
    if path.suffix.lower() == ".parquet":
        with _parquet(path) as file:
            return [str(name) for name in file.schema_arrow.names]
    header = next(_text_rows(path, _text(path)), None)
    if header is None:
        raise UserError(f"{path} is empty: it needs a line with the names of its columns.")
    return [name.strip() for name in header[1]]


def about_rows(path: Path) -> int:
    """Approximate number of rows, for a progress bar."""
    if path.suffix.lower() == ".parquet":
        with _parquet(path) as file:
            return int(file.metadata.num_rows)
    with open(path, "rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))


def rows_of(path: Path, columns: Sequence[int]) -> Iterator[tuple[int, list[str]]]:
    """The cells of some columns, row by row, without spaces around them.

    Args:
        path: The table.
        columns: Positions of the columns in the header.

    Yields:
        The number of the line (of the row, for Parquet) and the cells; empty rows are left out.

    Raises:
        UserError: The file cannot be read, or a row does not have a cell for each column.
    """
    if path.suffix.lower() == ".parquet":
        yield from _parquet_rows(path, columns)
        return
    rows = _text_rows(path, _text(path))
    width = len(next(rows)[1])
    for line, cells in rows:
        if len(cells) != width:
            raise UserError(
                f"Line {line} of {path} has {len(cells)} cells, but the header has {width}: put "
                "quotes around names that hold a separator."
            )
        yield line, [cells[column].strip() for column in columns]


def _text_rows(path: Path, form: _Text) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and cells of all rows that are not empty, the header among them."""
    line = 0
    try:
        with open(path, encoding=form.encoding, newline="") as file:
            for _ in range(form.skipped):
                next(file)
            reader = csv.reader(file, delimiter=form.separator, strict=True)
            for cells in reader:
                line = reader.line_num + form.skipped
                if any(cell.strip() for cell in cells):
                    yield line, cells
    except UnicodeError:
        raise UserError(f"{path} is no UTF-8 text after line {line}: {_ADVICE}.") from None
    except csv.Error as error:
        raise UserError(f"{path} cannot be read after line {line} ({error}): {_ADVICE}.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from error


def _text(path: Path) -> _Text:
    """Encoding and separator of a table, from its first bytes."""
    try:
        with open(path, "rb") as file:
            start = file.read(_START)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from error
    encoding = "utf-8"
    if start.startswith(codecs.BOM_UTF8):
        encoding = "utf-8-sig"
    elif start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"  # "Unicode text" of Excel.
    elif start.startswith(_WORKBOOK):
        raise UserError(f"{path} is a workbook, whatever its name says: {_ADVICE}.")
    elif b"\0" in start:
        raise UserError(f"{path} is no text, or UTF-16 without its mark: {_ADVICE}.")
    lines = start.decode(encoding, "replace").lstrip().splitlines()
    first = lines[0] if lines else ""
    if first.lower().startswith(_SEPARATOR_LINE) and len(first) == len(_SEPARATOR_LINE) + 1:
        return _Text(encoding, first[-1], 1)
    if path.suffix.lower() == ".tsv":
        return _Text(encoding, "\t", 0)
    found = max(_SEPARATORS, key=lambda separator: _width(first, separator))
    return _Text(encoding, found, 0)


def _width(line: str, separator: str) -> int:
    """Number of columns of a line; of equal ones, `max` takes the first separator."""
    return len(next(csv.reader([line], delimiter=separator), []))


@contextmanager
def _parquet(path: Path) -> Iterator[Any]:
    """A Parquet file, open."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError(
            f"{path} is read with pyarrow, which is not installed: `pip install "
            "'sfumato[parquet]'`, or save the table as .csv."
        ) from None
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            yield file
    except (pyarrow.ArrowException, OSError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{path} cannot be read as Parquet ({reason}).") from error


def _parquet_rows(path: Path, columns: Sequence[int]) -> Iterator[tuple[int, list[str]]]:
    row = 0
    with _parquet(path) as file:
        names = [file.schema_arrow.names[column] for column in columns]
        for batch in file.iter_batches(_AT_ONCE, columns=list(dict.fromkeys(names))):
            cells = [batch.column(name).to_pylist() for name in names]
            for values in zip(*cells, strict=True):
                row += 1
                yield row, [_cell(value) for value in values]


def _cell(value: Any) -> str:
    """A value of a Parquet file as text; missing ones and NaN are empty."""
    if value is None or value != value:
        return ""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return text.strip()
