"""Per-example filter gradients, and their weighted sum, as implicit matrix products.

For each example (out, views * positions) times (views * positions, taps * in): nothing is unfolded,
products are computed in the inputs' precision and accumulated in float32. The operators are defined
in `sfumato.kernels.definitions`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sfumato.kernels.definitions import Geometry, padded
from sfumato.kernels.warming import launch


@triton.jit  # type: ignore[untyped-decorator]
def _chunk(  # type: ignore[no-untyped-def]
    x, d, example, start, o, n, total,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr,
    WO: tl.constexpr, OUT: tl.constexpr, POSITIONS: tl.constexpr, VIEWS: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    DIL_H: tl.constexpr, DIL_W: tl.constexpr, KW: tl.constexpr, N: tl.constexpr,
    BT: tl.constexpr,
):  # fmt: skip
    """Add the contribution of BT positions from `start` on to filters `o`, columns `n`."""
    tap = n // C
    down = (tap // KW) * DIL_H - PAD_H
    right = (tap % KW) * DIL_W - PAD_W
    across = (down * W + right) * C + n % C
    x += example * VIEWS * H * W * C
    d += example * VIEWS * POSITIONS * OUT
    t = start + tl.arange(0, BT)
    position = t % POSITIONS
    row = (position // WO) * STRIDE_H
    column = (position % WO) * STRIDE_W
    pixel = (((t // POSITIONS) * H + row) * W + column) * C
    live = t < VIEWS * POSITIONS
    grads = tl.load(
        d + t[:, None] * OUT + o[None, :], mask=live[:, None] & (o < OUT)[None, :], other=0.0
    )
    r = row[:, None] + down[None, :]
    s = column[:, None] + right[None, :]
    inside = (r >= 0) & (r < H) & (s >= 0) & (s < W)
    tile = tl.load(
        x + pixel[:, None] + across[None, :],
        mask=inside & live[:, None] & (n < N)[None, :],
        other=0.0,
    )
    return tl.dot(tl.trans(grads), tile, total)


@triton.jit  # type: ignore[untyped-decorator]
def _product(  # type: ignore[no-untyped-def]
    x, d, example, o, n,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr,
    WO: tl.constexpr, OUT: tl.constexpr, POSITIONS: tl.constexpr, VIEWS: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    DIL_H: tl.constexpr, DIL_W: tl.constexpr, KW: tl.constexpr, N: tl.constexpr,
    BO: tl.constexpr, BN: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """Filters `o`, columns `n` of one example's gradient.

    If its positions fit one chunk there is no loop here, so that a loop over examples around it is
    the innermost one and the next example is loaded while this one is multiplied.
    """
    total = tl.zeros((BO, BN), tl.float32)
    if VIEWS * POSITIONS <= BT:
        total = _chunk(
            x, d, example, 0, o, n, total,
            H, W, C, WO, OUT, POSITIONS, VIEWS, STRIDE_H, STRIDE_W, PAD_H, PAD_W,
            DIL_H, DIL_W, KW, N, BT,
        )  # fmt: skip
    else:
        for start in range(0, VIEWS * POSITIONS, BT):
            total = _chunk(
                x, d, example, start, o, n, total,
                H, W, C, WO, OUT, POSITIONS, VIEWS, STRIDE_H, STRIDE_W, PAD_H, PAD_W,
                DIL_H, DIL_W, KW, N, BT,
            )  # fmt: skip
    return total


@triton.jit  # type: ignore[untyped-decorator]
def _gradients(  # type: ignore[no-untyped-def]
    x, d, direction, out, statistics, examples,
    KEEP: tl.constexpr, COUNT: tl.constexpr, SHARE: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr,
    WO: tl.constexpr, OUT: tl.constexpr, POSITIONS: tl.constexpr, VIEWS: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    DIL_H: tl.constexpr, DIL_W: tl.constexpr, KW: tl.constexpr, N: tl.constexpr,
    BO: tl.constexpr, BN: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """A (BO, BN) tile of the gradients of SHARE examples, and its part of their statistics."""
    tiles: tl.constexpr = (N + BN - 1) // BN
    tile = tl.program_id(1) % tiles
    o = (tl.program_id(1) // tiles) * BO + tl.arange(0, BO)
    n = tile * BN + tl.arange(0, BN)
    keep = (o < OUT)[:, None] & (n < N)[None, :]
    first = tl.program_id(0).to(tl.int64) * SHARE
    for k in range(0, SHARE):
        example = tl.minimum(first + k, examples - 1)
        total = _product(
            x, d, example, o, n,
            H, W, C, WO, OUT, POSITIONS, VIEWS, STRIDE_H, STRIDE_W, PAD_H, PAD_W,
            DIL_H, DIL_W, KW, N, BO, BN, BT,
        )  # fmt: skip
        if KEEP:
            kept = total.to(out.dtype.element_ty)
            tl.store(out + example * OUT * N + o[:, None] * N + n[None, :], kept, mask=keep)
            total = kept.to(tl.float32)
        into = statistics + ((example * tiles + tile) * COUNT) * OUT + o
        tl.store(into, tl.sum(total * total, 1), mask=o < OUT)
        if COUNT == 3:
            tl.store(into + OUT, tl.sum(total, 1), mask=o < OUT)
            # Loaded late: held during the product, it would not fit the registers.
            along = tl.load(direction + o[:, None] * N + n[None, :], mask=keep, other=0.0)
            tl.store(into + 2 * OUT, tl.sum(total * along.to(tl.float32), 1), mask=o < OUT)


@triton.jit  # type: ignore[untyped-decorator]
def _weighted(  # type: ignore[no-untyped-def]
    x, d, weights, out, examples, share,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr,
    WO: tl.constexpr, OUT: tl.constexpr, POSITIONS: tl.constexpr, VIEWS: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    DIL_H: tl.constexpr, DIL_W: tl.constexpr, KW: tl.constexpr, N: tl.constexpr,
    BO: tl.constexpr, BN: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """A (BO, BN) tile of the weighted sum over `share` examples."""
    tiles: tl.constexpr = (N + BN - 1) // BN
    o = (tl.program_id(0) // tiles) * BO + tl.arange(0, BO)
    n = (tl.program_id(0) % tiles) * BN + tl.arange(0, BN)
    first = tl.program_id(1).to(tl.int64) * share
    total = tl.zeros((BO, BN), tl.float32)
    for k in range(0, share):
        example = tl.minimum(first + k, examples - 1)
        weight = tl.load(weights + example)
        weight = tl.where(first + k < examples, weight, 0.0)
        own = _product(
            x, d, example, o, n,
            H, W, C, WO, OUT, POSITIONS, VIEWS, STRIDE_H, STRIDE_W, PAD_H, PAD_W,
            DIL_H, DIL_W, KW, N, BO, BN, BT,
        )  # fmt: skip
        total += tl.where(weight != 0, weight * own, 0.0)
    where = out + tl.program_id(1).to(tl.int64) * OUT * N + o[:, None] * N + n[None, :]
    tl.store(where, total, mask=(o < OUT)[:, None] & (n < N)[None, :])


def tiles(columns: int, out: int, length: int, *, sum: bool = False) -> dict[str, int]:
    """Tile sizes and warps, chosen on an H200."""
    bo = 16 if out <= 16 else 32 if out <= 32 else 64 if out <= 64 else 128
    bn = 32 if columns <= 32 else 64 if columns <= 64 else 128
    bt = 16 if length <= 16 else 32 if length <= 32 else 64
    if bo == 128 and columns >= 256 and not sum:
        bn = 256
    warps, stages = (8, 4 if sum else 3) if bo == 128 else (4, 3)
    return {"BO": bo, "BN": bn, "BT": bt, "num_warps": warps, "num_stages": stages}


def _settings(x: Tensor, d: Tensor, at: Geometry) -> tuple[int, ...]:
    """The kernels' compile-time numbers, from H to N."""
    _, channels, height, width = x.shape
    _, out, height_out, width_out = d.shape
    kh, kw = at.kernel
    return (
        height, width, channels, width_out, out, height_out * width_out, at.views,
        *at.stride, *at.padding, *at.dilation, kw, kh * kw * channels,
    )  # fmt: skip


