"""Norms of filter gradients from products of patches, without the gradients.

One program processes one example whose views and positions fit a tile: the products of its input
patches and those of its output gradients stay in registers, and one number is written.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sfumato.kernels.definitions import GHOST_LONGEST, GHOST_STEP, UNIT, Geometry, ghost_rounding
from sfumato.kernels.warming import launch


@triton.jit  # type: ignore[untyped-decorator]
def _ghost(  # type: ignore[no-untyped-def]
    x, d, scales, out, rounding, SCALED: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr,
    WO: tl.constexpr, OUT: tl.constexpr, POSITIONS: tl.constexpr, VIEWS: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    DIL_H: tl.constexpr, DIL_W: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    BT: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    example = tl.program_id(0).to(tl.int64)
    x += example * VIEWS * H * W * C
    d += example * VIEWS * POSITIONS * OUT
    t = tl.arange(0, BT)
    live = t < VIEWS * POSITIONS
    position = t % POSITIONS
    row = (position // WO) * STRIDE_H - PAD_H
    column = (position % WO) * STRIDE_W - PAD_W
    base = (t // POSITIONS) * H
    patches = tl.zeros((BT, BT), tl.float32)
    sums = tl.zeros((BT,), tl.float32)
    for tap in range(KH * KW):
        r = row + (tap // KW) * DIL_H
        s = column + (tap % KW) * DIL_W
        inside = live & (r >= 0) & (r < H) & (s >= 0) & (s < W)
        pixel = ((base + r) * W + s) * C
        own = tl.zeros((BT, BT), tl.float32)  # Of this tap alone: see `ghost_rounding`.
        here = tl.zeros((BT,), tl.float32)
        for start in range(0, C, BC):
            c = start + tl.arange(0, BC)
            tile = tl.load(
                x + pixel[:, None] + c[None, :], mask=inside[:, None] & (c < C)[None, :], other=0.0
            )
            own = tl.dot(tile, tl.trans(tile), own)
            if SCALED:
                here += tl.sum(tile.to(tl.float32), 1)
        patches += own
        sums += here
    grads = tl.zeros((BT, BT), tl.float32)
    for start in range(0, OUT, BC):
        o = start + tl.arange(0, BC)
        tile = tl.load(
            d + t[:, None] * OUT + o[None, :], mask=live[:, None] & (o < OUT)[None, :], other=0.0
        )
        if SCALED:
            scale = tl.load(scales + o, mask=o < OUT, other=0.0)
            scaled = tile.to(tl.float32) * scale[None, :]
            grads = tl.dot(scaled, tl.trans(scaled), grads, input_precision="tf32x3")
        else:
            grads = tl.dot(tile, tl.trans(tile), grads)
    same = t[:, None] == t[None, :]
    alone = tl.sum(tl.where(same, patches * grads, 0.0), 1)
    most = tl.sum(tl.sqrt(tl.maximum(alone, 0.0)), 0)
    if SCALED:
        patches -= sums[:, None] * sums[None, :] / (KH * KW * C)
    product = tl.sum(tl.sum(patches * grads, 1), 0)
    tl.store(out + example, tl.maximum(product, 0.0) + rounding * most * most)


def ghost_norms(x: Tensor, d: Tensor, scales: Tensor | None, at: Geometry) -> Tensor:
    """Squared norms `(examples,)`; see `operators.ghost_norms`.

    Raises:
        ValueError: Views and positions do not fit a tile.
    """
    x, d = (t.contiguous(memory_format=torch.channels_last) for t in (x, d))
    _, channels, height, width = x.shape
    _, filters, height_out, width_out = d.shape
    length = at.views * height_out * width_out
    if length > GHOST_LONGEST:
        raise ValueError(f"{length} views and positions do not fit a tile of {GHOST_LONGEST}")
    examples = x.shape[0] // at.views
    norms = x.new_empty(examples, dtype=torch.float32)
    block = 16 if length <= 16 else 32 if length <= 32 else 64
    across = 32 if max(channels, filters) <= 32 else GHOST_STEP
    taps = at.kernel[0] * at.kernel[1]
    rounding = ghost_rounding(channels, taps, filters, length, UNIT, centred=scales is not None)
    launch(
        _ghost, (examples,),
        x, d, x if scales is None else scales.float().contiguous(), norms, rounding,
        scales is not None, height, width, channels, width_out, filters,
        height_out * width_out, at.views, *at.stride, *at.padding, *at.dilation, *at.kernel,
        BT=block, BC=across, num_warps=4, num_stages=3,
    )  # fmt: skip
    return norms
