"""Pictures of an analysis: one PNG for each part, the runs side by side or in one frame."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.analysis.classification import Reliability
from sfumato.analysis.overview import Analysis
from sfumato.charts import png
from sfumato.charts.chart import Axis, Bars, Chart, Points, Series, look, shortened, value_axis
from sfumato.charts.reliability import reliability
from sfumato.text import percent

_BLOCKS = 4
"""Residual blocks drawn for one run, evenly chosen."""


def draw(found: Sequence[Analysis], folder: Path, *, parts: Sequence[str]) -> list[Path]:
    """Draw every part that was measured into `folder` as `PART.png`; the files written.

    Args:
        found: Analyses of one or several runs.
        folder: It exists.
        parts: Which parts, of `sfumato.analysis.overview.PARTS`.
    """
    written = []
    for part in parts:
        key = "spectrum" if part == "curvature" else part
        shown = [one for one in found if getattr(one, key) is not None]
        if shown:
            path = folder / f"{part}.png"
            _PICTURES[part](shown, path)
            written.append(path)
    return written


def _name(one: Analysis) -> str:
    return shortened(one.run.folder.name, 28)


def _title(found: Sequence[Analysis], words: str) -> str:
    parts = " and ".join(dict.fromkeys(one.on for one in found))
    text = f"{words}: {found[0].run.dataset.name}, {parts} images"
    if any(one.warning for one in found):
        text += " (not covered by the privacy guarantee)"
    return text


def _log_axis(label: str, values: Iterable[float]) -> Axis:
    positive = [value for value in values if value > 0] or [1.0]
    return Axis(label, min(positive) / 1.5, max(positive) * 1.5, log=True)


def _fractions(label: str = "") -> Axis:
    return Axis(label, 0.0, 1.02, percent=True)


def _over_steps(title: str, series: Sequence[Series], y: Axis, label: str = "step") -> Chart:
    """Values at the snapshots of each run."""
    x = value_axis(label, [step for s in series for step, _ in s.points], zero=False)
    return Chart(title=title, x=replace(x, whole=True), y=y, items=tuple(series))


def _heights(series: Sequence[Series]) -> list[float]:
    """The finite values of the series and of their spans, and zero."""
    ends = [end for s in series for span in s.spans for end in span]
    ends += [y for s in series for _, y in s.points]
    return [0.0, *filter(math.isfinite, ends)]


def _pairs(xs: Iterable[float], ys: Iterable[float]) -> Points:
    return tuple((float(x), float(y)) for x, y in zip(xs, ys, strict=True))


def _calibration(found: Sequence[Analysis], path: Path) -> None:
    above, below = zip(*map(_reliability, found), strict=True)
    width = max(7.0, 3.4 * len(found) + 0.6)
    title = _title(found, "Calibration")
    png.draw([above, below], path, width=width, height=6.0, title=title, heights=(3, 1))


def _reliability(one: Analysis) -> tuple[Chart, Chart]:
    """The diagram before and after the temperature, and the sizes of its bins."""
    c = one.calibration
    assert c is not None
    bins, scores = c.scores.bins, c.scores
    diagram, sizes = reliability(
        bins.edges, bins.counts, bins.accuracy, bins.confidence, ece=scores.ece
    )
    bars, ideal = replace(diagram.items[0], label="bins of equal width"), diagram.items[-1]
    lines = [
        Series(
            points=_pooled(scores.adaptive_bins), label=f"{words} (ECE {scores.ece:.3f})",
            colour=colour, marker=marker,
        )
        for scores, colour, marker, words in (
            (c.before, "red", "circle", "as it is"),
            (c.after, "green", "square", f"at temperature {c.temperature:.2f}"),
        )
    ]  # fmt: skip
    title = f"{_name(one)}\nBrier {scores.brier:.3f} · ECE {scores.ece:.3f}"
    high = replace(diagram.y, high=1.38)
    return replace(diagram, title=title, y=high, items=(bars, ideal, *lines)), sizes


def _pooled(bins: Reliability, least: int = 15) -> Points:
    """Confidence and accuracy of neighbouring bins joined until each holds enough images."""
    points, held = [], np.zeros(3)
    for count, confidence, accuracy in zip(
        bins.counts, bins.confidence, bins.accuracy, strict=True
    ):
        held = held + np.array([count, count * confidence, count * accuracy])
        if held[0] >= least:
            points.append((float(held[1] / held[0]), float(held[2] / held[0])))
            held = np.zeros(3)
    return tuple(points)


def _curvature(found: Sequence[Analysis], path: Path) -> None:
    spectra = [one.spectrum for one in found if one.spectrum is not None]
    low = min(float(s.values.min()) for s in spectra)
    high = max(float(s.values.max()) for s in spectra)
    margin = 0.06 * (high - low or 1.0)
    grid = np.linspace(low - margin, high + margin, 1200)
    densities = [s.density(grid) for s in spectra]
    peak = max(float(density.max()) for density in densities)
    y = Axis("", peak * 1e-6, peak * 10 ** (0.4 * len(found) + 0.2), log=True)
    zero = Series(points=((0.0, y.low), (0.0, y.high)), colour="grey", width=0.6)
    curves, ranks, negative = [], [], []
    for index, (one, s, density) in enumerate(zip(found, spectra, densities, strict=True)):
        trace = "" if one.trace is None else f", trace {one.trace.value:.4g}"
        label = f"{_name(one)}{trace}, {100 * s.negative_mass:.2g} % negative"
        shown = np.maximum(density, y.low / 10)
        own = look(index) | {"marker": "", "dash": ("", "dashed", "dotted")[index % 3]}
        curves.append(Series(points=_pairs(grid, shown), label=label, **own))
        sizes = _pairs(range(1, len(s.top) + 1), np.abs(s.top))
        ranks.append(Series(points=sizes, **look(index)))
        below = tuple(point for point, value in zip(sizes, s.top, strict=True) if value < 0)
        negative.append(Series(points=below, width=0, marker="cross", size=2.0, colour="ink"))
    x = Axis("eigenvalue of the Hessian", float(grid[0]), float(grid[-1]))
    last = max(len(s.top) for s in spectra)
    places = Axis("rank (×: negative)", 0.5, last + 0.5, whole=True)
    largest = Chart(
        title="Largest in size", x=places, y=value_axis("|eigenvalue|", _heights(ranks)),
        items=(*ranks, *negative),
    )  # fmt: skip
    title, items = "Density of eigenvalues (log scale)", (zero, *curves)
    all_ = Chart(title=title, x=x, y=y, items=items, legend="upper right")
    title = _title(found, "Curvature of the mean loss")
    png.draw([[all_, largest]], path, width=11.0, height=4.2, title=title)


def _activations(found: Sequence[Analysis], path: Path) -> None:
    """Paths of residual blocks, or layers where there are none; then norms over training."""
    rows = [
        [
            _histogram(
                *named,
                ""
                if place
                else f"{shortened(one.run.folder.name, 20)}\n{shortened(block, 20)}\n"
                "share of values",
            )
            for place, named in enumerate(distributions)
        ]
        for one in found
        for block, distributions in _histograms(one)
    ]
    width, heights = max(8.0, 2.5 * max(map(len, rows))), [2.0] * len(rows)
    if course := [one for one in found if len(one.course.get("activations", ())) > 1]:
        rows, heights = [*rows, [_norms(course)]], [*heights, 2.9]
    title, height = _title(found, "Activations"), sum(heights) + 0.5
    png.draw(rows, path, width=width, height=height, title=title, heights=heights)


def _histograms(one: Analysis) -> list[tuple[str, list[tuple[str, Any]]]]:
    """Rows of histograms: a row for each residual block, else rows of four layers."""
    assert one.activations is not None
    blocks = one.activations.residuals
    if blocks:
        names = list(blocks)
        chosen = sorted({round(k) for k in np.linspace(0, len(names) - 1, _BLOCKS)})
        return [(names[k], list(blocks[names[k]].items())) for k in chosen]
    layers = one.activations.layers
    chosen = sorted({round(k) for k in np.linspace(0, len(layers) - 1, 8)})
    picked = [(layers[k].name, layers[k]) for k in chosen]
    return [("layers", picked[k : k + 4]) for k in range(0, len(picked), 4)]


def _histogram(name: str, d: Any, label: str) -> Chart:
    shares, edges = d.counts / d.count, d.edges.tolist()
    top = 1.05 * float(shares.max()) or 1.0
    bars = Bars(
        sides=_pairs(edges[:-1], edges[1:]), ends=tuple((0.0, s) for s in shares.tolist()),
        colour="blue", opacity=0.75, joined=True,
    )  # fmt: skip
    mean = Series(points=((d.mean, 0.0), (d.mean, top)), colour="red", dash="dashed", width=0.8)
    numbers = f"mean {d.mean:.2f} · std {d.std:.2f} · skew {d.skewness:.2f}"
    return Chart(
        title=f"{shortened(name, 26)}\n{numbers}", x=value_axis("", edges, zero=False),
        y=Axis(label, 0.0, top, percent=True), items=(bars, mean), small=True,
    )  # fmt: skip


def _norms(found: Sequence[Analysis]) -> Chart:
    from sfumato.analysis.activation_statistics import first_activation

    series = []
    for index, one in enumerate(found):
        points = [(step, first_activation(a)) for step, a in one.course["activations"]]
        known = [(step, d) for step, d in points if d is not None]
        spans = tuple((d.norm - d.norm_std, d.norm + d.norm_std) for _, d in known)
        series.append(
            Series(
                points=tuple((step, d.norm) for step, d in known), spans=spans, band=True,
                label=f"{_name(one)} ({known[0][1].name})", **look(index),
            )
        )  # fmt: skip
    title = "l2 norm of an image's first activations over training (band: ± 1 std)"
    y = value_axis("l2 norm", _heights(series))
    return replace(_over_steps(title, series, y), legend="best")


def _sparsity(found: Sequence[Analysis], path: Path) -> None:
    series, thresholds = [], set[float]()
    for index, one in enumerate(found):
        s = one.sparsity
        assert s is not None
        thresholds |= {*s.thresholds}
        series += _both(index, s.thresholds, s.gradients, s.parameters, _name(one))
    x = replace(_log_axis("threshold", thresholds), at=tuple(sorted(thresholds)))
    y = _fractions("entries of at most this size")
    row = [Chart(title="At the end, by threshold", x=x, y=y, items=tuple(series), legend="best")]
    if course := [one for one in found if len(one.course.get("sparsity", ())) > 1]:
        row.append(_sparsity_course(course))
    width, title = 10.0 if course else 5.6, _title(found, "Entries close to zero")
    png.draw([row], path, width=width, height=4.2, title=title)


def _both(
    index: int,
    xs: Sequence[float],
    gradients: Iterable[float],
    parameters: Iterable[float],
    name: str = "",
) -> list[Series]:
    """Gradients continuous and parameters dashed, as in Hölzl et al. (2023), figure 3."""
    return [
        Series(points=_pairs(xs, ys), label=name and f"{name}, {of}",
               **(look(index) | {"dash": dash}))
        for of, ys, dash in (("gradient", gradients, ""), ("parameters", parameters, "dashed"))
    ]  # fmt: skip


def _sparsity_course(found: Sequence[Analysis]) -> Chart:
    assert found[0].sparsity is not None
    thresholds, series = found[0].sparsity.thresholds, []
    k = thresholds.index(1e-3) if 1e-3 in thresholds else len(thresholds) // 2
    for index, one in enumerate(found):
        steps, values = zip(*one.course["sparsity"], strict=True)
        series += _both(index, steps, [s.gradients[k] for s in values],
                        [s.parameters[k] for s in values])  # fmt: skip
    title = f"Over training, threshold {thresholds[k]:g}"
    return _over_steps(title, series, _fractions(), "step (lines: gradient, dashes: parameters)")


def _gradients(found: Sequence[Analysis], path: Path) -> None:
    longest = max(len(one.gradients.layers) for one in found if one.gradients)
    charts = [_layers(one) for one in found]
    y = _log_axis("norm", [v for c in charts for s in c.series for _, v in s.points])
    rows = [[replace(c, y=y, legend="" if k else "above") for k, c in enumerate(charts)]]
    course = [one for one in found if len(one.course.get("gradients", ())) > 1]
    if course:
        rows.append(_gradient_course(course))
    width = min(16.0, max(8.0, 0.32 * longest * len(found) + 2))
    title, height = _title(found, "Clipped gradients and noise"), 6.6 if course else 4.0
    png.draw(rows, path, width=width, height=height, title=title)


def _layers(one: Analysis) -> Chart:
    """The norms by layer, where they are not zero; their axis is that of all runs."""
    g = one.gradients
    assert g is not None
    marks = (("norm", "square", "grey", "one example"),
             ("signal", "circle", "blue", "mean, clipped (signal)"),
             ("noise", "down", "red", "noise of a step"))  # fmt: skip
    every = range(0, len(g.layers), math.ceil(len(g.layers) / 40))
    x = Axis(
        "", -0.5, len(g.layers) - 0.5, at=tuple(map(float, every)), upright=True,
        names=tuple(shortened(g.layers[k].name or "(model)", 20) for k in every),
    )  # fmt: skip
    series = (
        Series(
            points=tuple((k, v) for k, v in enumerate(getattr(w, key) for w in g.layers) if v > 0),
            width=0, marker=marker, size=1.3, colour=colour, label=label,
        )
        for key, marker, colour, label in marks
    )  # fmt: skip
    title = f"{_name(one)}: {percent(g.clipped)} clipped"
    return Chart(title=title, x=x, y=_fractions(), items=tuple(s for s in series if s.points))


def _gradient_course(found: Sequence[Analysis]) -> list[Chart]:
    ratio, clipped = [], []
    for index, one in enumerate(found):
        own, points = {"label": _name(one)} | look(index), one.course["gradients"]
        if all(g.whole.noise for _, g in points):
            ratio.append(Series(points=tuple((step, g.whole.snr) for step, g in points), **own))
        clipped.append(Series(points=tuple((step, g.clipped) for step, g in points), **own))
    title, y = "Signal to noise of the whole gradient", value_axis("", _heights(ratio))
    return [
        _over_steps(title, ratio, y),
        replace(_over_steps("Clipped examples", clipped, _fractions()), legend="best"),
    ]


def _cost(found: Sequence[Analysis], path: Path) -> None:
    charts = [replace(_shares(one), legend="" if k else "best") for k, one in enumerate(found)]
    rows = max(len(c.items[0].sides) for c in charts if isinstance(c.items[0], Bars))
    height = min(14.0, max(2.4, 0.24 * rows + 1.2))
    png.draw([charts], path, width=max(7.0, 4.6 * len(found)), height=height, title="Cost by layer")


def _shares(one: Analysis) -> Chart:
    """The share of each layer in the cost of a network."""
    cost = one.cost
    assert cost is not None
    layers = [w for w in cost.layers if w.parameters or w.macs]
    items = tuple(
        Bars(
            sides=tuple((k + side, k + side + 0.4) for k in range(len(layers))),
            ends=tuple((0.0, getattr(w, of) / max(1, getattr(cost, of))) for w in layers),
            label=label, colour=colour, sideways=True,
        )
        for of, label, colour, side in (
            ("macs", "multiply-accumulates", "blue", -0.4),
            ("parameters", "parameters", "orange", 0.0),
        )
    )  # fmt: skip
    every = range(0, len(layers), math.ceil(len(layers) / 60))
    total = f"{cost.macs / 1e6:.3g} M MACs, {cost.parameters / 1e3:.4g} k parameters"
    return Chart(
        title=f"{_name(one)}\n{total}",
        x=Axis("", 0.0, 1.05 * max(end for bars in items for _, end in bars.ends), percent=True),
        y=Axis(
            "", len(layers) - 0.5, -0.5, at=tuple(map(float, every)),
            names=tuple(shortened(layers[k].name or "(model)", 22) for k in every),
        ),
        items=items,
    )  # fmt: skip


_PICTURES: dict[str, Callable[[Sequence[Analysis], Path], None]] = {
    "calibration": _calibration,
    "curvature": _curvature,
    "activations": _activations,
    "sparsity": _sparsity,
    "gradients": _gradients,
    "cost": _cost,
}
