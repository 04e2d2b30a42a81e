"""Per-example weight gradients of a convolution, contracted over views and positions.

The definition, for examples b, output channels o, filter taps (i, j) and input channels c:

    G[b, o, i, j, c] = sum over views v and output positions (h, w) of
                       d[b, v, o, h, w] * x[b, v, c, h * stride + i * dilation - padding, ...]

`sfumato.privacy.filters` computes it in plain PyTorch. Here it is an implicit matrix product for
each example, (out, views * positions) by (views * positions, taps * in): nothing is unfolded,
products are taken in the inputs' precision and accumulated in float32.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

Pair = tuple[int, int]


@triton.jit  # type: ignore[untyped-decorator]
def _kernel(  # type: ignore[no-untyped-def]
    x, d, out,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr,
    WO: tl.constexpr, OUT: tl.constexpr, POSITIONS: tl.constexpr,
    VIEWS: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    DIL_H: tl.constexpr, DIL_W: tl.constexpr, KW: tl.constexpr, N: tl.constexpr,
    BO: tl.constexpr, BN: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """A (BO, BN) tile of one example's gradient; columns run over taps, then input channels."""
    tiles_n: tl.constexpr = (N + BN - 1) // BN
    example = tl.program_id(0).to(tl.int64)
    o = (tl.program_id(1) // tiles_n) * BO + tl.arange(0, BO)
    n = (tl.program_id(1) % tiles_n) * BN + tl.arange(0, BN)
    tap = n // C
    down = (tap // KW) * DIL_H - PAD_H
    right = (tap % KW) * DIL_W - PAD_W
    across = (down * W + right) * C + n % C
    x += example * VIEWS * H * W * C
    d += example * VIEWS * POSITIONS * OUT
    total = tl.zeros((BO, BN), tl.float32)
    for start in range(0, VIEWS * POSITIONS, BT):
        t = start + tl.arange(0, BT)
        place = t % POSITIONS
        row = (place // WO) * STRIDE_H
        column = (place % WO) * STRIDE_W
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
        total = tl.dot(tl.trans(grads), tile, total)
    where = out + example * OUT * N + o[:, None] * N + n[None, :]
    keep = (o < OUT)[:, None] & (n < N)[None, :]
    tl.store(where, total.to(out.dtype.element_ty), mask=keep)


def _tiles(columns: int, out: int, length: int) -> dict[str, int]:
    """Tile sizes and warps, chosen on an H200."""
    bo = 16 if out <= 16 else 32 if out <= 32 else 64 if out <= 64 else 128
    bn = 32 if columns <= 32 else 64 if columns <= 64 else 128
    bt = 32 if length <= 32 else 64
    return {"BO": bo, "BN": bn, "BT": bt, "num_warps": 8 if bo == 128 else 4, "num_stages": 3}


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
    """`(examples, out, kh, kw, in)` gradients, in the precision of the inputs."""
    rows, channels, height, width = x.shape
    _, out, height_out, width_out = d.shape
    examples = rows // views
    x = x.contiguous(memory_format=torch.channels_last)
    d = d.contiguous(memory_format=torch.channels_last)
    kh, kw = kernel
    columns, positions = kh * kw * channels, height_out * width_out
    grads = torch.empty((examples, out, kh, kw, channels), dtype=x.dtype, device=x.device)
    chosen = tiles or _tiles(columns, out, views * positions)
    blocks = triton.cdiv(out, chosen["BO"]) * triton.cdiv(columns, chosen["BN"])
    launch: Any = _kernel[(examples, blocks)]
    launch(
        x, d, grads, height, width, channels, width_out, out, positions, views,
        *stride, *padding, *dilation, kw, columns, **chosen,
    )  # fmt: skip
    return grads


def _pair(values: list[int]) -> Pair:
    return values[0], values[1]


@torch.library.custom_op(
    "sfumato::conv_weight_gradients", mutates_args=(), tags=(torch.Tag.needs_exact_strides,)
)
def _operator(
    x: Tensor,
    d: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    views: int,
) -> Tensor:
    return conv_weight_gradients(
        x, d, _pair(kernel), _pair(stride), _pair(padding), _pair(dilation), views
    )


@_operator.register_fake
def _shape(
    x: Tensor,
    d: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    views: int,
) -> Tensor:
    return x.new_empty(x.shape[0] // views, d.shape[1], *kernel, x.shape[1])
