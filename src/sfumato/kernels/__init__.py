"""Triton kernels, each beside the plain-PyTorch function that defines it.

Where Triton is installed they are registered as `torch.ops.sfumato.*`; everything works without.
"""

from __future__ import annotations

import importlib.util

import torch

AVAILABLE = torch.cuda.is_available() and importlib.util.find_spec("triton") is not None
"""Whether the kernels can run here."""

if AVAILABLE:
    from sfumato.kernels import conv  # noqa: F401
