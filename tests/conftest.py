from __future__ import annotations

import os

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def _few_threads() -> None:
    import torch

    torch.set_num_threads(1)
