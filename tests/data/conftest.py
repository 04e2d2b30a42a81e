"""Every test has a cache of its own and sees no data but what it writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from sfumato.data import locate


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr(locate, "cache_folder", lambda: folder)
    monkeypatch.setattr(locate, "SYSTEM_FOLDER", folder / "system")
    monkeypatch.delenv("SFUMATO_DATA", raising=False)
    return folder
