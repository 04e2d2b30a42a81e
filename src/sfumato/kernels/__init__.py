"""Operators of the fast engine, each with a definition in plain PyTorch and a Triton kernel.

`torch.ops.sfumato.*` are registered here on import: on CUDA devices with Triton they run the
kernels, elsewhere their definitions, so that code built on them can be tested anywhere.
"""

from __future__ import annotations

import importlib.util

import torch

from sfumato.kernels import custom_operators  # noqa: F401

AVAILABLE = torch.cuda.is_available() and importlib.util.find_spec("triton") is not None
"""True if the Triton kernels can run here."""
