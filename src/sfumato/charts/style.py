"""The look of every picture: one palette, one type size, thin frames, no global state.

Colours are those of Okabe and Ito (2008), which people with any kind of colour vision tell apart;
curves differ in marker and line as well, so that they survive printing in grey.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from sfumato.io.atomic import write_whole

BLUE, ORANGE, GREEN, RED = "#0072b2", "#e69f00", "#009e73", "#d55e00"
SKY, PURPLE = "#56b4e9", "#cc79a7"
INK, GREY, LIGHT = "#222222", "#6b6b6b", "#dddddd"
COLOURS = {
    "blue": BLUE, "orange": ORANGE, "green": GREEN, "red": RED, "purple": PURPLE, "sky": SKY,
    "grey": GREY, "ink": INK, "light": LIGHT,
}  # fmt: skip
"""The colours that a chart's description names."""

DPI = 150

_LOOK: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "text.color": INK,
    "text.parse_math": False,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "grid.color": LIGHT,
    "grid.linewidth": 0.6,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}


_GAP = 2.0
"""Pixels between labels of tick marks that do not touch."""


@contextmanager
def figure(width: float, height: float, path: Path) -> Iterator[Figure]:
    """A figure of so many inches that is written to `path` when the block ends.

    It is a PNG unless the path ends in .pdf or .svg. The file is whole or not there; one that
    exists is replaced. Class names are shown as they are: `$` starts no formula, and a character
    that the font lacks is a box, not a warning. Labels of tick marks that would touch each other
    are left out.
    """
    with matplotlib.rc_context(_LOOK), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")
        made = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
        FigureCanvasAgg(made)
        yield made
        separate_labels(made)
        content = io.BytesIO()
        kind = path.suffix.lower()[1:]
        if kind in ("pdf", "svg"):
            made.savefig(content, format=kind)
        else:
            made.savefig(content, format="png", metadata={"Software": "sfumato"})
    write_whole(path, content.getvalue())


def separate_labels(figure: Figure) -> None:
    """Leave out labels of tick marks, evenly, until no two of an axis touch each other."""
    figure.draw_without_rendering()
    for axes in figure.axes:
        for axis, across in ((axes.xaxis, True), (axes.yaxis, False)):
            labels = [t for t in axis.get_ticklabels() if t.get_visible() and t.get_text()]
            every = next((n for n in range(1, len(labels)) if _apart(labels[::n], across)), None)
            for number, label in enumerate(labels):
                label.set_visible(number % (every or len(labels)) == 0)


def _apart(labels: Sequence[Text], across: bool) -> bool:
    """Tell whether there is a gap between each label and the next."""
    boxes = [label.get_window_extent() for label in labels]
    ends = sorted((box.x0, box.x1) if across else (box.y0, box.y1) for box in boxes)
    return all(b[0] - a[1] >= _GAP for a, b in pairwise(ends))
