from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from bench_fakes import FakeEvent


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A GPU that is not there; what is returned describes it and may be changed."""
    gpu = SimpleNamespace(name="NVIDIA H200", total_memory=1 << 37, major=9, minor=0)
    for name in ("synchronize", "empty_cache", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda *_: 3 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: gpu)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    return gpu
