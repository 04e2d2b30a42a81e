"""The images to predict, wherever the user says they are: files, folders, tables, DICOM, arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sfumato.data.dicom_file import ENDINGS
from sfumato.data.dicom_listing import frames_of
from sfumato.data.folder import images_below
from sfumato.data.image_files import FolderFiles, Frame
from sfumato.data.npz import has_units
from sfumato.data.packed_names import PackedNames
from sfumato.data.table import check_exist, plain_path
from sfumato.data.table_columns import choose_columns, given_columns
from sfumato.data.table_rows import TABLES, header_of, is_table, rows_of
from sfumato.data.units import IMAGE, units_of_paths
from sfumato.errors import UserError


@dataclass(frozen=True)
class Input:
    """An image to predict, or an .npz file of several.

    Attributes:
        name: Its name in the output: the path, with `:FRAME` for a file of several frames.
        content: The file, or the frame of a DICOM file.
        unit: The unit of privacy that a table, an array or the path names; empty if none does.

    *Guarantee:* No field of a DICOM file is in it.
    """

    name: Path
    content: Path | Frame
    unit: str = ""

    @property
    def arrays(self) -> bool:
        """Tell whether it is an .npz file."""
        return isinstance(self.content, Path) and self.content.suffix.lower() == ".npz"


def find_inputs(
    paths: Sequence[Path], *, columns: Sequence[str] = (), pattern: str = ""
) -> list[Input]:
    """The images that paths name: files as they are, images below folders, rows of tables.

    Every frame of a DICOM file is an image.

    Args:
        paths: Files and folders.
        columns: Columns of tables, as for `sfumato.data.load`; labels are not needed.
        pattern: A regular expression whose group `unit` is the unit in a path.

    Raises:
        UserError: If one does not exist, a folder holds no images, or a table cannot be used.
    """
    found: list[Input] = []
    for path in paths:
        if path.is_dir():
            below = images_below(path, dicom=True)
            if not below:
                raise UserError(f"The folder {path} holds no images, and neither do those in it.")
            found += [Input(file, file) for file in below]
        elif not path.exists():
            raise UserError(f"There is no file or folder {path}.")
        else:
            found += _rows(path, columns) if is_table(path) else [Input(path, path)]
    if columns and not any(is_table(path) for path in paths):
        raise UserError(
            f"--columns names columns of a table ({', '.join(TABLES)}), and none is given."
        )
    if pattern:
        names = (item.name.as_posix() for item in found)
        units = units_of_paths(names, "unit", pattern, depth=0)
        found = [replace(item, unit=unit) for item, unit in zip(found, units, strict=True)]
    return _framed(found)


def with_units(inputs: Sequence[Input]) -> bool:
    """Tell whether any image has a unit."""
    return any(item.unit or (item.arrays and has_units(item.name)) for item in inputs)


def _rows(table: Path, columns: Sequence[str]) -> list[Input]:
    """The images of a table, in its order."""
    given = given_columns(columns)
    chosen = choose_columns(header_of(table), given, IMAGE, table, needed=("path",))
    roles = [role for role in ("path", "unit") if role in chosen]
    paths, units = PackedNames(), []
    for line, cells in rows_of(table, [chosen[role] for role in roles]):
        if not cells[0]:
            raise UserError(f"Line {line} of {table} has no path: fill the cell or remove the row.")
        paths.extend((plain_path(table.parent, cells[0]),))
        units.append(cells[1] if len(cells) > 1 else "")
    if not units:
        raise UserError(f"{table} has a header and no rows: it needs one for each image.")
    check_exist(FolderFiles(table.parent, paths, table))
    files = [table.parent / path for path in paths]
    return [Input(file, file, unit) for file, unit in zip(files, units, strict=True)]


def _framed(inputs: list[Input]) -> list[Input]:
    """The inputs with every frame of a DICOM file in its place."""
    places = [k for k, item in enumerate(inputs) if item.name.suffix.lower() in ENDINGS]
    if not places:
        return inputs
    names = PackedNames(str(inputs[k].name) for k in places)
    images = frames_of(FolderFiles(Path(), names, inputs[places[0]].name))
    frames: dict[int, list[Input]] = {}
    for file, number in zip(images.file.tolist(), images.frame.tolist(), strict=True):
        item = inputs[places[file]]
        content = Frame(item.name, number)
        frames.setdefault(places[file], []).append(replace(item, content=content))
    return [one for k, item in enumerate(inputs) for one in _numbered(frames.get(k, [item]))]


def _numbered(frames: list[Input]) -> list[Input]:
    """Frames of one file with their numbers in their names, from 1 as DICOM has it."""
    if len(frames) == 1:
        return frames
    return [replace(item, name=Path(f"{item.name}:{k}")) for k, item in enumerate(frames, start=1)]
