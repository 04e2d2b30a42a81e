"""Normal random numbers from the stream cipher ChaCha20 (RFC 8439), on the CPU and on CUDA devices.

A block of the cipher is 64 bytes, that is eight words of 64 bits. Each pair of words gives two
normal numbers by Box and Muller's transform, so block b gives the numbers 8b to 8b + 7, on every
device the same up to the last bits of logarithm and cosine.
"""

from __future__ import annotations

import math
import threading

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from torch import Tensor

WORDS = 8
"""Words of 64 bits, and so normal numbers, in a block."""

KEY_BYTES = 32

_BLOCKS = 1 << 32
"""Blocks of one key: the cipher's counter has 32 bits."""

_AT_ONCE = 1 << 14
"""Blocks computed at once on the CPU: 1 MiB of words, which caches hold and threads can share."""

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
    return np.frombuffer(_cipher(key, count, block).update(bytes(8 * count)), dtype="<u8")


def _cipher(key: bytes, count: int, block: int) -> CipherContext:
    """The cipher at the start of a block, from which `count` words are asked for."""
    if len(key) != KEY_BYTES:
        raise ValueError(f"ChaCha20 takes a key of {KEY_BYTES} bytes, not {len(key)}")
    if block + blocks_of(count) > _BLOCKS:
        raise ValueError(f"one key has {_BLOCKS} blocks, not {block + blocks_of(count)}")
    counter_and_nonce = block.to_bytes(4, "little") + bytes(12)
    return Cipher(ChaCha20(key, counter_and_nonce), mode=None).encryptor()


def blocks_of(count: int) -> int:
    """Number of blocks that hold `count` words."""
    return -(-count // WORDS)


class BoxMuller:
    """Box and Muller's transform of pairs of words to pairs of normal numbers in float64.

    Guarantee: The radius comes from all 64 bits of the first word, so tails are right to 9.49
    standard deviations; the angle comes from the 53 upper bits of the second.

    Args:
        pairs: The most pairs of one call.
    """

    def __init__(self, pairs: int) -> None:
        self._numbers = np.empty((3, pairs))
        self._upper = np.empty(pairs, "i8")

    def __call__(self, words: np.ndarray, found: Tensor) -> None:
        """Write the normal numbers of an even number of words into a vector."""
        pairs = len(words) // 2
        radius, angle, third = self._numbers[:, :pairs]
        halves, upper = words.view("<u4").reshape(-1, 4), self._upper[:pairs]
        r, a, t = torch.from_numpy(self._numbers)[:, :pairs]
        # The sum of both halves is rounded once, as the word itself would be.
        radius[:] = halves[:, 1]
        third[:] = halves[:, 0]
        r.mul_(2.0**32).add_(t).mul_(2.0**-64).add_(HALF_STEP).log_().mul_(-2).sqrt_()
        np.right_shift(words.view("<i8")[1::2], 11, out=upper)
        upper &= (1 << 53) - 1
        angle[:] = upper
        a.mul_(2 * math.pi * 2.0**-53)
        own = found.view(-1, 2)
        torch.mul(r, torch.cos(a, out=t), out=own[:, 0])
        torch.mul(r, a.sin_(), out=own[:, 1])


class _Workspace(threading.local):
    """Memory of each thread for words and intermediate results: new memory costs more than they."""

    def __init__(self) -> None:
        self.zeros = memoryview(bytes(8 * WORDS * _AT_ONCE))
        self.words = np.empty(WORDS * _AT_ONCE, "<u8")
        self.transform = BoxMuller(WORDS * _AT_ONCE // 2)


_WORKSPACE = _Workspace()


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
    found = torch.empty(blocks_of(count) * WORDS, dtype=torch.float64)
    cipher, own = _cipher(key, count, block), _WORKSPACE
    for start in range(0, len(found), len(own.words)):
        part = found[start : start + len(own.words)]
        drawn = own.words[: len(part)]
        cipher.update_into(own.zeros[: drawn.nbytes], drawn.view("u1").data)
        own.transform(drawn, part)
    found = found[:count]
    return found if device.type == "mps" else found.to(device)
