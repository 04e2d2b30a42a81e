from __future__ import annotations

import platform
from pathlib import Path

import pytest
import torch

from sfumato import environment
from sfumato.bench import record


def test_the_system_names_its_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = tmp_path / "cpuinfo"
    listed.write_text("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name\t: Other\n")
    monkeypatch.setattr(environment, "CPUINFO", listed)
    assert environment.processor() == "Some CPU @ 2 GHz"
    assert record.hardware("cpu")["cpu"] == "Some CPU @ 2 GHz"
    assert environment.hardware(torch.device("cpu")) == "Some CPU @ 2 GHz, 1 threads"


def test_elsewhere_python_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "CPUINFO", tmp_path / "none")
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert environment.processor() == "arm64"
    monkeypatch.setattr(platform, "machine", lambda: "")
    assert environment.processor() == "unknown"
