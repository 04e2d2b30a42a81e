"""Sums and norms over per-example rows, and standardisation of filters.

The operators are defined in `sfumato.kernels.definitions`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sfumato.kernels.definitions import _LOST, TINY
from sfumato.kernels.warming import launch


@triton.jit  # type: ignore[untyped-decorator]
def _row_sum(  # type: ignore[no-untyped-def]
    rows, weights, out, examples, numbers, pitch, share, BE: tl.constexpr, BN: tl.constexpr
):
    """BN columns of the sum over `share` examples."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    first = tl.program_id(1) * share
    last = tl.minimum(first + share, examples)
    total = tl.zeros((BE, BN), tl.float32)
    for start in range(first, last, BE):
        example = start + tl.arange(0, BE)
        weight = tl.load(weights + example, mask=example < last, other=0.0)
        # Rows of weight zero are not read, so that nothing in them can reach the sum.
        tile = tl.load(
            rows + example.to(tl.int64)[:, None] * pitch + n[None, :],
            mask=(weight != 0)[:, None] & (n < numbers)[None, :],
            other=0.0,
        )
        total += tile.to(tl.float32) * weight[:, None]
    where = out + tl.program_id(1).to(tl.int64) * numbers + n
    tl.store(where, tl.sum(total, 0), mask=n < numbers)


@triton.jit  # type: ignore[untyped-decorator]
def _segment_norms(  # type: ignore[no-untyped-def]
    rows, starts, out, examples, pitch, segments, BE: tl.constexpr, BN: tl.constexpr
):
    """The squared norms of one segment of BE examples."""
    example = tl.program_id(0) * BE + tl.arange(0, BE)
    segment = tl.program_id(1)
    first = tl.load(starts + segment)
    last = tl.load(starts + segment + 1)
    total = tl.zeros((BE, BN), tl.float32)
    for start in range(first, last, BN):
        n = start + tl.arange(0, BN)
        tile = tl.load(
            rows + example.to(tl.int64)[:, None] * pitch + n[None, :],
            mask=(example < examples)[:, None] & (n < last)[None, :],
            other=0.0,
        ).to(tl.float32)
        total += tile * tile
    tl.store(out + example * segments + segment, tl.sum(total, 1), mask=example < examples)


@triton.jit  # type: ignore[untyped-decorator]
def _filter_norms(  # type: ignore[no-untyped-def]
    statistics, factors, norms, filters, entries, rounding, lost, BO: tl.constexpr
):
    """The two squared norms of one example."""
    example = tl.program_id(0).to(tl.int64)
    statistics += example * 3 * filters
    raw = tl.zeros((BO,), tl.float32)
    gains = tl.zeros((BO,), tl.float32)
    for start in range(0, filters, BO):
        o = start + tl.arange(0, BO)
        live = o < filters
        squared = tl.load(statistics + o, mask=live, other=0.0)
        total = tl.load(statistics + filters + o, mask=live, other=0.0)
        along = tl.abs(tl.load(statistics + 2 * filters + o, mask=live, other=0.0))
        scale = tl.load(factors + o, mask=live, other=0.0)
        shrink = tl.load(factors + filters + o, mask=live, other=0.0)
        squares = tl.load(factors + 2 * filters + o, mask=live, other=0.0)
        gain = tl.load(factors + 3 * filters + o, mask=live, other=0.0)
        slack = rounding * tl.sqrt(squared * squares)
        # Written as comparisons that propagate NaN: an example with NaN has a norm of NaN.
        least = along - slack
        least = tl.where(least < 0, 0.0, least)
        own = scale * scale * (squared - total * total / entries)
        own += (shrink * shrink * squares - 2 * scale * shrink) * least * least
        own = tl.where(own < 0, 0.0, own) + lost * scale * scale * squared
        most = scale * (along + slack)
        raw += own * gain * gain
        gains += most * most
    tl.store(norms + example * 2, tl.sum(raw, 0))
    tl.store(norms + example * 2 + 1, tl.sum(gains, 0))


@triton.jit  # type: ignore[untyped-decorator]
def _filter_pullback(  # type: ignore[no-untyped-def]
    total, centred, factors, own, gains, filters, numbers, BN: tl.constexpr
):
    """The gradients of one filter and of its gain."""
    o = tl.program_id(0)
    total += o * numbers
    centred += o * numbers
    sums = tl.zeros((BN,), tl.float32)
    products = tl.zeros((BN,), tl.float32)
    for start in range(0, numbers, BN):
        n = start + tl.arange(0, BN)
        g = tl.load(total + n, mask=n < numbers, other=0.0)
        c = tl.load(centred + n, mask=n < numbers, other=0.0)
        sums += g
        products += g * c
    mean = tl.sum(sums, 0) / numbers
    along = tl.sum(products, 0)
    scale = tl.load(factors + o)
    shrink = tl.load(factors + filters + o)
    gain = tl.load(factors + 3 * filters + o)
    for start in range(0, numbers, BN):
        n = start + tl.arange(0, BN)
        g = tl.load(total + n, mask=n < numbers, other=0.0)
        c = tl.load(centred + n, mask=n < numbers, other=0.0)
        tl.store(
            own + o * numbers + n, gain * (scale * (g - mean) - shrink * along * c),
            mask=n < numbers,
        )  # fmt: skip
    tl.store(gains + o, scale * along)


