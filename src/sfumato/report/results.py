"""Test results as SVG: the confusion matrix and the reliability diagram."""

from __future__ import annotations

from typing import Any

import numpy as np

from sfumato.analysis.classification import Evaluation
from sfumato.report import svg
from sfumato.report.markup import Safe, details, element, join, table

MOST_CLASSES = 200
"""Larger confusion matrices are not drawn; their largest errors are listed."""

_NUMBERED = 16
_LISTED = 20
_SHADES = 8


def confusion(evaluation: Evaluation, key: str) -> tuple[Safe, dict[str, Any]]:
    """The confusion matrix, coloured by the share of the true class, and its values."""
    e = evaluation
    count = len(e.classes)
    if count > MOST_CLASSES:
        words = f"A matrix of {count} classes is too large to draw; these are its largest errors."
        return join([element("p", {"class": "note"}, words), _largest(e)]), {}
    longest = max(len(_short(name)) for name in e.classes)
    named = count <= 40
    margin = 30 + (min(110.0, 7.0 * longest) if named else 0)
    upright = named and longest > (3 if count <= 10 else 2)
    side = 400.0
    frame = svg.Frame(
        margin + side + 8, side + (margin + 12 if upright else 46), left=margin, top=8, right=8
    )
    cell = side / count
    share = e.confusion / np.maximum(e.confusion.sum(1, keepdims=True), 1)
    shades = np.ceil(np.sqrt(share) * _SHADES).astype(int)
    parts = [
        element(
            "rect",
            {"x": frame.left, "y": frame.top, "width": side, "height": side, "class": "board"},
        )
    ]
    for right in (True, False):
        for shade in range(1, _SHADES + 1):
            mine = shades == shade
            mine &= np.eye(count, dtype=bool) if right else ~np.eye(count, dtype=bool)
            squares = "".join(
                f"M{frame.left + j * cell:.1f} {frame.top + i * cell:.1f}"
                f"h{cell:.2f}v{cell:.2f}h{-cell:.2f}z"
                for i, j in np.argwhere(mine)
            )
            if squares:
                kind = f"{'hit' if right else 'miss'}{shade}"
                parts.append(element("path", {"d": squares, "class": kind}))
    if count <= _NUMBERED:
        parts += _counts(e, shades, frame, cell)
    if named:
        parts += _class_names(e, frame, cell, side, upright=upright)
    foot = frame.height - 6
    parts.append(svg.text(frame.left + side / 2, foot, "predicted class", "label middle"))
    parts.append(svg.text(13, frame.top + side / 2, "true class", "label middle", turn=-90))
    parts.append(element("g", {"class": "readout"}))
    worst = _worst(e, 3)
    spoken = "; ".join(f"{n} × {t} taken for {p}" for n, t, p in worst) or "none"
    label = (
        f"Confusion matrix of {count} classes and {e.n} images, {100 * e.accuracy:.1f} % on the "
        f"diagonal. Most frequent errors: {spoken}."
    )
    data = {
        "kind": "matrix",
        "left": frame.left,
        "top": frame.top,
        "cell": cell,
        "classes": list(e.classes),
        "counts": e.confusion.tolist(),
    }
    drawing = svg.picture(frame, parts, label=label, chart=key, kind="square")
    behind = _full(e) if count <= _LISTED else _largest(e)
    return join([drawing, behind]), data


def _counts(e: Evaluation, shades: Any, frame: svg.Frame, cell: float) -> list[Safe]:
    size = "cell" if cell >= 30 else "cell small"
    return [
        svg.text(
            frame.left + (j + 0.5) * cell,
            frame.top + (i + 0.5) * cell + 4,
            str(value),
            size + (" on-dark" if shades[i, j] > _SHADES * 0.62 else ""),
        )
        for (i, j), value in np.ndenumerate(e.confusion)
        if value
    ]


def _class_names(
    e: Evaluation, frame: svg.Frame, cell: float, side: float, *, upright: bool
) -> list[Safe]:
    parts = []
    kind = "tick" if cell >= 14 else "tick small"
    for k, name in enumerate(e.classes):
        middle = (k + 0.5) * cell
        parts.append(svg.text(frame.left - 6, frame.top + middle + 4, _short(name), f"{kind} end"))
        x, y = frame.left + middle, frame.top + side
        if upright:
            parts.append(svg.text(x + 4, y + 7, _short(name), f"{kind} end", turn=-90))
        else:
            parts.append(svg.text(x, y + 17, _short(name), f"{kind} middle"))
    return parts


