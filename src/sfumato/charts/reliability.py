"""Reliability diagrams: accuracy against confidence, and the number of images in each bin."""

from __future__ import annotations

import numpy as np

from sfumato.charts.chart import Array, Axis, Bars, Chart, Series, Stop

_QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)


def reliability(
    edges: Array, counts: Array, accuracy: Array, confidence: Array, *, ece: float
) -> tuple[Chart, Chart]:
    """The diagram, and the share of images in each bin, which belongs below it.

    Predictions of a bar that ends below its mark were overconfident, above it underconfident.

    Args:
        edges: `(M + 1,)`, the edges of the bins from 0 to 1.
        counts: `(M,)`, images in each bin.
        accuracy: `(M,)`, the share of them that was predicted correctly.
        confidence: `(M,)`, their mean largest probability.
        ece: The expected calibration error.
    """
    filled = [int(k) for k in np.flatnonzero(counts)]
    sides = tuple((float(edges[k]), float(edges[k + 1])) for k in filled)
    got, sure = ([float(values[k]) for k in filled] for values in (accuracy, confidence))
    gaps = [(side, (min(a, c), max(a, c)), c > a)
            for side, a, c in zip(sides, got, sure, strict=True)]  # fmt: skip
    over, under = (
        Bars(
            sides=tuple(side for side, _, above in gaps if above == too_sure),
            ends=tuple(ends for _, ends, above in gaps if above == too_sure),
            colour=colour, opacity=opacity, label=label,
        )
        for too_sure, colour, opacity, label in (
            (True, "red", 0.3, "overconfident"), (False, "blue", 0.8, "underconfident"),
        )
    )  # fmt: skip
    stops = tuple(
        Stop(
            (left + right) / 2, 0.5, f"confidence {100 * left:.1f} % to {100 * right:.1f} %",
            (f"{int(counts[k])} images", f"mean confidence {100 * c:.1f} %",
             f"accuracy {100 * a:.1f} %"),
        )
        for k, (left, right), a, c in zip(filled, sides, got, sure, strict=True)
    )  # fmt: skip
    diagram = Chart(
        title=f"Reliability (ECE {ece:.3f})",
        x=Axis("", 0.0, 1.0, at=()),
        y=Axis("accuracy", 0.0, 1.0, percent=True, at=_QUARTERS),
        items=(
            Bars(sides=sides, ends=tuple((0.0, a) for a in got), label="accuracy", opacity=0.85),
            *(gap for gap in (over, under) if gap.ends),
            Bars(sides=sides, ends=tuple((0.0, c) for c in sure), label="mean confidence",
                 colour="ink", top_only=True),
            Series(points=((0.0, 0.0), (1.0, 1.0)), colour="grey", dash="dashed", width=0.6),
        ),
        words=f"Reliability diagram: accuracy against confidence in {len(counts)} bins; expected "
        f"calibration error {ece:.3f}.",
        legend="upper left",
        stops=stops,
    )  # fmt: skip
    return diagram, bin_sizes(edges, counts)


def bin_sizes(edges: Array, counts: Array) -> Chart:
    """The share of images in each bin."""
    share = counts / counts.sum()
    top = float(share.max())
    return Chart(
        x=Axis("confidence (largest probability)", 0.0, 1.0, percent=True, at=_QUARTERS),
        y=Axis("images", 0.0, top, percent=True, at=(0.0, float(f"{top:.2g}"))),
        items=(
            Bars(
                sides=tuple(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)),
                ends=tuple((0.0, float(s)) for s in share), colour="grey", opacity=0.8,
            ),
        ),
    )  # fmt: skip
