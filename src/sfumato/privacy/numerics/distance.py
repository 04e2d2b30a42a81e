"""Distance between results of two passes."""

from __future__ import annotations

from torch import Tensor


def distance(a: Tensor, b: Tensor) -> float:
    """Largest difference, relative to the largest finite value of `a`; NaN equals NaN."""
    if a.shape != b.shape:
        return float("inf")
    if not a.numel():
        return 0.0
    same = (a == b) | (a.isnan() & b.isnan())
    if bool(same.all()):
        return 0.0
    scale = float(a.abs().nan_to_num(0, 0, 0).max()) or 1.0
    moved = (a - b).abs().masked_fill(same, 0).nan_to_num(float("inf"), float("inf"))
    return float(moved.max()) / scale
