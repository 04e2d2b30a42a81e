"""The picture of `sfumato budget`: epsilon against the number of steps, by both accountants."""

from __future__ import annotations

import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from sfumato.errors import UserError
from sfumato.io import new_file

if TYPE_CHECKING:
    from sfumato.charts.chart import Chart
    from sfumato.privacy.accounting.accountants import Step

FORMATS = (".png", ".pdf", ".svg")
_POINTS = 14


def rounded_up(value: float) -> str:
    """Four significant digits, rounded up: a stated epsilon is never below the true one."""
    if value == 0 or math.isinf(value):
        return "∞" if value else "0"
    from sfumato.privacy.statement import upwards

    digits = 3 - math.floor(math.log10(value))
    return upwards(value, places=max(digits, 0))


def check_new(path: Path) -> None:
    """Refuse a picture that could not be written, before the work is done."""
    new_file.check(path, option="--plot", endings=FORMATS)


def draw(path: Path, step: Step, *, delta: float, budget: float | None, title: str) -> None:
    """Draw up to a quarter more steps than `step.count`, into a file that must be new."""
    from sfumato.charts import png

    drawing = chart(step, delta=delta, budget=budget, title=title)
    with new_file.writing(path, option="--plot") as file, TemporaryDirectory() as folder:
        drawn = Path(folder) / path.name
        png.draw([[drawing]], drawn, width=7.0, height=4.4)
        file.write(drawn.read_bytes())


def chart(step: Step, *, delta: float, budget: float | None, title: str) -> Chart:
    """Epsilon against steps, with the epsilons that are spent after `step.count` of them."""
    from sfumato.charts.chart import Axis, Chart, Series, value_axis
    from sfumato.privacy.accounting.accountants import ACCOUNTANTS, epsilon
    from sfumato.privacy.accounting.budget import curve

    if step.noise_multiplier == 0:
        raise UserError("There is no curve to draw without noise: epsilon is infinite.")
    last = max(2, round(1.25 * step.count))
    places = (max(1, round(last * (i / _POINTS) ** 2)) for i in range(1, _POINTS + 1))
    counts = sorted({step.count, *places})
    items: list[Series] = []
    for name in ACCOUNTANTS:
        sigma, colour = step.noise_multiplier, "blue" if name == "pld" else "orange"
        values = curve(sigma, counts, q=step.q, delta=delta, accountant=name)
        here = epsilon([step], delta=delta, accountant=name)
        values[counts.index(step.count)] = here
        pairs = zip([0, *counts], [0.0, *values], strict=True)
        line = tuple((x, y) for x, y in pairs if math.isfinite(y))
        items.append(Series(points=line, label=name.upper(), colour=colour, width=1.5))
        if math.isfinite(here):
            items.append(
                Series(
                    points=((step.count, here),), width=0, size=1.4, colour=colour,
                    tag=rounded_up(here), corner="lower right" if name == "pld" else "upper left",
                )
            )  # fmt: skip
    heights = [0.0, *(y for s in items for _, y in s.points), *([budget] if budget else [])]
    y = value_axis(f"ε at δ = {delta:g}", heights)
    rules = [Series(points=((step.count, 0.0), (step.count, y.high)), colour="light")]
    if budget is not None:
        label, ends = f"budget ε = {budget:g}", ((0.0, budget), (last, budget))
        items.append(Series(points=ends, label=label, colour="grey", dash="dashed", width=0.8))
    return Chart(
        title=f"{title}: {step.count} steps", x=Axis("steps", 0, last, whole=True), y=y,
        items=(*rules, *items), legend="best",
        words=f"Epsilon against steps by {' and '.join(map(str.upper, ACCOUNTANTS))}.",
    )  # fmt: skip
