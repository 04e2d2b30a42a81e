"""DICOM files: facts from their headers, and their frames as bytes.

Of a file only what describes pixels is read, and one field that names the unit of privacy. Nothing
of either is in a message: what pydicom says of a file, which may quote it, is not passed on.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from PIL import Image

from sfumato.data.decode import Header, Read, UnreadableError, eight_bits, planes_of
from sfumato.data.image_files import Frame
from sfumato.data.imageset import Array
from sfumato.errors import UserError

ENDINGS = frozenset((".dcm", ".dicom", ".ima"))
"""File name endings of DICOM files."""

GREY = ("MONOCHROME1", "MONOCHROME2")
"""Photometric interpretations of grey images; the lowest value of the first is white."""

_NO_PIXELS = "a DICOM file without pixels, such as a report"
_DAMAGED = "not a DICOM file, or damaged"
_SHARED_GROUPS, _FRAME_GROUPS = 0x52009229, 0x52009230
_DEEP = 8


@dataclass(frozen=True)
class About:
    """Facts from the header of a DICOM file.

    Attributes:
        readable: whether it could be read, and describes pixels.
        frames: number of images.
        photometric: photometric interpretation.
        unit: value of the field that names the unit; empty if there is none.
        plug_in: what is missing to decode the pixels; empty if nothing is.
    """

    readable: bool = False
    frames: int = 1
    photometric: str = ""
    unit: str = ""
    plug_in: str = ""


def require_pydicom(where: Path) -> ModuleType:
    """The module pydicom.

    Raises:
        UserError: It is not installed.
    """
    try:
        import pydicom
        import pydicom.pixels
    except ImportError:
        raise UserError(
            f"{where} holds DICOM files, which are read with pydicom: `pip install "
            "'sfumato[dicom]'`."
        ) from None
    # Warnings about values quote them.
    pydicom.config.settings.reading_validation_mode = pydicom.config.IGNORE
    module: ModuleType = pydicom
    return module


def known_field(keyword: str, where: Path) -> str:
    """The keyword of a DICOM field, checked.

    Raises:
        UserError: There is no such field.
    """
    pydicom = require_pydicom(where)
    if pydicom.datadict.tag_for_keyword(keyword) is None:
        raise UserError(
            f"data.unit_field = '{keyword}' is no DICOM field: give its keyword, such as PatientID."
        )
    return keyword


def about(path: Path, field: str) -> About:
    """Facts from the header of a file; one that cannot be read counts as one frame.

    Args:
        path: The file.
        field: Keyword of the field that names the unit of privacy; none is read if empty.
    """
    pydicom = require_pydicom(path)
    wanted = ["Rows", "NumberOfFrames", "PhotometricInterpretation", *filter(None, [field])]
    try:
        header = pydicom.dcmread(path, stop_before_pixels=True, specific_tags=wanted)
        if "Rows" not in header:
            return About()
        return About(
            True,
            max(1, int(header.get("NumberOfFrames") or 1)),
            str(header.get("PhotometricInterpretation") or "").strip(),
            str((field and header.get(field)) or "").strip(),
            _missing(pydicom, header.file_meta.TransferSyntaxUID),
        )
    except MemoryError:
        raise
    except Exception:
        return About()


def _missing(pydicom: ModuleType, syntax: Any) -> str:
    """The packages that would decode a compression, if none is installed that does."""
    if not syntax.is_compressed or not syntax.is_encapsulated:
        return ""
    try:
        decoder = pydicom.pixels.get_decoder(syntax)
    except NotImplementedError:
        return f"{syntax.name} (which pydicom does not read)"
    if decoder.is_available:
        return ""
    needs = [text.partition(" - requires ")[2] or text for text in decoder.missing_dependencies]
    return f"{syntax.name} ({', or '.join(needs)})"


def frame_header(frame: Frame) -> Header:
    """Height and width of a frame, without decoding it.

    Raises:
        UnreadableError: The file has no pixels or cannot be read.
    """
    pydicom = require_pydicom(frame.path)
    try:
        header = pydicom.dcmread(
            frame.path, stop_before_pixels=True, specific_tags=["Rows", "Columns"]
        )
    except MemoryError:
        raise
    except Exception as error:
        raise UnreadableError(_reason(error)) from None
    if "Rows" not in header or "Columns" not in header:
        raise UnreadableError(_NO_PIXELS)
    return Header(int(header.Rows), int(header.Columns), True)


def read_frame(
    frame: Frame,
    *,
    size: tuple[int, int],
    channels: int,
    bits: int,
    window: tuple[float, float] | None,
) -> Read:
    """A frame as bytes, with properties of its file.

    With a window, values in the unit of the file's rescaling (Hounsfield units in CT) become bytes
    by the linear function of the standard, PS3.3 C.11.2.1.2. Without, the range of the stored bits
    does: a constant, since no image is stretched to its own range, and windows that a file
    suggests, which follow from its pixels, are not used. White is the highest value, but the
    lowest of MONOCHROME1.

    *Guarantee:* the result depends on the file and on public constants alone.

    Args:
        frame: The file and the number of the frame in it; a negative one cannot be read.
        size: Height and width to bring it to.
        channels: 1 or 3.
        bits: Bits that count in files of more than eight bits, if they have no sign.
        window: Centre and width.

    Raises:
        UnreadableError: The file has no pixels or cannot be decoded.
    """
    header = frame_header(frame)
    if frame.number < 0:
        raise UnreadableError(_DAMAGED, header)
    pydicom = require_pydicom(frame.path)
    values = pydicom.Dataset()
    try:
        stored = pydicom.pixels.pixel_array(
            frame.path,
            ds_out=values,
            specific_tags=[_SHARED_GROUPS, _FRAME_GROUPS],
            index=frame.number,
        )
    except MemoryError:
        raise
    except Exception as error:
        raise UnreadableError(_reason(error), header) from None
    try:
        grey, highest = _bytes(stored, values, frame.number, bits, window)
    except ValueError as error:
        raise UnreadableError(str(error), header) from None
    if values.PhotometricInterpretation == GREY[0]:
        grey = 255 - grey
    pixels, _ = planes_of(Image.fromarray(grey), size=size, channels=channels, bits=bits)
    return Read(pixels, header, highest)


def _bytes(
    stored: Array, values: Any, frame: int, bits: int, window: tuple[float, float] | None
) -> tuple[Array, int | None]:
    """Stored values as bytes, and the largest of those that have more than eight bits."""
    if stored.ndim != 2 or stored.dtype.kind not in "iu":
        raise ValueError("pixels that are not whole numbers, one for each position")
    depth, signed = int(values.BitsStored), int(values.PixelRepresentation) == 1
    slope, intercept = _rescale(values, frame)
    if window is not None:
        if "ModalityLUTSequence" in values:
            raise ValueError("a table of values (Modality LUT) in place of a rescaling")
        centre, width = window
        scaled = (stored * slope + intercept - (centre - 0.5)) / (width - 1) + 0.5
        return np.rint(np.clip(scaled, 0, 1) * 255).astype(np.uint8), None
    if signed:
        half, white = 1 << (depth - 1), (1 << depth) - 1
        shifted = np.clip(stored.astype(np.int64) + half, 0, white)
        grey, highest = ((shifted * 255 + white // 2) // white).astype(np.uint8), None
    else:
        grey = eight_bits(stored, min(depth, bits) if depth > _DEEP else depth)
        # Where the file states fewer bits than `bits`, white is at its own.
        highest = int(stored.max(initial=0)) if depth > _DEEP and depth >= bits else None
    return (grey if slope >= 0 else 255 - grey), highest


def _rescale(values: Any, frame: int) -> tuple[float, float]:
    """Slope and intercept of a frame: its own, those of all frames, or those of the file."""
    own = values.get(_FRAME_GROUPS)
    groups = [own.value[frame]] if own is not None and frame < len(own.value) else []
    shared = values.get(_SHARED_GROUPS)
    groups += list(shared.value[:1]) if shared is not None else []
    for group in groups:
        for found in group.get("PixelValueTransformationSequence", ()):
            return float(found.RescaleSlope), float(found.RescaleIntercept)
    return float(values.get("RescaleSlope", 1) or 1), float(values.get("RescaleIntercept", 0) or 0)


def _reason(error: Exception) -> str:
    """A reason that quotes nothing of the file."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, AttributeError):  # Of a missing element, which is all that it names.
        return _NO_PIXELS
    return _DAMAGED