def _full(e: Evaluation) -> Safe:
    rows = [
        [name, *map(str, row)] for name, row in zip(e.classes, e.confusion.tolist(), strict=True)
    ]
    summary = "The matrix as a table (rows: true class, columns: predicted)"
    filled = table(["", *e.classes], rows, caption="Confusion matrix", classes="numbers")
    return details(summary, filled)


def _largest(e: Evaluation) -> Safe:
    rows = [[true, predicted, str(n)] for n, true, predicted in _worst(e, 30)]
    summary = f"The {len(rows)} most frequent errors as a table"
    head = ["true class", "predicted", "images"]
    return details(summary, table(head, rows, caption="Most frequent errors", classes="numbers"))


def _worst(e: Evaluation, most: int) -> list[tuple[int, str, str]]:
    errors = e.confusion - np.diag(e.confusion.diagonal())
    order = np.argsort(-errors, axis=None, kind="stable")[:most]
    found = []
    for place in order:
        true, predicted = divmod(int(place), len(e.classes))
        if errors[true, predicted]:
            found.append((int(errors[true, predicted]), e.classes[true], e.classes[predicted]))
    return found


def reliability(evaluation: Evaluation, key: str) -> tuple[Safe, dict[str, Any]]:
    """Accuracy against confidence in bins, with the images in each below."""
    e, r = evaluation, evaluation.reliability
    frame = svg.Frame(400, 320, left=50, bottom=116)
    x, y = frame.x(0, 1), frame.y(0, 1)
    below = svg.Scale(0, max(r.counts) / e.n, 276, 224)
    quarters = (0, 0.25, 0.5, 0.75, 1.0)
    parts = [
        svg.axes(
            frame, x, y, x_label="", x_ticks=(),
            y_ticks=quarters, x_format=svg.percent, y_format=svg.percent,
        )
    ]  # fmt: skip
    bars = []
    for k in np.flatnonzero(r.counts):
        left, right = x(float(r.edges[k])) + 1, x(float(r.edges[k + 1])) - 1
        got, sure = float(r.accuracy[k]), float(r.confidence[k])
        wide = {"x": left, "width": right - left}
        bars.append({**wide, "y": y(got), "height": y(0) - y(got), "class": "bar"})
        gap = {"y": min(y(got), y(sure)), "height": abs(y(got) - y(sure))}
        bars.append({**wide, **gap, "class": "over" if sure > got else "under"})
        share = below(float(r.counts[k]) / e.n)
        bars.append({**wide, "y": share, "height": 276 - share, "class": "count"})
        parts.append(svg.line(left, y(sure), right, y(sure), "sure"))
    parts[1:1] = [element("rect", bar) for bar in bars]
    parts.append(svg.line(x(0), y(0), x(1), y(1), "ideal"))
    parts.append(svg.line(frame.left, 276, 386, 276, "axis"))
    for value in quarters:
        parts.append(svg.line(x(value), 276, x(value), 280, "axis"))
        parts.append(svg.text(x(value), 293, svg.percent(value), "tick middle"))
    parts.append(svg.text(frame.left - 7, 280, "0", "tick end"))
    parts.append(svg.text(frame.left - 7, 234, f"{100 * below.high:.0f} %", "tick end"))
    parts.append(svg.text(218, 314, "confidence (largest probability)", "label middle"))
    parts.append(element("g", {"class": "readout"}))
    rows = [
        [
            f"{100 * r.edges[k]:.0f}–{100 * r.edges[k + 1]:.0f} %",
            str(int(r.counts[k])),
            f"{100 * r.confidence[k]:.1f} %",
            f"{100 * r.accuracy[k]:.1f} %",
        ]
        for k in np.flatnonzero(r.counts)
    ]
    label = (
        f"Reliability diagram: accuracy against confidence in {len(r.counts)} bins; expected "
        f"calibration error {e.ece:.3f}, Brier score {e.brier:.3f}."
    )
    data = {
        "kind": "bins",
        "x": x.to_list(),
        "edges": r.edges.tolist(),
        "counts": r.counts.tolist(),
        "accuracy": r.accuracy.tolist(),
        "confidence": r.confidence.tolist(),
    }
    head = ["confidence", "images", "mean confidence", "accuracy"]
    behind = table(head, rows, caption="Reliability in bins", classes="numbers")
    drawing = svg.picture(frame, parts, label=label, chart=key)
    return join([drawing, details("The bins as a table", behind)]), data


def _short(name: str, longest: int = 15) -> str:
    return name if len(name) <= longest else name[: longest - 1] + "…"
