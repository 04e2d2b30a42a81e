"""ROC curves of attacks on privacy, under the curve that a guarantee allows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sfumato.charts.chart import Array, Axis, Chart, Points, Series

_MOST = 300
"""Most points of a curve."""

Rates = tuple[Array, Array]
"""False and true positive rates, from (0, 0) to (1, 1)."""


def trade_off(
    found: Mapping[str, Rates], allowed: Rates, *, claim: str, lowest: float, title: str = ""
) -> Chart:
    """The chart of true against false positive rates, both on logarithmic axes.

    Args:
        found: What attacks reached, by name.
        allowed: The most that the guarantee allows.
        claim: The guarantee, such as `ε = 3`.
        lowest: The smallest false positive rate to show, such as one in the number of others.
        title: Above the chart.
    """
    low = max(1e-5, min(0.1, lowest))
    ends = ((low, low), (1.0, 1.0))
    colours = ("blue", "purple", "sky")
    items = (
        Series(points=ends, label="guessing", colour="grey", dash="dashed", width=0.7),
        Series(points=_points(allowed, low), label=f"allowed by {claim}", colour="red"),
        *(
            Series(points=_points(rates, low), label=name, colour=colour)
            for (name, rates), colour in zip(found.items(), colours, strict=False)
        ),
    )
    return Chart(
        title=title,
        x=Axis("false positive rate", low, 1.0, log=True, at=_powers(low), names=_names(low)),
        y=Axis("true positive rate", low, 1.0, log=True, at=_powers(low), names=_names(low)),
        items=items,
        words=f"True positive rate against false positive rate of {', '.join(found)}, and the most "
        f"that {claim} allows.",
        legend="lower right",
    )


def _points(rates: Rates, low: float) -> Points:
    """The curve from `low` on, at rates that are evenly spaced on a logarithmic axis."""
    false, true = rates
    at = np.geomspace(low, 1.0, _MOST)
    # The value at a jump is the upper one, as a curve reads it.
    order = np.searchsorted(false, at, side="right") - 1
    after = np.minimum(order + 1, len(false) - 1)
    width = false[after] - false[order]
    part = np.where(width > 0, (at - false[order]) / np.where(width > 0, width, 1), 0.0)
    values = true[order] + part * (true[after] - true[order])
    pairs = zip(at.tolist(), values.tolist(), strict=True)
    return tuple((x, y) for x, y in pairs if y >= low)


def _powers(low: float) -> tuple[float, ...]:
    return tuple(10.0**k for k in range(int(np.ceil(np.log10(low) - 1e-9)), 1))


def _names(low: float) -> tuple[str, ...]:
    return tuple(f"{100 * value:g} %" for value in _powers(low))
