"""Pictures of an analysis: one PNG for each part, the runs side by side or in one frame."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from sfumato.analysis.classification import Reliability
from sfumato.analysis.overview import Analysis
from sfumato.charts import png, style
from sfumato.charts.chart import Points, Series, shortened
from sfumato.charts.reliability import reliability
from sfumato.text import percent

COLOURS = (style.BLUE, style.ORANGE, style.GREEN, style.RED, style.PURPLE, style.SKY)
MARKERS = "osD^vP"
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))

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


def _look(index: int) -> dict[str, Any]:
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": DASHES[index % len(DASHES)],
        "marker": MARKERS[index % len(MARKERS)],
        "markersize": 4,
    }


def _log_axis(axis: Any) -> None:
    """Name powers of ten without formulas, which these pictures do not parse."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _title(figure: Any, found: Sequence[Analysis], words: str) -> None:
    parts = " and ".join(dict.fromkeys(one.on for one in found))
    text = f"{words}: {found[0].run.dataset.name}, {parts} images"
    if any(one.warning for one in found):
        text += " (not covered by the privacy guarantee)"
    png.headline(figure, text)


def _calibration(found: Sequence[Analysis], path: Path) -> None:
    with style.figure(max(7.0, 3.4 * len(found) + 0.6), 6.0, path) as figure:
        panels = figure.subplots(2, len(found), squeeze=False, height_ratios=[3, 1])
        for column, one in enumerate(found):
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
            png.paint(panels[0, column], replace(
                diagram, title=title, y=high, items=(bars, ideal, *lines)
            ))  # fmt: skip
            png.paint(panels[1, column], sizes)
        _title(figure, found, "Calibration")


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
    with style.figure(10.0, 4.2, path) as figure:
        density, ranks = figure.subplots(1, 2, width_ratios=[1.7, 1])
        spectra = [one.spectrum for one in found if one.spectrum is not None]
        low = min(float(s.values.min()) for s in spectra)
        high = max(float(s.values.max()) for s in spectra)
        margin = 0.06 * (high - low or 1.0)
        grid = np.linspace(low - margin, high + margin, 1200)
        for index, (one, s) in enumerate(zip(found, spectra, strict=True)):
            look = _look(index) | {"marker": ""}
            trace = "" if one.trace is None else f", trace {one.trace.value:.4g}"
            label = f"{_name(one)}{trace}, {100 * s.negative_mass:.2g} % negative"
            density.plot(grid, s.density(grid), label=label, **look)
            order = np.arange(1, len(s.top) + 1)
            ranks.plot(order, np.abs(s.top), **_look(index))
            below = s.top < 0
            ranks.plot(order[below], -s.top[below], "x", color=style.INK, markersize=8)
        density.set_yscale("log")
        peak = max(float(line.get_ydata().max()) for line in density.get_lines())
        density.set_ylim(peak * 1e-6, peak * 3)
        _log_axis(density.yaxis)
        density.axvline(0, color=style.GREY, linewidth=0.8)
        density.set_title("Density of eigenvalues (log scale)")
        density.set_xlabel("eigenvalue of the Hessian")
        density.legend(loc="upper right")
        ranks.set_title("Largest in size")
        ranks.set_xlabel("rank (×: negative)")
        ranks.set_ylabel("|eigenvalue|")
        ranks.set_ylim(bottom=0)
        _title(figure, found, "Curvature of the mean loss")


def _activations(found: Sequence[Analysis], path: Path) -> None:
    """Paths of residual blocks, or layers where there are none; then norms over training."""
    rows = [(one, row) for one in found for row in _histograms(one)]
    course = [one for one in found if len(one.course.get("activations", ())) > 1]
    columns = max(len(row[1]) for _, row in rows)
    height = 2.0 * len(rows) + (2.9 if course else 0) + 0.5
    with style.figure(max(8.0, 2.5 * columns), height, path) as figure:
        ratios = [2.0 * len(rows), 2.9] if course else None
        parts: Any = figure.subfigures(2 if course else 1, 1, squeeze=False, height_ratios=ratios)
        panels = parts[0, 0].subplots(len(rows), columns, squeeze=False)
        for line, (one, (block, distributions)) in enumerate(rows):
            for column in range(columns):
                axes = panels[line, column]
                if column >= len(distributions):
                    axes.set_axis_off()
                    continue
                _histogram(axes, *distributions[column])
            panels[line, 0].set_ylabel(
                f"{shortened(one.run.folder.name, 20)}\n{shortened(block, 20)}\nshare of values",
                fontsize=8,
            )
        if course:
            _norms(parts[1, 0].subplots(1, 1), course)
        _title(figure, found, "Activations")


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


