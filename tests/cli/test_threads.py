"""Threads that wait do not keep the processors from others."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SHOW = (
    "import sys, os, sfumato.cli; print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)"
)


@pytest.mark.parametrize(
    ("own", "wanted"),
    [
        ({}, "1000 False"),
        ({"OMP_WAIT_POLICY": "active"}, "None False"),
        ({"GOMP_SPINCOUNT": "7"}, "7 False"),
    ],
)
def test_the_command_says_so_before_pytorch_is_loaded(own: dict[str, str], wanted: str) -> None:
    rest = {k: v for k, v in os.environ.items() if k not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    found = subprocess.run(
        [sys.executable, "-c", SHOW],
        env={**rest, **own},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == wanted
