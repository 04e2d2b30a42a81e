"""Learning curves: accuracy and loss against the privacy spent and against steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.charts import png
from sfumato.charts.chart import RULE, Axis, Chart, Points, Series, look, value_axis
from sfumato.io.json_lines import number

Record = Mapping[str, Any]

BATCHES = "training batches"
AGAINST = {"step": "step", "epsilon": "ε spent"}
"""Horizontal axes of curves: the key in the records, and its name."""

_SMOOTH_FROM = 60
"""A batch curve with more points than this is drawn faint, with its moving mean over it."""
_FAR = 2.0
"""A budget so many times beyond the right end is not shown."""
_SPOKEN = 12
_LOOKS = {"validation": ("orange", "circle"), "test": ("blue", "square")}


PANELS = {
    "accuracy": ("Accuracy", "train_accuracy"),
    "loss": ("Loss", "loss"),
    "clipped": ("Gradients that were clipped", "clipped"),
}
"""Titles of charts, and the key of what is computed on training batches, outside the guarantee."""


def keys(panel: str, *, batches: bool = True) -> dict[str, str]:
    """The keys of a panel's curves in the records, and their names."""
    others = {f"validation_{panel}": "validation", f"test_{panel}": "test"}
    return ({PANELS[panel][1]: BATCHES} if batches else {}) | others


@dataclass(frozen=True)
class History:
    """The records of a run.

    Attributes:
        records: In the order of steps: `step`, and any of `epsilon` and the keys of the curves.
        final: The result at the end: `step`, `epsilon`, `test_accuracy`, `test_loss`.
        name: Of the run.
        budget: The epsilon that was not to be crossed.
    """

    records: Sequence[Record]
    final: Record | None = None
    name: str = ""
    budget: float | None = None

    def points(self, against: str, key: str) -> Points:
        """The finite values of a curve."""
        return _points(self.records, against, key)


def charts(
    histories: Sequence[History], against: str, *, batches: bool = True, ended: str = "final test"
) -> dict[str, Chart]:
    """The charts of one run or several, by their keys in `PANELS`.

    Args:
        histories: The runs. Curves of one run differ in colour; of several, each has its own.
        against: A key of `AGAINST`.
        batches: Show what was computed on training batches.
        ended: What the result at the end is, in words.
    """
    drawn = {
        panel: [
            series
            for index in range(len(histories))
            for series in _series(histories, index, panel, against, batches, ended)
        ]
        for panel in PANELS
    }
    right = 1.04 * max((x for all_ in drawn.values() for s in all_ for x, _ in s.points), default=0)
    alone = len(histories) == 1 and against == "epsilon"
    budget = _near(histories[0].budget if alone else None, right)
    right = max(right, *(1.03 * b for b in budget)) if budget else right or 1.0
    x = Axis(AGAINST[against], 0.0, right, whole=against == "step")
    return {panel: _chart(panel, x, series, budget) for panel, series in drawn.items()}


def _near(budget: float | None, spent: float) -> tuple[float, ...]:
    """The budget, unless it lies far beyond what was spent."""
    return (budget,) if budget is not None and budget <= _FAR * (spent or 1.0) else ()


def _chart(panel: str, x: Axis, series: Sequence[Series], budget: tuple[float, ...]) -> Chart:
    title = PANELS[panel][0]
    y = value_axis(title, [v for s in series for _, v in s.points], percent=panel != "loss")
    if panel == "clipped" or (y.percent and all(len(s.points) == 1 for s in series)):
        y = replace(y, low=0.0, high=1.0)
    if not series:
        return Chart(x=x, y=y, empty=f"no {title.lower()} was recorded")
    told = []
    for s in series[:_SPOKEN]:
        first, last = _value(panel, s.points[0][1]), _value(panel, s.points[-1][1])
        told.append(f"{s.label}: " + (last if len(s.points) == 1 else f"from {first} to {last}"))
    words = f"{title} against {x.label}. {'; '.join(told)}."
    ends = (y.high, y.low) if panel == "loss" else (y.low, y.high)
    rules = (
        Series(points=tuple((b, end) for end in ends), tag=f"budget ε = {b:g}", **RULE)
        for b in budget
    )
    return Chart(x=x, y=y, items=(*rules, *series), words=words, legend="best")


def _value(panel: str, value: float) -> str:
    return f"{value:.3g}" if panel == "loss" else f"{100 * value:.1f} %"


