"""A sheet of sample images, one row per class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from sfumato.data.imageset import Array, Dataset
from sfumato.io import new_file

_COLUMNS = 10
_ROWS = 20
_SMALLEST_CELL = 64
_GAP = 4
_NAME_WIDTH = 140
_FONT_SIZE = 12


def sheet(dataset: Dataset) -> Image.Image:
    """The first training images of each class, up to ten of each and twenty classes."""
    height, width = dataset.size
    zoom = max(1, _SMALLEST_CELL // max(height, width))
    cell_height, cell_width = height * zoom + _GAP, width * zoom + _GAP
    classes = dataset.classes[:_ROWS]
    canvas = Image.new(
        "RGB", (_NAME_WIDTH + _COLUMNS * cell_width, len(classes) * cell_height + _GAP), "white"
    )
    pen, font = ImageDraw.Draw(canvas), _font()
    for label, name in enumerate(classes):
        top = _GAP + label * cell_height
        text = name
        while font.getlength(text) > _NAME_WIDTH - 2 * _GAP:
            text = text.removesuffix("…")[:-1] + "…"
        pen.text((_GAP, top + cell_height // 2), text, fill="black", anchor="lm", font=font)
        for column, position in enumerate(np.flatnonzero(dataset.train.labels == label)[:_COLUMNS]):
            image = _viewable(dataset.train.images[position])
            image = image.resize((width * zoom, height * zoom), Image.Resampling.NEAREST)
            canvas.paste(image, (_NAME_WIDTH + column * cell_width, top))
    return canvas


def _font() -> ImageFont.FreeTypeFont:
    """Matplotlib's own font, which has the letters that Pillow's lacks."""
    import matplotlib

    path = Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")
    return ImageFont.truetype(str(path), _FONT_SIZE)


def check_new_png(path: Path) -> None:
    """Refuse a path that is not a new `.png` file, before any work is done."""
    new_file.check(path, option="--picture", endings=(".png",))


def save_sheet(dataset: Dataset, path: Path) -> None:
    """Write the sheet as a new PNG file; an existing file is never overwritten."""
    check_new_png(path)
    image = sheet(dataset)
    with new_file.writing(path, option="--picture") as file:
        image.save(file, "PNG")


def _viewable(planes: Array) -> Image.Image:
    if planes.dtype != np.uint8:
        planes = np.rint(np.nan_to_num(planes) * 255).astype(np.uint8)
    if planes.shape[0] == 3:
        return Image.fromarray(np.ascontiguousarray(planes.transpose(1, 2, 0)))
    return Image.fromarray(np.ascontiguousarray(planes[0])).convert("RGB")
