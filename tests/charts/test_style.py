"""Labels of tick marks do not touch each other in any picture."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from sfumato.charts import png, style
from sfumato.charts.chart import Axis, Chart, Series


def visible(figure: Figure, across: bool) -> list[tuple[float, float]]:
    """The ends of the labels of the first axes, in pixels, in order."""
    axis = figure.axes[0].xaxis if across else figure.axes[0].yaxis
    shown = [t for t in axis.get_ticklabels() if t.get_visible() and t.get_text()]
    boxes = [t.get_window_extent() for t in shown]
    return sorted((b.x0, b.x1) if across else (b.y0, b.y1) for b in boxes)


@pytest.mark.parametrize("count", [1, 4, 60])
def test_labels_that_would_touch_are_left_out(tmp_path: Path, count: int) -> None:
    steps = tuple(float(10_000 + 10 * n) for n in range(count))
    axis = Axis("steps", steps[0] - 1, steps[-1] + 1, at=steps)
    chart = Chart(x=axis, y=axis, items=(Series(points=((steps[0], steps[0]),)),))
    with style.figure(4, 3, tmp_path / "chart.png") as figure:
        png.paint(figure.add_subplot(), chart)
    for across in (True, False):
        ends = visible(figure, across)
        assert len(ends) == count if count < 5 else 2 <= len(ends) < count
        assert all(a[1] < b[0] for a, b in pairwise(ends))