def _prepared(x: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """Both tensors in channels_last, with input channels padded for loads of 16 bytes."""
    missing = padded(x.shape[1]) - x.shape[1]
    if missing:
        x = torch.nn.functional.pad(x.permute(0, 2, 3, 1), (0, missing)).permute(0, 3, 1, 2)
    last = torch.channels_last
    return x.contiguous(memory_format=last), d.contiguous(memory_format=last)


def conv_gradients(
    x: Tensor,
    d: Tensor,
    direction: Tensor | None,
    at: Geometry,
    *,
    keep: bool,
    chosen: dict[str, int] | None = None,
) -> tuple[Tensor, Tensor]:
    """Gradients, if they are to be stored, and statistics; see `operators.conv_gradients`."""
    channels = x.shape[1]
    x, d = _prepared(x, d)
    settings = _settings(x, d, at)
    out, length, columns = settings[4], settings[5] * at.views, settings[-1]
    examples = x.shape[0] // at.views
    shape = (examples, out, *at.kernel, x.shape[1]) if keep else (0,)
    grads = x.new_empty(shape)
    chosen = chosen or tiles(columns, out, length)
    share = _SHARE if length <= chosen["BT"] else 1
    across = triton.cdiv(columns, chosen["BN"])
    count = 1 if direction is None else 3
    if direction is not None:
        direction = torch.nn.functional.pad(direction, (0, x.shape[1] - channels)).contiguous()
    statistics = x.new_empty((examples, across, count, out), dtype=torch.float32)
    blocks = triton.cdiv(out, chosen["BO"]) * across
    launch(
        _gradients, (triton.cdiv(examples, share), blocks),
        x, d, x if direction is None else direction, grads, statistics, examples,
        keep, count, share, *settings, **chosen,
    )  # fmt: skip
    return grads, statistics.sum(1) if across > 1 else statistics.squeeze(1)


def weighted_sum(
    x: Tensor, d: Tensor, weights: Tensor, at: Geometry, *, chosen: dict[str, int] | None = None
) -> Tensor:
    """The weighted sum `(out, kh, kw, in)`; see `operators.weighted_sum`."""
    channels = x.shape[1]
    x, d = _prepared(x, d)
    settings = _settings(x, d, at)
    out, length, columns = settings[4], settings[5] * at.views, settings[-1]
    examples = x.shape[0] // at.views
    chosen = chosen or tiles(columns, out, length, sum=True)
    blocks = triton.cdiv(out, chosen["BO"]) * triton.cdiv(columns, chosen["BN"])
    parts = max(1, min(examples, triton.cdiv(_PROGRAMS, blocks)))
    share = triton.cdiv(examples, parts)
    parts = triton.cdiv(examples, share)
    sums = x.new_empty((parts, out, *at.kernel, x.shape[1]), dtype=torch.float32)
    launch(
        _weighted, (blocks, parts),
        x, d, weights.float().contiguous(), sums, examples, share, *settings, **chosen,
    )  # fmt: skip
    return sums[..., :channels].sum(0)


_SHARE = 8
"""Number of examples that a program processes if one chunk holds an example."""

_PROGRAMS = 528
"""Number of programs of a weighted sum: four for each multiprocessor of an H200."""
