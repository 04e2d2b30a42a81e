"""The look of every picture: one palette, one type size, thin frames, no global state.

Colours are those of Okabe and Ito (2008), which people with any kind of colour vision tell apart;
curves differ in marker and line as well, so that they survive printing in grey.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

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


@contextmanager
def figure(width: float, height: float, path: Path) -> Iterator[Figure]:
    """A figure of so many inches that is written to `path` as PNG when the block ends.

    The file is whole or not there; one that exists is replaced. Class names are shown as they are:
    `$` starts no formula, and a character that the font lacks is a box, not a warning.
    """
    with matplotlib.rc_context(_LOOK), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")
        made = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
        FigureCanvasAgg(made)
        yield made
        content = io.BytesIO()
        made.savefig(content, format="png", metadata={"Software": "sfumato"})
    write_whole(path, content.getvalue())


def percent_axis(axes: Axes, *, x: bool = False, y: bool = True) -> None:
    """Show fractions on an axis as percentages."""
    from matplotlib.ticker import FuncFormatter

    for axis, wanted in ((axes.xaxis, x), (axes.yaxis, y)):
        if wanted:
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g} %"))
