"""Triton kernels, each beside the plain-PyTorch function that defines it.

`load` registers them as `torch.ops.sfumato.*` where Triton is installed; everything works without.
"""

from __future__ import annotations

from functools import cache


@cache
def load() -> bool:
    """Register the kernels; False where there is no Triton."""
    try:
        from sfumato.kernels import conv  # noqa: F401
    except ImportError:
        return False
    return True
