"""The images to predict, wherever the user says they are.

Files, folders, tables, tar shards, DICOM files and arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sfumato.data.dicom_file import ENDINGS
from sfumato.data.dicom_listing import frames_of
from sfumato.data.folder import images_below
from sfumato.data.image_files import FolderFiles, Frame, Span
from sfumato.data.npz import has_units
from sfumato.data.packed_names import PackedNames
from sfumato.data.progress_bar import progress
from sfumato.data.shard_index import images_in_shard
from sfumato.data.shards import holds_shards, is_pattern, is_shard, shard_files
from sfumato.data.table import check_exist, plain_path
from sfumato.data.table_columns import choose_columns, given_columns
from sfumato.data.table_rows import TABLES, header_of, is_table, rows_of
from sfumato.data.units import IMAGE, units_of_paths
from sfumato.errors import UserError


@dataclass(frozen=True)
class Input:
    """An image to predict, or an .npz file of several.

    Attributes:
        name: Its name in the output: the path, with `:FRAME` for a file of several frames, and
            with `:PATH` for an image in a tar shard.
        content: The file, the frame of a DICOM file, or the part of a tar shard.
        unit: The unit of privacy that a table, an array or the path names; empty if none does.

    *Guarantee:* No field of a DICOM file is in it.
    """

    name: Path
    content: Path | Frame | Span
    unit: str = ""

    @property
    def arrays(self) -> bool:
        """Tell whether it is an .npz file."""
        return isinstance(self.content, Path) and self.content.suffix.lower() == ".npz"

    @property
    def path(self) -> str:
        """The path that names its unit: in a tar shard the one inside."""
        whole = self.name.as_posix()
        if isinstance(self.content, Span):
            return whole.removeprefix(f"{self.content.path.as_posix()}:")
        return whole


def find_inputs(
    paths: Sequence[Path], *, columns: Sequence[str] = (), pattern: str = ""
) -> list[Input]:
    """The images that paths name: files as they are, images below folders, rows of tables.

    Every frame of a DICOM file is an image, and so is every one in tar shards, with a label or
    without.

    Args:
        paths: Files, folders and patterns of shards.
        columns: Columns of tables, as for `sfumato.data.load`; labels are not needed.
        pattern: A regular expression whose group `unit` is the unit in a path.

    Raises:
        UserError: If one does not exist, a folder holds no images, or a table cannot be used.
    """
    found: list[Input] = []
    for path in paths:
        if path.is_dir():
            below = [Input(file, file) for file in images_below(path, dicom=True)]
            below += _in_shards(path) if holds_shards(path) else []
            if not below:
                raise UserError(f"The folder {path} holds no images, and neither do those in it.")
            found += below
        elif not path.exists():
            if not is_pattern(str(path)):
                raise UserError(f"There is no file or folder {path}.")
            found += _in_shards(path)
        elif is_shard(path):
            found += _in_shards(path)
        else:
            found += _rows(path, columns) if is_table(path) else [Input(path, path)]
    if columns and not any(is_table(path) for path in paths):
        raise UserError(
            f"--columns names columns of a table ({', '.join(TABLES)}), and none is given."
        )
    if pattern:
        units = units_of_paths((item.path for item in found), "unit", pattern, depth=0)
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


def _in_shards(given: Path) -> list[Input]:
    """The images of tar shards, in their order."""
    shards, found = shard_files(given), []
    with progress("reading shards", len(shards)) as advance:
        for shard in shards:
            for path, *span in images_in_shard(shard):
                name = Path(f"{shard}:{path.removeprefix('./')}")
                found.append(Input(name, Span(shard, *span)))
            advance(1)
    if not found:
        raise UserError(f"The shards of {given} hold no images.")
    return found


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
