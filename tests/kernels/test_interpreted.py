"""Every kernel against its definition in Triton's interpreter, chosen before Triton is loaded."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sfumato.kernels import AVAILABLE

MODULES = ("test_chacha20", "test_conv", "test_grouped", "test_row_kernels")
"""The modules beside this one whose `compare` takes a device, a precision and a tolerance."""


@pytest.mark.slow
@pytest.mark.skipif(AVAILABLE, reason="runs on the device itself")
def test_interpreted_kernels_equal_their_definitions() -> None:
    """In one process of their own."""
    pytest.importorskip("triton", minversion="3.7")  # 3.6 interprets nothing beside NumPy 2.4.
    code = f"""
import importlib, sys, torch
sys.path.insert(0, "tests/kernels")
for name in {MODULES}:
    importlib.import_module(name).compare("cpu", torch.float32, 1e-5)
    print(name)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1"},
    )
    assert done.stdout.split() == list(MODULES), done.stderr
