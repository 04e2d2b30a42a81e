"""The picture of `sfumato plan`: signal-to-noise against steps and against what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sfumato.errors import UserError

if TYPE_CHECKING:
    from sfumato.privacy.accounting.plan_grid import Choice


def draw(path: Path, found: Sequence[Choice], *, title: str) -> None:
    """One line per batch; the file must be new."""
    from sfumato.charts import png
    from sfumato.charts.chart import Axis, Chart, Series, look, value_axis

    one: list[Series] = []
    whole: list[Series] = []
    for i, batch in enumerate(sorted({c.batch for c in found})):
        own = [c for c in found if c.batch == batch]
        one.append(Series(points=tuple((c.steps, c.signal_to_noise) for c in own), **look(i)))
        run = tuple((c.views, c.signal_to_noise_run) for c in own)
        whole.append(Series(points=run, label=f"B = {batch}", **look(i)))
    steps, views = (sorted({getattr(c, name) for c in found}) for name in ("steps", "views"))
    x = Axis("steps T", steps[0] / 1.2, 1.2 * steps[-1], log=True, at=tuple(steps))
    cost = Axis("views to process", views[0] / 1.2, 1.2 * views[-1], log=True)
    cost = replace(cost, at=tuple(cost.ticks()), names=tuple(map(short, cost.ticks())))
    heads = ("Signal-to-noise of one step", "Signal-to-noise of the run, and its cost")
    charts = [
        Chart(
            title=head, x=axis, items=tuple(series), legend="lower right",
            y=value_axis(label, [0.0, *(y for s in series for _, y in s.points)]),
        )
        for head, label, axis, series in zip(
            heads, ("B / σ", "B √T / σ"), (x, cost), (one, whole), strict=True
        )
    ]  # fmt: skip
    try:
        png.draw([charts], path, width=9.5, height=3.9, note=title)
    except OSError as error:
        raise UserError(f"Cannot write {path}: {error.strerror}.") from None


def short(count: float) -> str:
    """`1.2 M` for 1 234 567."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:g}"