@triton.jit  # type: ignore[untyped-decorator]
def _standardise(  # type: ignore[no-untyped-def]
    raw, gain, value, centred, direction, factors, filters, numbers, eps, tiny,
    PLAIN: tl.constexpr, GAIN: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Standardise one filter in three passes: its mean, its squared norm, and the results."""
    o = tl.program_id(0)
    raw += o * numbers
    sums = tl.zeros((BN,), tl.float32)
    for start in range(0, numbers, BN):
        n = start + tl.arange(0, BN)
        sums += tl.load(raw + n, mask=n < numbers, other=0.0).to(tl.float32)
    mean = tl.sum(sums, 0) / numbers
    sums = tl.zeros((BN,), tl.float32)
    for start in range(0, numbers, BN):
        n = start + tl.arange(0, BN)
        c = tl.load(raw + n, mask=n < numbers, other=0.0).to(tl.float32) - mean
        sums += tl.where(n < numbers, c * c, 0.0)
    squares = tl.sum(sums, 0)
    if PLAIN:
        deviation = tl.sqrt(tl.maximum(squares / numbers, tiny))
        scale = 1 / (deviation + eps)
        shrink = scale * scale / (deviation * numbers)
    else:
        scale = 1 / tl.sqrt(tl.maximum(squares, eps))
        shrink = tl.where(squares > eps, scale * scale * scale, 0.0)
    factor = tl.full((), 1.0, tl.float32)
    if GAIN:
        factor = tl.load(gain + o).to(tl.float32)
    tl.store(factors + o, scale)
    tl.store(factors + filters + o, shrink)
    tl.store(factors + 2 * filters + o, squares)
    tl.store(factors + 3 * filters + o, factor)
    for start in range(0, numbers, BN):
        n = start + tl.arange(0, BN)
        c = tl.load(raw + n, mask=n < numbers, other=0.0).to(tl.float32) - mean
        at = o * numbers + n
        tl.store(centred + at, c, mask=n < numbers)
        tl.store(direction + at, c.to(direction.dtype.element_ty), mask=n < numbers)
        weight = c * (scale * factor)
        tl.store(value + at, weight.to(value.dtype.element_ty), mask=n < numbers)


_PROGRAMS = 1056
"""Number of programs of a sum: eight for each multiprocessor of an H200."""


def row_sum(rows: Tensor, weights: Tensor) -> Tensor:
    """The weighted sum; see `definitions.row_sum`."""
    flat = _flat(rows)
    examples, numbers = flat.shape
    be, bn = (8, 512) if numbers >= 512 else (32, 128)
    blocks = triton.cdiv(numbers, bn)
    parts = max(1, min(triton.cdiv(examples, 2 * be), triton.cdiv(_PROGRAMS, blocks)))
    share = triton.cdiv(examples, parts)
    parts = triton.cdiv(examples, share)
    sums = rows.new_empty((parts, *rows.shape[1:]), dtype=torch.float32)
    launch(
        _row_sum, (blocks, parts),
        flat, weights.float().contiguous(), sums, examples, numbers, flat.stride(0), share,
        BE=be, BN=bn, num_warps=4, num_stages=3,
    )  # fmt: skip
    return sums.sum(0) if parts > 1 else sums[0]


def segment_norms(rows: Tensor, starts: Tensor) -> Tensor:
    """Squared norms `(examples, segments)`; see `definitions.segment_norms`."""
    flat, examples, segments = _flat(rows), rows.shape[0], len(starts) - 1
    norms = rows.new_empty((examples, segments), dtype=torch.float32)
    launch(
        _segment_norms, (triton.cdiv(examples, 8), segments),
        flat, starts, norms, examples, flat.stride(0), segments,
        BE=8, BN=128, num_warps=4, num_stages=3,
    )  # fmt: skip
    return norms


def filter_norms(statistics: Tensor, factors: Tensor, entries: int, rounding: float) -> Tensor:
    """Squared norms `(examples, 2)`; see `definitions.filter_norms`."""
    examples, _, filters = statistics.shape
    norms = statistics.new_empty((examples, 2))
    launch(
        _filter_norms, (examples,),
        statistics.contiguous(), factors.contiguous(), norms, filters, entries, rounding, _LOST,
        BO=256 if filters > 128 else 128, num_warps=4,
    )  # fmt: skip
    return norms


def filter_pullback(total: Tensor, centred: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the raw weight and of the gain; see `definitions.filter_pullback`."""
    total, filters = total.contiguous(), total.shape[0]
    own, gains = torch.empty_like(total), total.new_empty(filters)
    launch(
        _filter_pullback, (filters,),
        total, centred.contiguous(), factors.contiguous(), own, gains, filters, total[0].numel(),
        BN=1024, num_warps=4,
    )  # fmt: skip
    return own, gains


def write_standardised(
    raw: Tensor,
    gain: Tensor | None,
    value: Tensor,
    centred: Tensor,
    direction: Tensor,
    factors: Tensor,
    plain: bool,
    eps: float,
) -> None:
    """Write standardised filters into existing tensors; see `definitions.write_standardised`.

    Raises:
        ValueError: The filters are not in channels_last memory format.
    """
    if not value.is_contiguous(memory_format=torch.channels_last):
        raise ValueError("standardised filters must be in channels_last memory format")
    raw = raw.permute(0, 2, 3, 1).contiguous()
    filters, numbers = raw.shape[0], raw[0].numel()
    launch(
        _standardise, (filters,),
        raw, raw if gain is None else gain, value.permute(0, 2, 3, 1), centred, direction, factors,
        filters, numbers, eps, TINY, plain, gain is not None, BN=1024, num_warps=4,
    )  # fmt: skip


def _flat(rows: Tensor) -> Tensor:
    """Flatten to `(examples, numbers)`, without a copy where possible."""
    inner = rows[0] if rows.shape[0] else rows
    if inner.is_contiguous():
        return rows.flatten(1) if rows.dim() != 2 else rows
    return rows.contiguous().flatten(1)
