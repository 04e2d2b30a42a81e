"""The picture of `sfumato budget`: epsilon against the number of steps, by both accountants."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from sfumato.errors import UserError
from sfumato.io import new_file

if TYPE_CHECKING:
    from sfumato.privacy.accounting.accountants import Step

FORMATS = (".png", ".pdf", ".svg")
_COLOURS = {"pld": "#1b6ca8", "rdp": "#d1741f"}
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
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from sfumato.privacy.accounting.accountants import ACCOUNTANTS, epsilon
    from sfumato.privacy.accounting.budget import curve

    if step.noise_multiplier == 0:
        raise UserError("There is no curve to draw without noise: epsilon is infinite.")
    last = max(2, round(1.25 * step.count))
    places = (max(1, round(last * (i / _POINTS) ** 2)) for i in range(1, _POINTS + 1))
    counts = sorted({step.count, *places})
    figure = Figure(figsize=(7, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name in ACCOUNTANTS:
        colour, sigma = _COLOURS[name], step.noise_multiplier
        values = curve(sigma, counts, q=step.q, delta=delta, accountant=name)
        here = epsilon([step], delta=delta, accountant=name)
        values[counts.index(step.count)] = here
        axes.plot([0, *counts], [0, *values], color=colour, lw=2, label=name.upper())
        axes.plot([step.count], [here], "o", color=colour, ms=6)
        axes.annotate(
            rounded_up(here),
            (step.count, here),
            xytext=(7, -14) if name == "pld" else (-7, 7),
            textcoords="offset points",
            ha="left" if name == "pld" else "right",
            color=colour,
        )
    if budget is not None:
        axes.axhline(budget, color="0.45", ls="--", lw=1, label=f"budget ε = {budget:g}")
    axes.axvline(step.count, color="0.8", lw=1, zorder=0)
    axes.set(xlim=(0, last), ylim=(0, None), xlabel="steps", ylabel=f"ε at δ = {delta:g}")
    axes.set_title(f"{title}: {step.count} steps", fontsize=11, loc="left")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    with new_file.writing(path, option="--plot") as file:
        figure.savefig(file, format=path.suffix[1:].lower(), dpi=150)
