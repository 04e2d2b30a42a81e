"""Accuracy against epsilon on CIFAR-10: the literature's points and ours."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from sfumato.charts import pareto, png
from sfumato.charts.chart import SHAPES, Series, look
from sfumato.charts.pareto import Point
from sfumato.data.catalogue import DRAWN
from sfumato.reproduce import results_file
from sfumato.reproduce.literature import CIFAR10
from sfumato.reproduce.results_file import Entry
from sfumato.reproduce.row import Row
from sfumato.reproduce.rows import PAPERS


def draw(entries: Sequence[Entry], path: Path) -> Path:
    """Accuracy on CIFAR-10 without public images, against epsilon: the literature's and ours."""
    series = [
        Series(
            points=tuple((x, y / 100) for x, y in method.points), colour="grey", width=0.55,
            marker=SHAPES[number], hollow=True, faint=bool(method.prior),
            dash="" if method.verified else "dotted",
            label=method.name + (f" ({method.prior})" if method.prior else ""),
        )
        for number, method in enumerate(CIFAR10)
    ]  # fmt: skip
    for number, (name, rows) in enumerate(_series()):
        series += _ours(name, _points(entries, rows), number)
    chart = pareto.chart(series, x_label="ε at δ = 1e-5", ticks=(1, 2, 3, 4, 6, 8, 10))
    chart = replace(chart, title="CIFAR-10 without public images", legend="outside")
    png.draw([[chart]], path, width=8.2, height=5.2)
    return path


def _ours(name: str, points: Sequence[Point], number: int) -> Iterator[Series]:
    """A paper's points in one colour; a line joins those of one network."""
    models = list(dict.fromkeys(p.name for p in points))
    for model in models:
        own = [p for p in points if p.name == model]
        yield Series(
            points=tuple((p.epsilon, p.accuracy) for p in own),
            spans=tuple((p.low, p.high) for p in own),
            label=f"ours: {name} ({', '.join(models)})" if model == models[0] else "",
            size=1.5, **look(number),
        )  # fmt: skip


def _series() -> Iterator[tuple[str, Sequence[Row]]]:
    """Rows that belong together: those of a paper from scratch, and our own after drawn images.

    Rows that only serve as the start of another are left out.
    """
    for paper in PAPERS:
        starts = {start.id for row in paper.rows for start in (row.needs, row.best_needs) if start}
        scratch = [
            row
            for row in paper.rows
            if not (row.needs or row.best_needs or row.id in starts or _drawn(row))
        ]
        yield paper.key if paper.key != "sfumato" else "own recipes", scratch
    yield "after drawn images", [row for row in PAPERS[-1].rows if _drawn(row)]


def _drawn(row: Row) -> bool:
    """Tell whether a run starts from weights that were trained on drawn images alone."""
    if row.needs:
        return row.needs.recipe_for("published").data.name in DRAWN
    return row.recipe_for(row.settings[0]).start.source in DRAWN


def _points(entries: Sequence[Entry], rows: Sequence[Row]) -> list[Point]:
    """The best median of a paper's rows at each epsilon, with its worst and best seed."""
    best: dict[float, Point] = {}
    for row in rows:
        for setting in row.settings:
            recipe = row.recipe_for(setting)
            private = recipe.data.name == "cifar10" and recipe.privacy.enabled
            found = results_file.of_row(entries, row, setting) if private else []
            if not found or recipe.privacy.epsilon > 11:
                continue
            values = [entry.accuracy for entry in found]
            x = recipe.privacy.epsilon
            middle = statistics.median(values)
            point = Point(x, recipe.model.name, middle, min(values), max(values))
            best[x] = max(best.get(x, point), point, key=lambda p: p.accuracy)
    return [best[x] for x in sorted(best)]
