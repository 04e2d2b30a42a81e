from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import pytest
import torch
from bench_fakes import TINY, measured

from sfumato.bench.cases import Case
from sfumato.bench.feed import Contender
from sfumato.bench.record import Record, read, versions
from sfumato.bench.recording import run
from sfumato.errors import UserError


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "new" / "r.json"
    record = Record.begin("cpu", {"steps": 3}, path=path)
    record.add(measured("sfumato", TINY, 100.0))
    record.finished = True
    record.save()
    back = read(path)
    assert back.to_dict() == record.to_dict()
    content = json.loads(path.read_text())
    assert len(content["measurements"][0]["times"]) == 3
    for key in ("date", "command", "commit", "hardware", "versions", "settings"):
        assert content[key]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text("mine")
    with pytest.raises(UserError, match="not overwritten"):
        Record.begin("cpu", {}, path=path)
    assert path.read_text() == "mine"


def test_a_run_that_is_cut_short_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "r.json"

    def prepare(name: str, case: Case, device: torch.device) -> Contender:
        if case.views == 2:
            raise KeyboardInterrupt
        return Contender(lambda: None, "fake")

    cases = [TINY, Case(model="papernot-1", rows=8, views=2, examples=64)]
    with pytest.raises(KeyboardInterrupt):
        run(cases, ["vmap"], device=torch.device("cpu"), steps=2, warmup=1, out=path,
            say=lambda text: None, prepare=prepare)  # fmt: skip
    record = read(path)
    assert [m.contender for m in record.measurements] == ["sfumato", "vmap"]
    assert not record.finished


def test_what_is_not_installed_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("sfumato.version.version", version)
    assert versions()["opacus"] == "unknown"


def test_a_measurement_takes_the_place_of_the_earlier_one() -> None:
    later = Case(model="papernot-1", rows=8, views=2, examples=64)
    record = Record({}, {}, {"cases": [TINY.to_dict(), later.to_dict()]})
    record.add(measured("sfumato", TINY, 1.0))
    record.add(measured("sfumato", later, 2.0), measured("not-private", later, 3.0))
    record.add(measured("vmap", TINY, 4.0))
    record.add(measured("sfumato", TINY, 5.0))
    found = [(m.case.views, m.contender, round(m.speed or 0)) for m in record.measurements]
    assert found == [(1, "sfumato", 5), (1, "vmap", 4), (2, "not-private", 3), (2, "sfumato", 2)]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 9}', '{"version": 1, "x": 2}'])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"r\.json is"):
        read(path)
