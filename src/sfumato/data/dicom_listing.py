"""DICOM files of a folder or a table as a listing of their frames, with patients as units."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sfumato.data.dicom_file import ENDINGS, GREY, About, about, known_field, require_pydicom
from sfumato.data.image_files import BLOCK, Block, FolderFiles
from sfumato.data.imageset import Array
from sfumato.data.listing import Listing, some
from sfumato.data.progress_bar import progress
from sfumato.data.units import IMAGE, PERSON, refuse_divided_units, unit_numbers
from sfumato.data.workers import cores, spread
from sfumato.errors import UserError

PATIENT = "PatientID"
"""The field that names a patient."""


@dataclass(frozen=True, eq=False)
class DicomFrames:
    """Frames of DICOM files.

    Attributes:
        files: the files.
        file: position of each frame's file, ascending.
        frame: number of each frame in its file; -1 in a file whose header cannot be read.

    *Guarantee:* a file of which the unit is not known is never decoded (see `read_frame`), even if
    it could be.
    """

    files: FolderFiles
    file: Array
    frame: Array

    def __len__(self) -> int:
        return len(self.file)

    def names(self, positions: Array) -> Iterator[str]:
        """Paths of the files, so that frames of one are never separated."""
        return self.files.names(self.file[positions])

    def place(self, position: int) -> str:
        """The path of the file, and the frame if it is not the first."""
        number = int(self.frame[position])
        path = self.files.place(int(self.file[position]))
        return f"{path}, frame {number + 1}" if number > 0 else path

    def root(self) -> Path:
        """The folder, or the file that names the images."""
        return self.files.root()

    def state(self, order: Array) -> Iterator[bytes]:
        """Path, size and time of each file, and the order of the frames."""
        yield b"frames"
        yield from self.files.state(np.unique(self.file[order]))
        yield np.ascontiguousarray(order, dtype="<i8").tobytes()

    def blocks(self, order: Array) -> Iterator[Block]:
        """Frames in the order of their rows."""
        for start in range(0, len(order), BLOCK):
            some = order[start : start + BLOCK]
            rows = list(range(start, start + len(some)))
            frames = self.frame[some].tolist()
            yield Block(str(self.files.folder), list(self.names(some)), [], rows, frames)


def holds_dicom(listing: Listing) -> bool:
    """Tell whether the images of a listing are DICOM files.

    Raises:
        UserError: Some are and others are not.
    """
    if not isinstance(listing.files, FolderFiles):
        return False
    first: dict[bool, str] = {}
    for path in listing.files.paths:
        first.setdefault(os.path.splitext(path)[1].lower() in ENDINGS, path)
    if len(first) == 2:
        raise UserError(
            f"{listing.root} holds DICOM files such as '{first[True]}' beside other images such as "
            f"'{first[False]}': keep one kind."
        )
    return True in first


def dicom_frames(listing: Listing, *, unit: str, field: str, mixed: bool) -> Listing:
    """A listing of DICOM files as one of their frames.

    Units that the listing has stay; without, a field of each file names them.

    Args:
        listing: The files.
        unit: The word for a unit of privacy.
        field: Keyword of the field that names the unit; for persons, PatientID if empty.
        mixed: Allow files whose lowest value is white beside others.

    Raises:
        UserError: Files cannot be used, or do not say which unit they belong to.
    """
    files = listing.files
    assert isinstance(files, FolderFiles)
    require_pydicom(listing.root)
    if not field and unit != IMAGE and unit not in PERSON and listing.units is None:
        raise UserError(
            f"Which field of the DICOM files in {listing.root} names the {unit}? Give its keyword, "
            "as in --set data.unit_field=StudyInstanceUID."
        )
    headers = _Headers(files, known_field(field or PATIENT, listing.root))
    headers.check(mixed=mixed)
    units = listing.units
    if units is None:
        units = headers.numbers(unit, field or PATIENT)
    images = headers.images()
    file = images.file
    found = replace(
        listing,
        files=images,
        labels=listing.labels[file],
        train=np.flatnonzero(np.isin(file, listing.train)),
        test=np.flatnonzero(np.isin(file, listing.test)),
        validation=np.flatnonzero(np.isin(file, listing.validation)),
        units=None if units is None else units[file],
    )
    if found.units is not None and listing.units is None:
        word = "unit" if unit == IMAGE else unit  # A file is named, the unit never.
        name = found.files.place
        refuse_divided_units(found.units, found.parts(), name, where=str(listing.root), unit=word)
    return found


def frames_of(files: FolderFiles) -> DicomFrames:
    """The frames of DICOM files, of whose headers nothing is read but what describes pixels.

    Files whose lowest value is white may be beside others: each is read as it says.

    Raises:
        UserError: Files are in colour, or nothing installed can decode them.
    """
    require_pydicom(files.root())
    headers = _Headers(files, "")
    headers.check(mixed=True)
    return headers.images()


class _Headers:
    """Facts from the headers of DICOM files, in little memory."""

    def __init__(self, files: FolderFiles, field: str) -> None:
        count = len(files)
        self._files = files
        self.frames = np.ones(count, dtype=np.int64)
        self.readable = np.zeros(count, dtype=bool)
        self._units = np.full(count, -1, dtype=np.int64)
        self._photometric: Counter[str] = Counter()
        self._plug_ins: Counter[str] = Counter()
        self._example: dict[str, str] = {}
        with progress("reading DICOM headers", count) as advance:
            jobs = enumerate(files.paths)
            for (position, path), header in spread(
                jobs, lambda job: about(files.folder / job[1], field), cores()
            ):
                self._add(position, path, header)
                advance(1)

    def _add(self, position: int, path: str, header: About) -> None:
        self.frames[position] = header.frames
        self.readable[position] = header.readable
        if header.unit:
            self._units[position] = unit_numbers([header.unit])[0]
        if header.photometric:
            self._photometric[header.photometric] += 1
            self._example.setdefault(header.photometric, path)
        if header.plug_in:
            self._plug_ins[header.plug_in] += 1
            self._example.setdefault(header.plug_in, path)

    def check(self, *, mixed: bool) -> None:
        """Refuse files in colour, of both kinds of grey, or that nothing installed can decode."""
        where = self._files.root()
        for kind, count in self._plug_ins.items():
            raise UserError(
                f"{count} DICOM files in {where}, such as '{self._example[kind]}', are compressed "
                f"in a way that needs a plug-in: {kind}. Install it with pip, or save the files "
                "without compression."
            )
        colour = [kind for kind in self._photometric if kind not in GREY]
        if colour:
            count = sum(self._photometric[kind] for kind in colour)
            raise UserError(
                f"{count} DICOM files in {where}, such as '{self._example[colour[0]]}', are in "
                f"colour ({', '.join(sorted(colour))}): of DICOM only grey images are read. Save "
                "these as .png, or remove them."
            )
        if len(self._photometric) > 1 and not mixed:
            kinds = " and ".join(f"{self._photometric[kind]} {kind}" for kind in GREY)
            one, other = (self._example[kind] for kind in GREY)
            raise UserError(
                f"The DICOM files in {where} have two photometric interpretations ({kinds}), such "
                f"as '{one}' and '{other}'. If the files are right in that, `--set "
                "data.mixed_photometric=true` inverts the former, so that white is high in all."
            )

    def images(self) -> DicomFrames:
        """Every frame of every file."""
        file = np.repeat(np.arange(len(self._files), dtype=np.int64), self.frames)
        starts = np.repeat(np.cumsum(self.frames) - self.frames, self.frames)
        frame = np.where(self.readable[file], np.arange(len(file), dtype=np.int64) - starts, -1)
        return DicomFrames(self._files, file, frame)

    def numbers(self, unit: str, field: str) -> Array | None:
        """The units of the files; None if nobody asked for them and some have none."""
        without = np.flatnonzero((self._units < 0) & self.readable)
        if not len(without):
            return self._units
        if unit == IMAGE:
            return None
        raise UserError(
            f"{len(without)} DICOM files in {self._files.root()} have no {field} to tell which "
            f"{unit} they belong to: {some(list(self._files.names(without)))}. Remove them, or "
            "name another field with --set data.unit_field=KEYWORD."
        )
