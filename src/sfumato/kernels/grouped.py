"""Per-example filter gradients of convolutions with groups, depthwise ones among them.

Groups are too narrow for matrix units, so products are elementwise: a program multiplies the output
gradients of some filters with the shifted inputs that one row of filter taps sees, and sums over
the positions and views of one example, in float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sfumato.kernels.definitions import Geometry
from sfumato.kernels.warming import launch


@triton.jit(do_not_specialize=["zero"])  # type: ignore[untyped-decorator]
def _grouped(  # type: ignore[no-untyped-def]
    x, d, out, zero,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr,
    WO: tl.constexpr, OUT: tl.constexpr, POSITIONS: tl.constexpr, VIEWS: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    DIL_H: tl.constexpr, DIL_W: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    FILTERS: tl.constexpr, CHANNELS: tl.constexpr,
    BO: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """One row of taps and one channel of each group, for BO filters of one example.

    FILTERS and CHANNELS are those of a group; BK is the width of a filter, filled up.

    Guarantee: Only inputs of the example itself are read. `zero` is a number that the compiler does
    not know: Triton 3.6 takes the columns `s` for even where padding and width are, and then has
    one mask for two neighbouring taps, so that a filter of 5x5 read beyond the end of a row.
    """
    example = tl.program_id(0).to(tl.int64)
    o = tl.program_id(1) * BO + tl.arange(0, BO)
    tap = tl.program_id(2) // CHANNELS
    channel = tl.program_id(2) % CHANNELS
    k = tl.arange(0, BK)
    x += example * VIEWS * H * W * C
    d += example * VIEWS * POSITIONS * OUT
    source = (o // FILTERS) * CHANNELS + channel
    total = tl.zeros((BK, BO), tl.float32)
    for start in range(0, VIEWS * POSITIONS, BT):
        t = start + tl.arange(0, BT)
        live = t < VIEWS * POSITIONS
        position = t % POSITIONS
        r = (position // WO) * STRIDE_H + tap * DIL_H - PAD_H
        s = (position % WO)[:, None] * STRIDE_W + k[None, :] * DIL_W - PAD_W + zero
        inside = (live & (r >= 0) & (r < H))[:, None] & (s >= 0) & (s < W) & (k < KW)[None, :]
        pixel = ((t // POSITIONS) * H + r)[:, None] * W + s
        grads = tl.load(
            d + t[:, None] * OUT + o[None, :], mask=live[:, None] & (o < OUT)[None, :], other=0.0
        )
        seen = tl.load(
            x + pixel[:, :, None] * C + source[None, None, :],
            mask=inside[:, :, None] & (o < OUT)[None, None, :],
            other=0.0,
        )
        total += tl.sum(seen.to(tl.float32) * grads.to(tl.float32)[:, None, :], 0)
    where = ((example * OUT + o[None, :]) * KH + tap) * KW + k[:, None]
    keep = (k < KW)[:, None] & (o < OUT)[None, :]
    tl.store(out + where * CHANNELS + channel, total.to(out.dtype.element_ty), mask=keep)


def grouped_gradients(x: Tensor, d: Tensor, at: Geometry, groups: int) -> Tensor:
    """`(examples, out, kh, kw, in / groups)`; see `operators.grouped_gradients`."""
    x, d = (t.contiguous(memory_format=torch.channels_last) for t in (x, d))
    rows, channels, height, width = x.shape
    _, out, height_out, width_out = d.shape
    (kh, kw), examples = at.kernel, rows // at.views
    grads = x.new_empty((examples, out, kh, kw, channels // groups))
    wide = triton.next_power_of_2(kw)
    block = min(64, max(16, triton.next_power_of_2(out)))
    length = at.views * height_out * width_out
    chunk = min(triton.next_power_of_2(length), max(8, 8192 // (wide * block)))
    launch(
        _grouped, (examples, triton.cdiv(out, block), kh * channels // groups),
        x, d, grads, 0,
        height, width, channels, width_out, out, height_out * width_out, at.views,
        *at.stride, *at.padding, *at.dilation, kh, kw, out // groups, channels // groups,
        BO=block, BT=chunk, BK=wide, num_warps=4,
    )  # fmt: skip
    return grads
