"""Distance of per-example gradients from those of the reference, and the tolerance for it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sfumato.privacy.engines.results import Gradients


def tolerance(dtype: torch.dtype, *, confirmed: bool = False) -> float:
    """Relative error of a gradient that rounding alone may cause.

    In float32, a few activations on the other side of a kink are enough for one per cent. In
    float64 there are hardly any, so gradients that agreed there (`confirmed`) need only agree
    roughly here.
    """
    if dtype == torch.float64:
        return 1e-7
    loose = 2e-2 if dtype == torch.float32 else 2e-1
    return 5 * loose if confirmed else loose


def rounding(dtype: torch.dtype) -> float:
    """Relative difference that rounding alone may make between one row in batches of two sizes.

    It holds for outputs; gradients may differ by more where an activation lies at a kink.
    """
    return {torch.float64: 1e-9, torch.float32: 1e-4}.get(dtype, 4 * torch.finfo(dtype).eps)


CLOSE = 2e-5
"""Largest error of gradients in float32 that need not be confirmed in float64."""


def error_table(ours: Gradients, reference: Gradients, *, fraction: float | None = None) -> Tensor:
    """Error of each gradient `(examples, parameters)`, relative to that gradient.

    Gradients much smaller than an example's whole gradient are measured against a fraction of the
    whole, since many that should vanish are pure rounding: a thousandth in float64, a hundredth
    otherwise.
    """
    whole = reference.squared_norms().sum(1).sqrt()
    columns = [torch.zeros_like(whole)]
    for a, b in zip(ours.tensors, reference.tensors, strict=True):
        if b is None and a is None:
            columns.append(columns[0])
            continue
        b = torch.zeros_like(a) if b is None else b  # type: ignore[arg-type]
        least = fraction or (1e-3 if b.dtype == torch.float64 else 1e-2)
        own = torch.linalg.vector_norm(_rows(b), dim=1)
        scale = torch.maximum(own, least * whole.to(own.dtype)).clamp_min(1e-30)
        difference = b if a is None else a.to(b.dtype) - b
        error = torch.linalg.vector_norm(_rows(difference), dim=1) / scale
        columns.append(error.to(whole.dtype).nan_to_num(math.inf, math.inf))
    return torch.stack(columns, 1)[:, 1:]


def errors(ours: Gradients, reference: Gradients) -> dict[str, float]:
    """Largest error over examples of each parameter's gradient."""
    if ours.losses.shape[0] == 0:
        return {name: 0.0 for name in ours.names}
    largest = error_table(ours, reference).amax(0).tolist()
    return dict(zip(ours.names, largest, strict=True))


def bookkeeping_error(ours: Gradients, reference: Gradients) -> float:
    """Relative error of norms and of a weighted sum, which deferred gradients define."""
    if all(part is None or isinstance(part, Tensor) for part in ours.parts):
        return 0.0
    a, b = (g.squared_norms().sum(1).sqrt() for g in (ours, reference))
    worst = float(((a - b).abs() / b.clamp_min(1e-30)).max())
    weights = torch.linspace(0.5, 1.0, len(b), dtype=b.dtype, device=b.device).unsqueeze(1)
    pairs = list(zip(ours.weighted_sum(weights), reference.weighted_sum(weights), strict=True))
    off = math.hypot(*(float((u - v).norm()) for u, v in pairs))
    return max(worst, off / max(1e-30, math.hypot(*(float(v.norm()) for _, v in pairs))))


def _rows(t: Tensor) -> Tensor:
    return t.reshape(t.shape[0], -1)
