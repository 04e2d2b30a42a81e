"""The picture of `sfumato plan`: signal-to-noise against steps and against what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sfumato.errors import UserError

_MARKERS = "osD^vPX"


@dataclass(frozen=True)
class Choice:
    """One place in the grid.

    Attributes:
        batch: Expected batch B.
        steps: Number of steps T.
        epochs: Passes over the training set.
        noise_multiplier: Sigma, solved for from the budget.
        effective_noise: Sigma / B, the noise on the mean gradient in units of C.
        signal_to_noise: B / sigma, of one step.
        signal_to_noise_run: B √T / sigma, of the sum of all steps if they all pointed one way.
        views: Views to process: B T K.
    """

    batch: int
    steps: int
    epochs: float
    noise_multiplier: float
    effective_noise: float
    signal_to_noise: float
    signal_to_noise_run: float
    views: int


def draw(path: Path, found: Sequence[Choice], *, title: str) -> None:
    """One line per batch; the file must be new."""
    from sfumato.charts import style

    colours = (style.SKY, style.BLUE, style.GREEN, style.ORANGE, style.RED, style.PURPLE, style.INK)
    batches = sorted({c.batch for c in found})
    try:
        with style.figure(9.5, 3.9, path) as figure:
            left, right = figure.subplots(1, 2)
            for i, batch in enumerate(batches):
                own = [c for c in found if c.batch == batch]
                look = {
                    "color": colours[i % len(colours)],
                    "marker": _MARKERS[i % len(_MARKERS)],
                    "markersize": 4.5,
                }
                left.plot([c.steps for c in own], [c.signal_to_noise for c in own], **look)
                right.plot(
                    [c.views for c in own],
                    [c.signal_to_noise_run for c in own],
                    label=f"{batch}",
                    **look,
                )
            steps = sorted({c.steps for c in found})
            left.set(xscale="log", xlabel="steps T", ylabel="B / σ")
            left.set_xticks(steps, [str(s) for s in steps])
            left.minorticks_off()
            left.set_title("Signal-to-noise of one step")
            right.set(xscale="log", xlabel="views to process", ylabel="B √T / σ")
            right.xaxis.set_major_formatter(lambda value, _: short(value))
            right.set_title("Signal-to-noise of the run, and its cost")
            right.legend(title="batch B", loc="lower right", ncols=2, reverse=True)
            for axes in (left, right):
                axes.set_ylim(bottom=0)
            figure.suptitle(title, x=0.01, ha="left", fontsize=9, color=style.GREY)
    except OSError as error:
        raise UserError(f"Cannot write {path}: {error.strerror}.") from None


def short(count: float) -> str:
    """`1.2 M` for 1 234 567."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:g}"
