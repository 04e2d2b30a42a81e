"""Decoding of one image to an array of bytes, for any mode, depth, rotation and size."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from sfumato.data.imageset import Array

EXTENSIONS = frozenset(
    f".{name}"
    for name in (
        *("jpg", "jpeg", "jpe", "jfif", "png", "bmp", "gif", "tif", "tiff", "webp"),
        *("ppm", "pgm", "pbm", "pnm"),
    )
)
"""File name endings that count as images."""

_MOST_PIXELS = 1 << 27
_ORIENTATION_TAG = 0x0112
_GREY_MODES = frozenset(("1", "L", "LA", "La", "I", "I;16", "I;16L", "I;16B", "I;16N"))
_SIXTEEN_BIT_MODES = frozenset(("I", "I;16", "I;16L", "I;16B", "I;16N"))


class Header(NamedTuple):
    """Size and kind of an image from the first bytes of its file, after rotation."""

    height: int
    width: int
    grey: bool


class UnreadableError(Exception):
    """An image that cannot be decoded; the message is the reason.

    Attributes:
        header: what its first bytes say, if they can be read.
    """

    def __init__(self, reason: str, header: Header | None = None) -> None:
        """Give the reason, and the header if there is one."""
        super().__init__(reason)
        self.header = header


class Read(NamedTuple):
    """A decoded image, with properties of its file.

    Attributes:
        pixels: ``(channels, height, width)`` bytes.
        header: size and kind in the file, with its rotation taken into account.
        highest: the largest value of a 16-bit image; None for others.
    """

    pixels: Array
    header: Header
    highest: int | None


def read_header(content: Path | BytesIO) -> Header:
    """Size and kind of an image, without decoding its pixels."""
    try:
        with Image.open(content) as image:
            return _header(image)
    except MemoryError:
        raise
    except Exception as error:
        raise UnreadableError(_reason(error)) from error


def decode(path: Path, *, size: tuple[int, int], channels: int, bits: int) -> Array:
    """An image as ``(channels, height, width)`` bytes; see `read`."""
    return read(path, size=size, channels=channels, bits=bits).pixels


def read(content: Path | BytesIO, *, size: tuple[int, int], channels: int, bits: int) -> Read:
    """An image, in a file or in memory, as bytes with properties of its file.

    The EXIF rotation is applied; transparency becomes white; 16-bit grey is scaled so that the
    largest value of ``bits`` bits is white (a constant: images are never stretched to their own
    range); of an animation the first frame is taken. Another size is reached by scaling until the
    image covers ``size`` (bilinear, with antialiasing) and cropping the centre.
    """
    header = None
    try:
        with Image.open(content) as image:
            header = _header(image)
            height, width = size
            if image.format == "JPEG":
                side = 2 * max(height, width)
                image.draft(None, (side, side))
            image.load()
            pixels, highest = planes_of(image, size=size, channels=channels, bits=bits)
            return Read(pixels, header, highest)
    except MemoryError:
        raise
    except Exception as error:
        raise UnreadableError(_reason(error), header) from error


def planes_of(
    image: Image.Image, *, size: tuple[int, int] | None, channels: int | None, bits: int
) -> tuple[Array, int | None]:
    """A loaded image as ``(channels, height, width)`` bytes, and the largest value of 16 bits.

    Args:
        image: The image, as `read` describes it.
        size: Height and width to scale and cut to; its own if None.
        channels: 1 for grey, 3 for colour; its own if None.
        bits: Bits that count in a 16-bit image.
    """
    upright, highest = ImageOps.exif_transpose(image), None
    grey = _is_grey(upright) if channels is None else channels == 1
    if upright.mode in _SIXTEEN_BIT_MODES:
        values = np.asarray(upright)
        highest = int(values.max(initial=0))
        upright = Image.fromarray(eight_bits(values, bits))
    plain = _to_bytes(upright, grey=grey)
    return to_planes(plain if size is None else cover(plain, size)), highest


def cover(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Scale an image until it covers ``size`` (height, width) and cut out the centre."""
    height, width = size
    if image.size == (width, height):
        return image
    scale = max(width / image.width, height / image.height)
    scaled = (max(width, round(image.width * scale)), max(height, round(image.height * scale)))
    if scaled[0] * scaled[1] > max(_MOST_PIXELS, image.width * image.height):
        raise ValueError(
            f"{image.width}×{image.height} pixels are too long and narrow: to cover "
            f"{width}×{height} they would be scaled to {scaled[0]}×{scaled[1]}; cut it first"
        )
    image = image.resize(scaled, Image.Resampling.BILINEAR)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))


def to_planes(image: Image.Image) -> Array:
    """A grey or RGB image as ``(C, H, W)``."""
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def eight_bits(values: Array, bits: int) -> Array:
    """Integers of ``bits`` bits as bytes, the largest possible one becoming 255.

    Raises:
        ValueError: a number has more than this many bits.
    """
    white = (1 << bits) - 1
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    if low < 0 or high > 65535:
        raise ValueError("more than 16 bits per pixel; save it with 8 or 16 bits")
    if high > white:
        raise ValueError(f"it holds {high}, but data.bits = {bits} ends at {white}")
    return ((values.astype(np.uint32) * 255 + white // 2) // white).astype(np.uint8)


def depth_note(highest: int, bits: int) -> str | None:
    """A sentence for the user if all 16-bit images together leave the upper bits empty."""
    needed = next((depth for depth in (8, 10, 12, 14) if highest < 1 << depth), 16)
    if highest == 0 or needed >= bits:
        return None
    return (
        f"No 16-bit image holds a value over {(1 << needed) - 1}, while {(1 << bits) - 1} is taken "
        f"as white, so they are dark: if they have {needed} bits, give --set data.bits={needed} "
        f"(--bits {needed} to `sfumato data show`)."
    )


def _header(image: Image.Image) -> Header:
    width, height = image.size
    upright = (width, height) if _on_its_side(image) else (height, width)
    return Header(*upright, _is_grey(image))


def _on_its_side(image: Image.Image) -> bool:
    """Tell whether EXIF rotation swaps height and width; for a PNG only its header is read."""
    if image.format == "PNG" and "exif" not in image.info:
        return False
    return image.getexif().get(_ORIENTATION_TAG, 1) in (5, 6, 7, 8)


def _is_grey(image: Image.Image) -> bool:
    if image.mode != "P":
        return image.mode in _GREY_MODES
    palette = image.getpalette("RGB") or []
    return palette[0::3] == palette[1::3] == palette[2::3]


def _to_bytes(image: Image.Image, *, grey: bool) -> Image.Image:
    if image.mode == "F":
        raise ValueError("floating-point pixels; save it with 8 or 16 bits, or use an .npz file")
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        layer = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    if image.mode not in ("L", "RGB"):
        image = image.convert("L" if image.mode == "1" else "RGB")
    return image.convert("L" if grey else "RGB")


def _reason(error: Exception) -> str:
    if isinstance(error, Image.DecompressionBombError):
        return f"{str(error).split(',')[0]}; scale it down with another program"
    if isinstance(error, UnidentifiedImageError):
        return "not an image, or damaged at its beginning"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).splitlines()[0] if str(error) else type(error).__name__