def _histogram(axes: Axes, name: str, d: Any) -> None:
    axes.stairs(d.counts / d.count, d.edges, fill=True, color=style.BLUE, alpha=0.75)
    axes.axvline(d.mean, color=style.RED, linewidth=1.0, linestyle="--")
    # Above the bars, which may be highest anywhere.
    numbers = f"mean {d.mean:.2f} · std {d.std:.2f} · skew {d.skewness:.2f}"
    axes.set_title(f"{shortened(name, 26)}\n{numbers}", fontsize=7.5)
    axes.yaxis.set_major_locator(MaxNLocator(3))
    style.percent_axis(axes)
    axes.tick_params(labelsize=7.5)
    axes.grid(False)


def _norms(axes: Axes, found: Sequence[Analysis]) -> None:
    from sfumato.analysis.activation_statistics import first_activation

    for index, one in enumerate(found):
        points = [(step, first_activation(a)) for step, a in one.course["activations"]]
        known = [(step, d) for step, d in points if d is not None]
        steps = np.array([step for step, _ in known])
        norm = np.array([d.norm for _, d in known])
        spread = np.array([d.norm_std for _, d in known])
        look = _look(index)
        axes.plot(steps, norm, label=f"{_name(one)} ({known[0][1].name})", **look)
        axes.fill_between(steps, norm - spread, norm + spread, color=look["color"], alpha=0.15,
                          linewidth=0)  # fmt: skip
    axes.set_title("l2 norm of an image's first activations over training (band: ± 1 std)")
    axes.set_xlabel("step")
    axes.set_ylabel("l2 norm")
    axes.set_ylim(bottom=0)
    axes.legend()


def _sparsity(found: Sequence[Analysis], path: Path) -> None:
    course = [one for one in found if len(one.course.get("sparsity", ())) > 1]
    with style.figure(10.0 if course else 5.6, 4.2, path) as figure:
        panels = figure.subplots(1, 2 if course else 1, squeeze=False)[0]
        for index, one in enumerate(found):
            s = one.sparsity
            assert s is not None
            look = _look(index)
            panels[0].plot(s.thresholds, s.gradients, label=f"{_name(one)}, gradient",
                           **(look | {"linestyle": "-"}))  # fmt: skip
            panels[0].plot(s.thresholds, s.parameters, label=f"{_name(one)}, parameters",
                           **(look | {"linestyle": "--"}))  # fmt: skip
        panels[0].set_xscale("log")
        _log_axis(panels[0].xaxis)
        panels[0].set_title("At the end, by threshold")
        panels[0].set_xlabel("threshold")
        panels[0].set_ylabel("entries of at most this size")
        panels[0].legend()
        if course:
            _sparsity_course(panels[1], course)
        for axes in panels:
            axes.set_ylim(0, 1.02)
            style.percent_axis(axes)
        _title(figure, found, "Entries close to zero")


def _sparsity_course(axes: Axes, found: Sequence[Analysis]) -> None:
    """Gradients continuous and parameters dashed, as in Hölzl et al. (2023), figure 3."""
    assert found[0].sparsity is not None
    thresholds = found[0].sparsity.thresholds
    k = thresholds.index(1e-3) if 1e-3 in thresholds else len(thresholds) // 2
    for index, one in enumerate(found):
        points = one.course["sparsity"]
        steps, look = [step for step, _ in points], _look(index)
        axes.plot(steps, [s.gradients[k] for _, s in points], **(look | {"linestyle": "-"}))
        axes.plot(steps, [s.parameters[k] for _, s in points], **(look | {"linestyle": "--"}))
    axes.set_title(f"Over training, threshold {thresholds[k]:g}")
    axes.set_xlabel("step (lines: gradient, dashes: parameters)")


