"""The README's table of speeds, generated from committed records."""

from __future__ import annotations

from collections.abc import Sequence

from sfumato.bench.record import Record
from sfumato.bench.targets import NOT_PRIVATE, OPACUS, Index, ratio
from sfumato.text import NONE, count

SHOWN = {
    "wrn-16-4": "WRN-16-4",
    "eq-resnet9-d4": "Equivariant-ResNet-9 (D4)",
    "resnet9": "ResNet-9",
    "scale-resnet9": "ScaleResNet-9",
    "smoothnet": "SmoothNet",
}
"""Networks that the README shows, and what it calls them."""


def table(records: Sequence[Record]) -> str:
    """Speeds on a GPU as Markdown; of each network and number of views the newest measurement."""
    newest = sorted((r for r in records if r.cuda), key=lambda r: r.date, reverse=True)
    indices = [Index(r.measurements, "bfloat16") for r in newest]
    lines = [
        "| views/s (of not private) | 1 view per image | 4 views | 16 views | Opacus, 1 view |",
        "|---|--:|--:|--:|--:|",
    ]
    for model, words in SHOWN.items():
        cells = [_speed(indices, model, views) for views in (1, 4, 16)]
        if any(cells):
            peers = (i.fastest(model, 1, OPACUS) for i in indices)
            opacus = next((_rounded(m.speed) for m in peers if m and m.speed), NONE)
            shown = " | ".join(cell or NONE for cell in cells)
            lines.append(f"| {words} | {shown} | {opacus} |")
    return "\n".join(lines)


def _speed(indices: Sequence[Index], model: str, views: int) -> str:
    """The newest speed beside training without privacy; empty if there is none."""
    for index in indices:
        ours, plain = index.get(model, views, "sfumato"), index.fastest(model, views, NOT_PRIVATE)
        share = ratio(ours, plain)
        if ours is not None and ours.speed and share is not None:
            return f"{_rounded(ours.speed)} ({share:.2f})"
    return ""


def _rounded(speed: float) -> str:
    """A speed to three digits or more."""
    return count(100 * round(speed / 100))
