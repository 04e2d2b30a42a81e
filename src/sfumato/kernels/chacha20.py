"""Normal random numbers from the stream cipher ChaCha20 (RFC 8439), on the CPU and on CUDA devices.

A block of the cipher is 64 bytes, that is eight words of 64 bits. Each pair of words gives two
normal numbers by Box and Muller's transform, so block b gives the numbers 8b to 8b + 7, on every
device the same up to the last bits of logarithm and cosine.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from torch import Tensor

WORDS = 8
"""Words of 64 bits, and so normal numbers, in a block."""

KEY_BYTES = 32

_BLOCKS = 1 << 32
"""Blocks of one key: the cipher's counter has 32 bits."""

_AT_ONCE = 1 << 17
"""Blocks computed at once on the CPU: 8 MiB of words."""

HALF_STEP = 2.0**-65
"""The smallest uniform number: half a step of the first word, so that its logarithm is finite."""

FARTHEST = math.sqrt(-2 * math.log(HALF_STEP))
"""The largest normal number, 9.49 standard deviations."""


def words(key: bytes, count: int, *, block: int = 0) -> np.ndarray:
    """Words of 64 bits of the key stream, from the start of a block on.

    Args:
        key: 32 bytes.
        count: Number of words.
        block: Number of the first block.

    Raises:
        ValueError: The stream of one key ends before.
    """
    if len(key) != KEY_BYTES:
        raise ValueError(f"ChaCha20 takes a key of {KEY_BYTES} bytes, not {len(key)}")
    if block + blocks_of(count) > _BLOCKS:
        raise ValueError(f"one key has {_BLOCKS} blocks, not {block + blocks_of(count)}")
    counter_and_nonce = block.to_bytes(4, "little") + bytes(12)
    encryptor = Cipher(ChaCha20(key, counter_and_nonce), mode=None).encryptor()
    return np.frombuffer(encryptor.update(bytes(8 * count)), dtype="<u8")


def blocks_of(count: int) -> int:
    """Number of blocks that hold `count` words."""
    return -(-count // WORDS)


def gaussian(pairs: np.ndarray) -> Tensor:
    """Box and Muller's transform of words `(n, 2)` to normal numbers `(2 n,)` in float64.

    Guarantee: The radius comes from all 64 bits of the first word, so tails are right to 9.49
    standard deviations; the angle comes from the 53 upper bits of the second.
    """
    uniform = torch.from_numpy(pairs[:, 0].astype(np.float64))
    angle = torch.from_numpy((pairs[:, 1] >> np.uint64(11)).astype(np.float64))
    radius = uniform.mul_(2.0**-64).add_(HALF_STEP).log_().mul_(-2).sqrt_()
    angle.mul_(2 * math.pi * 2.0**-53)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1).flatten()


def normals(key: bytes, count: int, device: torch.device, *, block: int = 0) -> Tensor:
    """Normal numbers `(count,)` in float64, computed on the device where it has a kernel.

    Args:
        key: 32 bytes.
        count: Number of normal numbers.
        device: Device of the result; Apple's GPUs have no float64, so theirs stay on the CPU.
        block: Number of the first block of the stream.
    """
    if device.type == "cuda":
        from sfumato import kernels

        if kernels.AVAILABLE:
            from sfumato.kernels.chacha20_triton import normals as on_cuda

            return on_cuda(key, count, device, block=block)
    found = torch.empty(count, dtype=torch.float64)
    for start in range(0, count, _AT_ONCE * WORDS):
        part = found[start : start + _AT_ONCE * WORDS]
        whole = words(key, blocks_of(len(part)) * WORDS, block=block + start // WORDS)
        part.copy_(gaussian(whole.reshape(-1, 2))[: len(part)])
    return found if device.type == "mps" else found.to(device)
