"""Per-example weight gradients of a convolution, contracted over views and positions.

The definition, for examples b, filter taps (i, j), output channels o and input channels c:

    G[b, i, j, o, c] = sum over views v and output positions (h, w) of
                       d[b, v, o, h, w] * x[b, v, c, h * stride + i * dilation - padding, ...]

`sfumato.privacy.layers` computes it in plain PyTorch. Here it is an implicit matrix product: nothing is
unfolded, the nine taps of a 3x3 filter share the loads of `d`, products are taken in the inputs' precision
and accumulated in float32.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

Pair = tuple[int, int]


@triton.jit
def _x_tile(x, image, row, column, live, channels, c, c_live, H, W, C):  # type: ignore[no-untyped-def]
    """Input pixels at `(image, row, column)` for a tile of channels; zeros outside the image."""
    inside = live & (row >= 0) & (row < H) & (column >= 0) & (column < W)
    offset = ((image * H + row) * W + column) * C
    return tl.load(
        x + offset[:, None] + c[None, :], mask=inside[:, None] & c_live[None, :], other=0.0
    )


@triton.jit
def _three_by_three(  # type: ignore[no-untyped-def]
    x, d, out,
    H, W, C, HO, WO, O, positions, views,
    stride_h, stride_w, pad_h, pad_w, dil_h, dil_w,
    BO: tl.constexpr, BC: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """All nine taps of a (BO, BC) tile of one example's gradient."""
    example = tl.program_id(0)
    tiles_c = tl.cdiv(C, BC)
    o = (tl.program_id(1) // tiles_c) * BO + tl.arange(0, BO)
    c = (tl.program_id(1) % tiles_c) * BC + tl.arange(0, BC)
    o_live, c_live = o < O, c < C
    a0 = tl.zeros((BO, BC), tl.float32)
    a1 = tl.zeros((BO, BC), tl.float32)
    a2 = tl.zeros((BO, BC), tl.float32)
    a3 = tl.zeros((BO, BC), tl.float32)
    a4 = tl.zeros((BO, BC), tl.float32)
    a5 = tl.zeros((BO, BC), tl.float32)
    a6 = tl.zeros((BO, BC), tl.float32)
    a7 = tl.zeros((BO, BC), tl.float32)
    a8 = tl.zeros((BO, BC), tl.float32)
    first = example.to(tl.int64) * views
    for start in range(0, views * positions, BT):
        t = start + tl.arange(0, BT)
        live = t < views * positions
        image = first + t // positions
        place = t % positions
        row = (place // WO) * stride_h - pad_h
        column = (place % WO) * stride_w - pad_w
        grads = tl.load(
            d + (first * positions + t)[:, None] * O + o[None, :],
            mask=live[:, None] & o_live[None, :],
            other=0.0,
        )
        g = tl.trans(grads)
        r1, r2 = row + dil_h, row + 2 * dil_h
        c1, c2 = column + dil_w, column + 2 * dil_w
        a0 = tl.dot(g, _x_tile(x, image, row, column, live, C, c, c_live, H, W, C), a0)
        a1 = tl.dot(g, _x_tile(x, image, row, c1, live, C, c, c_live, H, W, C), a1)
        a2 = tl.dot(g, _x_tile(x, image, row, c2, live, C, c, c_live, H, W, C), a2)
        a3 = tl.dot(g, _x_tile(x, image, r1, column, live, C, c, c_live, H, W, C), a3)
        a4 = tl.dot(g, _x_tile(x, image, r1, c1, live, C, c, c_live, H, W, C), a4)
        a5 = tl.dot(g, _x_tile(x, image, r1, c2, live, C, c, c_live, H, W, C), a5)
        a6 = tl.dot(g, _x_tile(x, image, r2, column, live, C, c, c_live, H, W, C), a6)
        a7 = tl.dot(g, _x_tile(x, image, r2, c1, live, C, c, c_live, H, W, C), a7)
        a8 = tl.dot(g, _x_tile(x, image, r2, c2, live, C, c, c_live, H, W, C), a8)
    tap = O * C
    base = out + example.to(tl.int64) * 9 * tap + o[:, None] * C + c[None, :]
    keep = o_live[:, None] & c_live[None, :]
    kind = out.dtype.element_ty
    tl.store(base, a0.to(kind), mask=keep)
    tl.store(base + tap, a1.to(kind), mask=keep)
    tl.store(base + 2 * tap, a2.to(kind), mask=keep)
    tl.store(base + 3 * tap, a3.to(kind), mask=keep)
    tl.store(base + 4 * tap, a4.to(kind), mask=keep)
    tl.store(base + 5 * tap, a5.to(kind), mask=keep)
    tl.store(base + 6 * tap, a6.to(kind), mask=keep)
    tl.store(base + 7 * tap, a7.to(kind), mask=keep)
    tl.store(base + 8 * tap, a8.to(kind), mask=keep)


@triton.jit
def _one_tap(  # type: ignore[no-untyped-def]
    x, d, out,
    H, W, C, HO, WO, O, positions, views,
    stride_h, stride_w, pad_h, pad_w, dil_h, dil_w, KW, TAPS,
    BO: tl.constexpr, BC: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """One tap of a (BO, BC) tile of one example's gradient, for filters of any other shape."""
    example = tl.program_id(0)
    tap = tl.program_id(2)
    tiles_c = tl.cdiv(C, BC)
    o = (tl.program_id(1) // tiles_c) * BO + tl.arange(0, BO)
    c = (tl.program_id(1) % tiles_c) * BC + tl.arange(0, BC)
    o_live, c_live = o < O, c < C
    acc = tl.zeros((BO, BC), tl.float32)
    first = example.to(tl.int64) * views
    for start in range(0, views * positions, BT):
        t = start + tl.arange(0, BT)
        live = t < views * positions
        place = t % positions
        row = (place // WO) * stride_h - pad_h + (tap // KW) * dil_h
        column = (place % WO) * stride_w - pad_w + (tap % KW) * dil_w
        grads = tl.load(
            d + (first * positions + t)[:, None] * O + o[None, :],
            mask=live[:, None] & o_live[None, :],
            other=0.0,
        )
        image = first + t // positions
        tile = _x_tile(x, image, row, column, live, C, c, c_live, H, W, C)
        acc = tl.dot(tl.trans(grads), tile, acc)
    base = (example.to(tl.int64) * TAPS + tap) * O * C
    where = out + base + o[:, None] * C + c[None, :]
    tl.store(where, acc.to(out.dtype.element_ty), mask=o_live[:, None] & c_live[None, :])


def _tiles(channels: int, out: int, three: bool) -> dict[str, int]:
    """Tile sizes and warps, chosen on an H200."""
    bc = 16 if channels <= 16 else 32 if channels <= 32 or three else 64
    bo = 16 if out <= 16 else 32 if out <= 32 else 64 if out <= 64 else 128
    return {"BO": bo, "BC": bc, "BT": 64, "num_warps": 8 if bo == 128 else 4, "num_stages": 3}


def supported(x: Tensor, d: Tensor, groups: int) -> bool:
    """Whether the kernel takes these inputs."""
    return (
        x.is_cuda
        and groups == 1
        and x.dtype == d.dtype
        and x.dtype in (torch.bfloat16, torch.float16, torch.float32)
    )


def conv_weight_gradients(
    x: Tensor,
    d: Tensor,
    kernel: Pair,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    views: int,
    tiles: dict[str, int] | None = None,
) -> Tensor:
    """`(examples, kh, kw, out, in)` gradients, in the precision of the inputs."""
    rows, channels, height, width = x.shape
    _, out, height_out, width_out = d.shape
    examples = rows // views
    x = x.contiguous(memory_format=torch.channels_last)
    d = d.contiguous(memory_format=torch.channels_last)
    kh, kw = kernel
    grads = torch.empty((examples, kh, kw, out, channels), dtype=x.dtype, device=x.device)
    three = kernel == (3, 3)
    chosen = tiles or _tiles(channels, out, three)
    shape = (height, width, channels, height_out, width_out, out, height_out * width_out, views)
    geometry = (*stride, *padding, *dilation)
    blocks = triton.cdiv(out, chosen["BO"]) * triton.cdiv(channels, chosen["BC"])
    launch: Any
    if three:
        launch = _three_by_three[(examples, blocks)]
        launch(x, d, grads, *shape, *geometry, **chosen)
    else:
        launch = _one_tap[(examples, blocks, kh * kw)]
        launch(x, d, grads, *shape, *geometry, kw, kh * kw, **chosen)
    return grads
