"""Decoding of a block of images, and what is observed of them meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from sfumato.data.decode import Header, Read, UnreadableError, read, read_header
from sfumato.data.dicom_file import frame_header, read_frame
from sfumato.data.image_files import Block, Frame, Span
from sfumato.data.imageset import Array


class Form(NamedTuple):
    """The form that images are brought to.

    Attributes:
        size: height and width.
        channels: 1 for grey, 3 for colour.
        bits: bits that count in 16-bit images.
        window: centre and width of the values of DICOM files that become black to white.
    """

    size: tuple[int, int]
    channels: int
    bits: int
    window: tuple[float, float] | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of one image."""
        return (self.channels, *self.size)

    def to_json(self) -> list[Any]:
        """The form as JSON values."""
        return [list(self.size), self.channels, self.bits, self.window]

    @classmethod
    def from_json(cls, record: list[Any]) -> Form:
        """The form that `to_json` wrote."""
        (height, width), channels, bits, window = record
        edges = (float(window[0]), float(window[1])) if window else None
        return cls((int(height), int(width)), int(channels), int(bits), edges)


@dataclass
class Observations:
    """Observations made while images were read.

    Attributes:
        images: number of images, readable or not.
        headers: heights and widths of all images whose headers can be read.
        grey: whether all these are grey.
        sizes: heights and widths of the images that could be decoded.
        highest: the largest value of 16-bit images.
        unreadable: reasons why images could not be read, by their rows.
    """

    images: int = 0
    headers: set[tuple[int, int]] = field(default_factory=set)
    grey: bool = True
    sizes: set[tuple[int, int]] = field(default_factory=set)
    highest: int = 0
    unreadable: dict[int, str] = field(default_factory=dict)

    def see(self, header: Header) -> None:
        """Take note of a header."""
        self.headers.add((header.height, header.width))
        self.grey = self.grey and header.grey

    def add(self, other: Observations) -> None:
        """Take note of what was observed of other images."""
        self.images += other.images
        self.headers |= other.headers
        self.grey = self.grey and other.grey
        self.sizes |= other.sizes
        self.highest = max(self.highest, other.highest)
        self.unreadable |= other.unreadable

    def to_json(self) -> dict[str, Any]:
        """The observations as JSON values."""
        return {
            "images": self.images,
            "headers": sorted(self.headers),
            "grey": self.grey,
            "sizes": sorted(self.sizes),
            "highest": self.highest,
            "unreadable": sorted(self.unreadable.items()),
        }

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Observations:
        """The observations that `to_json` wrote."""
        return cls(
            images=int(record["images"]),
            headers={(int(height), int(width)) for height, width in record["headers"]},
            grey=bool(record["grey"]),
            sizes={(int(height), int(width)) for height, width in record["sizes"]},
            highest=int(record["highest"]),
            unreadable={int(row): str(reason) for row, reason in record["unreadable"]},
        )


def decode_block(block: Block, form: Form, write: Callable[[int, Array], None]) -> Observations:
    """Decode the images of a block one after another.

    Args:
        block: the images.
        form: the form that they are brought to.
        write: receives the row and the pixels of each image that can be read.

    Raises:
        OSError: the pixels, or the shard, cannot be written or read.
    """
    seen = Observations(images=len(block.rows))
    for row, content in zip(block.rows, block.contents(), strict=True):
        try:
            image = read_content(content, form)
        except UnreadableError as error:
            seen.unreadable[row] = str(error)
            if error.header is not None:
                seen.see(error.header)
            continue
        seen.see(image.header)
        seen.sizes.add((image.header.height, image.header.width))
        seen.highest = max(seen.highest, image.highest or 0)
        write(row, image.pixels)
    return seen


def read_content(content: Path | BytesIO | Frame | Span, form: Form) -> Read:
    """An image in a form, from a file, its bytes, a DICOM file or a tar shard.

    Raises:
        UnreadableError: It cannot be decoded.
    """
    if isinstance(content, Frame):
        return read_frame(
            content, size=form.size, channels=form.channels, bits=form.bits, window=form.window
        )
    if isinstance(content, Span):
        content = content.content()
    return read(content, size=form.size, channels=form.channels, bits=form.bits)


def look_at_block(block: Block) -> Observations:
    """Read the headers of a block alone."""
    seen = Observations(images=len(block.rows))
    for row, content in zip(block.rows, block.contents(), strict=True):
        try:
            seen.see(frame_header(content) if isinstance(content, Frame) else read_header(content))
        except UnreadableError as error:
            seen.unreadable[row] = str(error)
    return seen
