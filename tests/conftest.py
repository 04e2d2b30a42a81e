from __future__ import annotations

import os

import pytest

os.environ.setdefault("GOMP_SPINCOUNT", "1000")
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def _few_threads() -> None:
    import torch

    torch.set_num_threads(1)
