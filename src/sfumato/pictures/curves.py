"""Learning curves: accuracy and loss against the privacy spent and against steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from sfumato.pictures import style

Record = Mapping[str, Any]

_SMOOTH_FROM = 60
"""A batch curve with more points than this is drawn faint, with its moving mean over it."""


@dataclass(frozen=True)
class _Curve:
    """One curve: its key in the records, and how it is drawn."""

    key: str
    label: str
    colour: str
    marker: str


_ACCURACY = (
    _Curve("train_accuracy", "training batches", style.GREY, ""),
    _Curve("validation_accuracy", "validation", style.ORANGE, "o"),
    _Curve("test_accuracy", "test", style.BLUE, "s"),
)
_LOSS = (
    _Curve("loss", "training batches", style.GREY, ""),
    _Curve("validation_loss", "validation", style.ORANGE, "o"),
    _Curve("test_loss", "test", style.BLUE, "s"),
)
_TRAINING = (_ACCURACY[0], _LOSS[0])
_CURVES = (*_ACCURACY, *_LOSS)
_FAR = 2.0
"""A budget so many times beyond the right edge is not shown."""
_STEPS = [1, 2, 2.5, 5, 10]
_X_LABELS = {"epsilon": "ε spent", "step": "step"}
_ROWS = (("Accuracy", _ACCURACY, "test_accuracy"), ("Loss", _LOSS, "test_loss"))


def draw(
    metrics: Sequence[Record],
    path: str | Path,
    *,
    title: str = "",
    final: Record | None = None,
    budget: float | None = None,
    ended: str = "final test",
) -> None:
    """Draw the learning curves of a run into a PNG file, which is replaced if it exists.

    A run without finite epsilons is drawn against steps only. One that has epsilons but no curves,
    as a private run has that held no images out for validation, shows how epsilon was spent and the
    result at the end. Values that are missing or not finite are left out.

    Args:
        metrics: Records in the order of steps: `step`, and any of `epsilon`, `loss`,
            `train_accuracy`, `validation_accuracy`, `validation_loss`, `test_accuracy`,
            `test_loss`. One with `"final": true` is taken as `final`.
        path: The file.
        title: Above the picture.
        final: The result at the end: `step`, `epsilon`, `test_accuracy`, `test_loss`.
        budget: The epsilon that was not to be crossed, drawn as a line.
        ended: What the result at the end is, in words.
    """
    records = [record for record in metrics if not record.get("final")]
    final = final or next((r for r in reversed(metrics) if r.get("final")), None)
    everything = [*records, *([final] if final else [])]
    private = any(_number(record, "epsilon") is not None for record in everything)
    last = max((_number(record, "step") or 0 for record in everything), default=0)
    if private and not any(_number(r, c.key) is not None for r in records for c in _CURVES):
        _draw_spending(records, final, Path(path), title=title, budget=budget, ended=ended)
        return
    columns = ["epsilon", "step"] if private else ["step"]
    with style.figure(10.0, 6.4 if private else 3.7, Path(path)) as figure:
        if private:
            panels = figure.subplots(2, 2, sharex="col", sharey="row")
        else:
            panels = figure.subplots(1, 2, squeeze=False).T
        for (name, curves, result), row in zip(_ROWS, panels, strict=True):
            shown = [
                _panel(axes, records, final, curves, result, ended, key)
                for axes, key in zip(row, columns, strict=True)
            ]
            _finish_row(name, row, shown=any(shown), named=not private)
        for row in panels[-1:] if private else panels:
            for axes, key in zip(row, columns, strict=True):
                axes.set_xlabel(_X_LABELS[key])
                axes.set_xlim(left=0, right=max(1.0, last * 1.03) if key == "step" else None)
                axes.xaxis.set_major_locator(MaxNLocator(6, steps=_STEPS, integer=key == "step"))
        figure.align_ylabels()
        if private and budget is not None:
            _mark_budget(panels[:, 0], budget)
        if private and any(_number(r, c.key) is not None for r in records for c in _TRAINING):
            figure.supxlabel(
                "Values of training batches are not covered by the privacy guarantee.",
                x=0.01, ha="left", fontsize=7.5, color=style.GREY,
            )  # fmt: skip
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")


def _draw_spending(
    records: Sequence[Record],
    final: Record | None,
    path: Path,
    *,
    title: str,
    budget: float | None,
    ended: str,
) -> None:
    """Draw epsilon over steps, and the accuracy at the end against epsilon."""
    pairs = [(_number(r, "step"), _number(r, "epsilon")) for r in [*records, final or {}]]
    points = [(x, y) for x, y in pairs if x is not None and y is not None]
    with style.figure(10.0, 3.7, path) as figure:
        spent, accuracy = figure.subplots(1, 2)
        marker = "o" if len(points) == 1 else ""
        spent.plot(*zip(*points, strict=True), color=style.ORANGE, marker=marker)
        spent.set_title("ε spent")
        spent.set_xlabel("step")
        spent.set_xlim(left=0, right=max(1.0, 1.03 * points[-1][0]))
        spent.xaxis.set_major_locator(MaxNLocator(6, steps=_STEPS, integer=True))
        spent.set_ylim(bottom=0)
        top = spent.get_ylim()[1]
        if budget is not None and budget <= _FAR * top:
            spent.set_ylim(top=max(top, 1.03 * budget))
            spent.axhline(budget, color=style.RED, linewidth=1.0, linestyle=":")
            spent.annotate(
                f"budget ε = {budget:g}", (0.02, budget), xytext=(0, -4),
                xycoords=("axes fraction", "data"), textcoords="offset points",
                va="top", color=style.RED, fontsize=8,
            )  # fmt: skip
        shown = _panel(accuracy, [], final, (), "test_accuracy", ended, "epsilon")
        _finish_row("Accuracy", [accuracy], shown=shown, named=True)
        accuracy.set_xlabel(_X_LABELS["epsilon"])
        accuracy.set_xlim(left=0, right=1.1 * max(y for _, y in points))
        if shown:
            accuracy.set_ylim(0, 1.005)
        figure.supxlabel(
            "Values of training batches, which the privacy guarantee does not cover, were not "
            "written. Images held out for validation would give curves here.",
            x=0.01, ha="left", fontsize=7.5, color=style.GREY,
        )  # fmt: skip
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")


def _mark_budget(column: Sequence[Axes], budget: float) -> None:
    """A line at the budget, labelled away from where accuracy and loss curves end.

    One that lies far beyond what was spent is left out.
    """
    right = column[0].get_xlim()[1]
    if budget > _FAR * right:
        return
    column[0].set_xlim(right=max(right, 1.03 * budget))
    for axes, height, end in zip(column, (0.02, 0.98), ("bottom", "top"), strict=True):
        axes.axvline(budget, color=style.RED, linewidth=1.0, linestyle=":")
        axes.annotate(
            f"budget ε = {budget:g}", (budget, height), xytext=(-4, 0),
            xycoords=("data", "axes fraction"), textcoords="offset points",
            rotation=90, ha="right", va=end, color=style.RED, fontsize=8,
        )  # fmt: skip


def _panel(
    axes: Axes,
    records: Iterable[Record],
    final: Record | None,
    curves: Iterable[_Curve],
    result: str,
    ended: str,
    key: str,
) -> bool:
    """Draw the curves of one panel; whether there was anything to draw."""
    shown = False
    records = list(records)
    for curve in curves:
        points = [(_number(r, key), _number(r, curve.key)) for r in records]
        xs = np.array([x for x, y in points if x is not None and y is not None])
        ys = np.array([y for x, y in points if x is not None and y is not None])
        if not len(xs):
            continue
        shown = True
        marked = "o" if not curve.marker and len(xs) == 1 else curve.marker
        faint = not curve.marker and len(xs) > _SMOOTH_FROM
        axes.plot(
            xs, ys, color=curve.colour, marker=marked, markersize=4,
            markevery=max(1, len(xs) // 25), alpha=0.3 if faint else 1.0,
            linewidth=0.8 if faint else None, label=None if faint else curve.label,
        )  # fmt: skip
        if faint:
            axes.plot(xs, _smooth(ys), color=curve.colour, label=f"{curve.label} (moving mean)")
    x, y = (_number(final, key), _number(final, result)) if final else (None, None)
    if x is None or y is None:
        return shown
    words = style.percent(y) if result == "test_accuracy" else f"{y:.3g}"
    axes.plot(
        [x], [y], color=style.BLUE, marker="D", markersize=8, linestyle="", clip_on=False,
        markeredgecolor="white", label=f"{ended} {words}", zorder=5,
    )  # fmt: skip
    return True


def _finish_row(name: str, row: Sequence[Axes], *, shown: bool, named: bool) -> None:
    """Label a row of panels and choose the range of its values."""
    first = row[0]
    if named:
        first.set_title(name)
    else:
        first.set_ylabel(name)
    if not shown:
        for axes in row:
            axes.set_yticks([])
            axes.grid(False)
            axes.text(
                0.5, 0.5, f"no {name.lower()} was recorded", color=style.GREY, ha="center",
                va="center", transform=axes.transAxes,
            )  # fmt: skip
        return
    low, high = first.get_ylim()
    if name == "Accuracy":
        style.percent_axis(first)
        first.set_ylim(max(0.0, low), min(1.005, high))
    elif 0 < low < 0.3 * high:
        first.set_ylim(bottom=0)
    row[-1].legend(loc="best")


def _smooth(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A moving mean over about a twentieth of the points, narrower at the ends."""
    half = max(1, len(values) // 40)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    centre = np.arange(len(values))
    reach = np.minimum(half, np.minimum(centre, len(values) - 1 - centre))
    means: np.ndarray[Any, Any] = (sums[centre + reach + 1] - sums[centre - reach]) / (
        2 * reach + 1
    )
    return means


def _number(record: Record | None, key: str) -> float | None:
    value = record.get(key) if record else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None