def _gradients(found: Sequence[Analysis], path: Path) -> None:
    course = [one for one in found if len(one.course.get("gradients", ())) > 1]
    longest = max(len(one.gradients.layers) for one in found if one.gradients)
    width = min(16.0, max(8.0, 0.32 * longest * len(found) + 2))
    with style.figure(width, 6.6 if course else 4.0, path) as figure:
        parts: Any = figure.subfigures(2 if course else 1, 1, squeeze=False)
        panels = parts[0, 0].subplots(1, len(found), squeeze=False, sharey=True)[0]
        for axes, one in zip(panels, found, strict=True):
            _layers(axes, one)
        panels[0].set_ylabel("norm")
        panels[0].legend(loc="lower left", bbox_to_anchor=(0, 1.07), ncols=3, borderaxespad=0)
        if course:
            _gradient_course(parts[1, 0].subplots(1, 2), course)
        _title(figure, found, "Clipped gradients and noise")


def _layers(axes: Axes, one: Analysis) -> None:
    g = one.gradients
    assert g is not None
    place = np.arange(len(g.layers))
    signal = np.array([layer.signal for layer in g.layers])
    axes.plot(place, [layer.norm for layer in g.layers], "s", color=style.GREY, markersize=4,
              label="one example")  # fmt: skip
    axes.plot(place, np.where(signal > 0, signal, np.nan), "o", color=style.BLUE, markersize=5,
              label="mean, clipped (signal)")  # fmt: skip
    if g.whole.noise:
        axes.plot(place, [layer.noise for layer in g.layers], "_", color=style.RED, markersize=9,
                  markeredgewidth=2, label="noise of a step")  # fmt: skip
    axes.set_yscale("log")
    _log_axis(axes.yaxis)
    every = math.ceil(len(place) / 40)
    names = [shortened(layer.name or "(model)", 20) for layer in g.layers]
    axes.set_xticks(place[::every], names[::every], rotation=90, fontsize=7.5)
    axes.set_title(f"{_name(one)}: {percent(g.clipped)} clipped")


def _gradient_course(panels: Sequence[Axes], found: Sequence[Analysis]) -> None:
    ratio, clipped = panels
    for index, one in enumerate(found):
        points, look = one.course["gradients"], _look(index)
        steps = [step for step, _ in points]
        if all(g.whole.noise for _, g in points):
            ratio.plot(steps, [g.whole.snr for _, g in points], label=_name(one), **look)
        clipped.plot(steps, [g.clipped for _, g in points], label=_name(one), **look)
    ratio.set_title("Signal to noise of the whole gradient")
    ratio.set_ylim(bottom=0)
    clipped.set_title("Clipped examples")
    clipped.set_ylim(0, 1.02)
    style.percent_axis(clipped)
    clipped.legend(loc="best")
    for axes in panels:
        axes.set_xlabel("step")


def _cost(found: Sequence[Analysis], path: Path) -> None:
    rows = max(sum(1 for w in one.cost.layers if w.parameters or w.macs)
               for one in found if one.cost)  # fmt: skip
    height = min(14.0, max(2.4, 0.24 * rows + 1.2))
    with style.figure(max(7.0, 4.6 * len(found)), height, path) as figure:
        panels = figure.subplots(1, len(found), squeeze=False)[0]
        for axes, one in zip(panels, found, strict=True):
            assert one.cost is not None
            layers = [w for w in one.cost.layers if w.parameters or w.macs]
            place = np.arange(len(layers))
            axes.barh(place - 0.2, [w.macs / max(1, one.cost.macs) for w in layers], 0.38,
                      color=style.BLUE, label="multiply-accumulates")  # fmt: skip
            axes.barh(place + 0.2, [w.parameters / max(1, one.cost.parameters) for w in layers],
                      0.38, color=style.ORANGE, label="parameters")  # fmt: skip
            names = [shortened(w.name or "(model)", 22) for w in layers]
            every = math.ceil(len(place) / 60)
            axes.set_yticks(place[::every], names[::every], fontsize=7.5)
            axes.invert_yaxis()
            style.percent_axis(axes, x=True, y=False)
            axes.grid(False, axis="y")
            axes.set_title(
                f"{_name(one)}\n{one.cost.macs / 1e6:.3g} M MACs, "
                f"{one.cost.parameters / 1e3:.4g} k parameters"
            )
        panels[0].legend(loc="best")
        png.headline(figure, "Cost by layer")


_PICTURES: dict[str, Callable[[Sequence[Analysis], Path], None]] = {
    "calibration": _calibration,
    "curvature": _curvature,
    "activations": _activations,
    "sparsity": _sparsity,
    "gradients": _gradients,
    "cost": _cost,
}
