from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_finish() -> None:
    """Leave what the modules hold out of garbage collection, which is quicker without it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _few_threads() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _quick_pictures() -> Iterator[None]:
    """Runs leave a PNG signature in place of their curves, which take a third of a short run.

    What is drawn is tested in tests/charts, and by the fixture `real_pictures`.
    """
    from sfumato.training import release
    from sfumato.training.initial import prior

    def draw(records: Any, path: Path, **_: Any) -> None:
        path.unlink(missing_ok=True)
        path.write_bytes(b"\x89PNG\r\n\x1a\n")

    with pytest.MonkeyPatch.context() as patch:
        for module in (release, prior):
            patch.setattr(module, "curves", SimpleNamespace(draw=draw))
        yield


@pytest.fixture
def real_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs draw their curves."""
    from sfumato.charts import curves
    from sfumato.training import release
    from sfumato.training.initial import prior

    for module in (release, prior):
        monkeypatch.setattr(module, "curves", curves)
