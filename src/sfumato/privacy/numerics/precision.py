"""Full precision where privacy depends on rounding, whatever settings the user has changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor


def _switches() -> list[Any]:
    """PyTorch's settings that let float32 products be rounded to fewer bits."""
    backends: Any = torch.backends
    return [
        backends.cuda.matmul,
        backends.mkldnn.matmul,
        backends.cudnn.conv,
        backends.mkldnn.conv,
    ]


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Compute as the tensors' own types say: no autocast, no TF32, no bfloat16 products.

    A product of rounded factors can be longer than the exact one: with TF32 or bfloat16 a gradient
    scaled to the clipping norm would exceed it by up to 0.4 %.
    """
    lowered = [(s, s.fp32_precision) for s in _switches() if s.fp32_precision in ("tf32", "bf16")]
    with ExitStack() as stack:
        if torch.amp.is_autocast_available(device.type):
            stack.enter_context(torch.autocast(device.type, enabled=False))
        try:
            for switch, _ in lowered:
                switch.fp32_precision = "ieee"
            yield
        finally:
            for switch, before in lowered:
                switch.fp32_precision = before


@contextmanager
def any_algorithm() -> Iterator[None]:
    """Use cuDNN's first guess of an algorithm, without a search for a faster one.

    The search costs more than it saves where a shape occurs once or twice.
    """
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def widest(device: torch.device) -> torch.dtype:
    """The widest floating-point type of a device: float64, except on Apple's GPUs."""
    return torch.float32 if device.type == "mps" else torch.float64


def compiled_precision(device: torch.device) -> torch.dtype | None:
    """The precision of the compiled pass on a device: bfloat16 on a GPU that computes in it."""
    narrow = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if narrow else None


def widened(t: Tensor) -> Tensor:
    """The tensor in float64; whole numbers as they are."""
    return t.double() if t.is_floating_point() else t
