from __future__ import annotations

import platform
from pathlib import Path

import pytest

from sfumato import machine
from sfumato.bench import record
from sfumato.reproduce import environment


def test_the_system_names_its_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = tmp_path / "cpuinfo"
    listed.write_text("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name\t: Other\n")
    monkeypatch.setattr(machine, "CPUINFO", listed)
    assert machine.processor() == "Some CPU @ 2 GHz"
    assert record.hardware("cpu")["cpu"] == "Some CPU @ 2 GHz"
    assert environment.hardware("cpu") == "Some CPU @ 2 GHz, 1 threads"


def test_elsewhere_python_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "none")
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert machine.processor() == "arm64"
    monkeypatch.setattr(platform, "machine", lambda: "")
    assert machine.processor() == "unknown"
