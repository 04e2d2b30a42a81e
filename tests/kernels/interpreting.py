"""A test module's `compare` in Triton's interpreter, which is chosen before Triton is loaded."""

from __future__ import annotations

import os
import subprocess
import sys


def interpreted(module: str) -> None:
    """Run `compare` of a module beside this one on the CPU, in a process of its own."""
    code = (
        f"import sys, torch; sys.path.insert(0, 'tests/kernels'); import {module} as t; "
        "t.compare('cpu', torch.float32, 1e-5); print('equal')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1"},
    )
    assert done.stdout.strip() == "equal", done.stderr
