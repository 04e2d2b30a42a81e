from __future__ import annotations

import gc
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    gc.disable()  # Whatever is imported while tests are collected stays.


def pytest_collection_finish() -> None:
    """Leave what the modules hold out of garbage collection, which is quicker without it."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _few_threads() -> None:
    import torch

    torch.set_num_threads(1)


@contextmanager
def _unrendered(width: float, height: float, path: Path) -> Iterator[Any]:
    """A figure that is painted on, but not rendered: the file is an empty picture of one pixel."""
    from matplotlib.figure import Figure
    from PIL import Image

    from sfumato.io.atomic import write_whole

    yield Figure(figsize=(width, height))
    content = io.BytesIO()
    Image.new("L", (1, 1)).save(content, "PNG")
    write_whole(path, content.getvalue())


@pytest.fixture(autouse=True, scope="session")
def _quick_pictures() -> Iterator[Any]:
    """No figure is rendered, which takes more than a run or an evaluation; runs paint no curves.

    What is drawn is tested in tests/charts, and by the fixture `real_pictures`.
    """
    from sfumato.charts import style
    from sfumato.training import release
    from sfumato.training.initial import prior

    def draw(records: Any, path: Path, **_: Any) -> None:
        with _unrendered(1, 1, path):
            pass

    rendered = style.figure
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(style, "figure", _unrendered)
        for module in (release, prior):
            patch.setattr(module, "curves", SimpleNamespace(draw=draw))
        yield rendered


@pytest.fixture
def real_pictures(_quick_pictures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are rendered, and runs draw their curves."""
    from sfumato.charts import curves, style
    from sfumato.training import release
    from sfumato.training.initial import prior

    monkeypatch.setattr(style, "figure", _quick_pictures)
    for module in (release, prior):
        monkeypatch.setattr(module, "curves", curves)


@pytest.fixture(autouse=True, scope="session")
def _quick_commands() -> Iterator[None]:
    """The command line is put together once: it takes longer than most mistakes to be found."""
    import typer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", cache(typer.main.get_command))
        yield


@pytest.fixture(autouse=True, scope="session")
def _quick_disks() -> Iterator[None]:
    """Nothing waits for the disk: tests kill processes, not machines."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield
