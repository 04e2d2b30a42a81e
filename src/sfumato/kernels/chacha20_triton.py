"""The kernel of `sfumato.kernels.chacha20`: key stream and normal numbers in one launch."""

from __future__ import annotations

import struct

import torch
import triton
import triton.language as tl
from torch import Tensor

from sfumato.kernels.chacha20 import WORDS, blocks_of

_KEY = tuple(f"k{i}" for i in range(8))


@triton.jit  # type: ignore[untyped-decorator]
def _turned(x, left: tl.constexpr):  # type: ignore[no-untyped-def]
    """Rotate words of 32 bits to the left."""
    return (x << left) | (x >> (32 - left))


@triton.jit
def _quarter(a, b, c, d):  # type: ignore[no-untyped-def]
    """Quarter round of the cipher (RFC 8439, section 2.1)."""
    a += b
    d = _turned(d ^ a, 16)
    c += d
    b = _turned(b ^ c, 12)
    a += b
    d = _turned(d ^ a, 8)
    c += d
    b = _turned(b ^ c, 7)
    return a, b, c, d


@triton.jit
def _word(like, value):  # type: ignore[no-untyped-def]
    """A word of 32 bits for each block."""
    return tl.zeros_like(like) + value.to(tl.uint32, bitcast=True)


@triton.jit
def _pair(out, where, live, low, high, low2, high2):  # type: ignore[no-untyped-def]
    """Box and Muller's transform of two words of 64 bits, stored side by side."""
    first = (high.to(tl.uint64) << 32) | low.to(tl.uint64)
    second = ((high2.to(tl.uint64) << 32) | low2.to(tl.uint64)) >> 11
    uniform = first.to(tl.float64) * 5.421010862427522e-20 + 2.710505431213761e-20
    radius = tl.sqrt(-2.0 * tl.log(uniform))
    angle = second.to(tl.float64) * 6.975736996017264e-16
    tl.store(out + where, radius * tl.cos(angle), mask=live)
    tl.store(out + where + 1, radius * tl.sin(angle), mask=live)


@triton.jit(do_not_specialize=["blocks", "block", *_KEY])  # type: ignore[untyped-decorator]
def _normals(  # type: ignore[no-untyped-def]
    out, blocks, block, k0, k1, k2, k3, k4, k5, k6, k7, BLOCKS: tl.constexpr
):
    """Eight normal numbers for each of BLOCKS blocks."""
    own = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
    counter = own.to(tl.uint32) + block.to(tl.uint32, bitcast=True)
    zero = tl.zeros_like(counter)
    x0, x1, x2, x3 = zero + 0x61707865, zero + 0x3320646E, zero + 0x79622D32, zero + 0x6B206574
    x4, x5, x6, x7 = _word(zero, k0), _word(zero, k1), _word(zero, k2), _word(zero, k3)
    x8, x9, x10, x11 = _word(zero, k4), _word(zero, k5), _word(zero, k6), _word(zero, k7)
    x12, x13, x14, x15 = counter, zero, zero, zero
    for _ in range(10):
        x0, x4, x8, x12 = _quarter(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter(x3, x4, x9, x14)
    live = own < blocks
    at = own.to(tl.int64) * 8
    _pair(out, at, live, x0 + 0x61707865, x1 + 0x3320646E, x2 + 0x79622D32, x3 + 0x6B206574)
    _pair(
        out, at + 2, live,
        x4 + _word(zero, k0), x5 + _word(zero, k1), x6 + _word(zero, k2), x7 + _word(zero, k3),
    )  # fmt: skip
    _pair(
        out, at + 4, live,
        x8 + _word(zero, k4), x9 + _word(zero, k5), x10 + _word(zero, k6), x11 + _word(zero, k7),
    )  # fmt: skip
    _pair(out, at + 6, live, x12 + counter, x13, x14, x15)


def normals(key: bytes, count: int, device: torch.device, *, block: int = 0) -> Tensor:
    """Normal numbers `(count,)` in float64; see `sfumato.kernels.chacha20.normals`."""
    blocks, at_once = blocks_of(count), 128
    out = torch.empty(blocks * WORDS, dtype=torch.float64, device=device)
    if blocks:
        signed = struct.unpack("<8i", key)
        (first,) = struct.unpack("<i", struct.pack("<I", block))
        grid = (triton.cdiv(blocks, at_once),)
        with torch.cuda.device(device) if device.type == "cuda" else torch.no_grad():
            _normals[grid](out, blocks, first, *signed, BLOCKS=at_once, num_warps=4)
    return out[:count]