def _series(
    histories: Sequence[History], index: int, panel: str, against: str, batches: bool, ended: str
) -> Iterator[Series]:
    """The curves of one run in one panel, and its result at the end."""
    many, history = len(histories) > 1, histories[index]
    before = f"{history.name}, " if many else ""
    shown = {n: history.points(against, k) for k, n in keys(panel, batches=batches).items()}
    shown = {name: points for name, points in shown.items() if points}
    for name, points in shown.items():
        label, exact = before + name, name == BATCHES
        if many:
            faint = exact and len(shown) > 1
            own = look(index) | ({"marker": ""} if faint else {})
            yield Series(points=points, label=label, faint=faint, width=1 if exact else 1.5,
                         run=index, **own)  # fmt: skip
        elif not exact:
            colour, marker = _LOOKS[name]
            yield Series(points=points, label=label, width=1.5, colour=colour, marker=marker)
        else:
            long = len(points) > _SMOOTH_FROM
            yield Series(points=points, label=label, colour="grey", faint=long,
                         width=0.6 if long else 1.0, legend="" if long else None)  # fmt: skip
            if long:
                yield Series(points=_smooth(points), label=f"{label} (moving mean)", colour="grey")
    if result := _points([history.final or {}], against, f"test_{panel}"):
        own = (look(index) | {"run": index} if many else {}) | {"marker": "diamond"}
        legend = f"{before}{ended} {_value(panel, result[0][1])}"
        yield Series(points=result, label=before + ended, legend=legend, width=0, size=1.8, **own)


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
        metrics: See `History.records`. One with `"final": true` is taken as `final`.
        path: The file.
        title: Above the picture.
        final: See `History.final`.
        budget: The epsilon that was not to be crossed, drawn as a line.
        ended: What the result at the end is, in words.
    """
    final = final or next((r for r in reversed(metrics) if r.get("final")), None)
    history = History([r for r in metrics if not r.get("final")], final, budget=budget)
    rows, note = _rows(history, ended)
    height = 6.4 if len(rows) > 1 else 3.7
    png.draw(rows, Path(path), width=10.0, height=height, title=title, note=note)


def _rows(history: History, ended: str) -> tuple[list[list[Chart]], str]:
    """The charts of one run as they stand in its picture, and the small print below them."""
    everything = [*history.records, history.final or {}]
    spent = _points(everything, "step", "epsilon")
    by_step = charts([history], "step", ended=ended)
    if not spent:
        return [[by_step["accuracy"], by_step["loss"]]], ""
    by_epsilon = charts([history], "epsilon", ended=ended)
    named = keys("accuracy") | keys("loss")
    recorded = {name for key, name in named.items() if history.points("step", key)}
    if not recorded:
        return [[_spending(spent, history.budget), by_epsilon["accuracy"]]], (
            "Values of training batches, which the privacy guarantee does not cover, were not "
            "written. Images held out for validation would give curves here."
        )
    note = "Values of training batches are not covered by the privacy guarantee."
    rows = [[replace(by_epsilon[key], legend=""), by_step[key]] for key in ("accuracy", "loss")]
    return rows, note if BATCHES in recorded else ""


def _spending(spent: Points, budget: float | None) -> Chart:
    """Epsilon over steps."""
    x = Axis("step", 0.0, max(1.0, 1.04 * spent[-1][0]), whole=True)
    top = max(epsilon for _, epsilon in spent)
    near = _near(budget, top)
    y = Axis("ε spent", 0.0, 1.06 * max(top, *near, 0.0) or 1.0)
    rules = (Series(points=((0.0, b), (x.high, b)), tag=f"budget ε = {b:g}", **RULE) for b in near)
    return Chart(x=x, y=y, items=(*rules, Series(points=spent, colour="orange")))


def _points(records: Sequence[Record], against: str, key: str) -> Points:
    pairs = ((number(record, against), number(record, key)) for record in records)
    return tuple((x, y) for x, y in pairs if x is not None and y is not None)


def _smooth(points: Points) -> Points:
    """A moving mean over about a twentieth of the points, narrower at the ends."""
    values = np.array([y for _, y in points])
    half = max(1, len(values) // 40)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    centre = np.arange(len(values))
    reach = np.minimum(half, np.minimum(centre, len(values) - 1 - centre))
    means = (sums[centre + reach + 1] - sums[centre - reach]) / (2 * reach + 1)
    return tuple((x, float(mean)) for (x, _), mean in zip(points, means, strict=True))
