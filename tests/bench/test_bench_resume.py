"""A record that was cut short is gone on with; nothing that was measured is lost or repeated."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import typer
from bench_fakes import CPU, CUDA, TINY, tick
from typer.testing import CliRunner

from sfumato.bench.cases import Case
from sfumato.bench.feed import Contender, Unsupported
from sfumato.bench.record import Record, read
from sfumato.bench.recording import run
from sfumato.bench.timing import NOT_BEGUN
from sfumato.cli import bench
from sfumato.errors import UserError

CASES = [TINY, replace(TINY, views=2), replace(TINY, views=4)]
NAMES = ["not-private", "vmap"]
ALL = [(k, name) for k in (1, 2, 4) for name in ("not-private", "sfumato", "vmap")]


@pytest.fixture(autouse=True)
def _one_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SFUMATO_COMMIT", "0123abc")


class Bench:
    """Runs that write down whom they tried, and stumble where they are told to."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.tried: list[tuple[int, str]] = []
        self.trouble: dict[tuple[int, str], Callable[[], object]] = {}
        self.said: list[str] = []

    def prepare(self, name: str, case: Case, device: torch.device) -> Contender:
        self.tried.append((case.views, name))
        self.trouble.get((case.views, name), lambda: None)()
        return Contender(tick, "fake")

    def run(self, device: torch.device, **changes: Any) -> Record:
        self.tried.clear()
        self.said.clear()
        settings: dict[str, Any] = {"against": NAMES, "steps": 2, "warmup": 1, "resume": True}
        settings |= {"cases": CASES} | changes
        cases, against = settings.pop("cases"), settings.pop("against")
        return run(cases, against, device=device, out=self.out, say=self.said.append,
                   prepare=self.prepare, **settings)  # fmt: skip

    def rows(self) -> list[tuple[int, str]]:
        return [(m.case.views, m.contender) for m in read(self.out).measurements]


@pytest.fixture
def fake(tmp_path: Path, cuda: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr("sfumato.bench.timing.clean", lambda device: None)
    return Bench(tmp_path / "r.json")


def fails(error: type[BaseException], words: str = "") -> Callable[[], object]:
    def trouble() -> None:
        raise error(words)

    return trouble


def cut(fake: Bench, device: torch.device, at: tuple[int, str] = (2, "sfumato")) -> Record:
    fake.trouble[at] = fails(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        fake.run(device)
    del fake.trouble[at]
    return read(fake.out)


def test_a_gpu_goes_on_where_it_was_cut(fake: Bench) -> None:
    begun = cut(fake, CUDA)
    assert fake.rows() == ALL[:4]
    assert not begun.finished and "resumed" not in begun.settings
    done = fake.run(CUDA)
    assert fake.tried == ALL[4:]
    assert fake.rows() == ALL
    assert done.finished and read(fake.out).finished
    assert (done.command, done.date) == (begun.command, begun.date)
    assert [m.times for m in done.measurements[:4]] == [m.times for m in begun.measurements]
    [when] = read(fake.out).settings["resumed"]
    assert re.match(r"\d{4}-\d\d-\d\dT", when)
    assert "of not private" in next(line for line in fake.said if "sfumato  " in line)


def test_a_gap_is_filled_where_it_was(fake: Bench) -> None:
    fake.run(CUDA)
    content = json.loads(fake.out.read_text())
    del content["measurements"][4]
    fake.out.write_text(json.dumps(content | {"finished": False}))
    assert fake.run(CUDA).finished
    assert fake.tried == ALL[4:5]
    assert fake.rows() == ALL


def test_where_contenders_take_turns_a_case_is_repeated_whole(fake: Bench) -> None:
    cut(fake, CPU, at=(4, "vmap"))
    content = json.loads(fake.out.read_text())
    del content["measurements"][5]
    fake.out.write_text(json.dumps(content))
    fake.run(CPU)
    assert fake.tried == ALL[3:]
    assert fake.rows() == ALL
    assert read(fake.out).finished


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_a_finished_record_is_left_alone(fake: Bench, device: torch.device) -> None:
    fake.trouble[2, "vmap"] = fails(Unsupported, "cannot")
    assert fake.run(device).finished
    assert fake.tried == ALL
    before = fake.out.read_bytes()
    done = fake.run(device)
    assert fake.tried == []
    assert fake.out.read_bytes() == before
    assert len(done.measurements) == len(ALL)
    assert fake.said == [f"{fake.out}: everything is measured already."]


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_what_failed_is_tried_again(fake: Bench, device: torch.device) -> None:
    fake.trouble[2, "sfumato"] = fails(RuntimeError, "bad luck")
    assert fake.run(device).finished
    assert read(fake.out).measurements[4].reason == "RuntimeError: bad luck"
    fake.trouble.clear()
    assert fake.run(device).finished
    assert fake.tried == (ALL[3:6] if device == CPU else ALL[4:5])
    assert fake.rows() == ALL
    assert all(m.times and not m.reason for m in read(fake.out).measurements)


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_time_that_is_up_leaves_it_unfinished(fake: Bench, device: torch.device) -> None:
    assert not fake.run(device, minutes=0.0).finished
    assert fake.tried == []
    assert fake.rows() == ALL
    assert {m.reason for m in read(fake.out).measurements} == {NOT_BEGUN}
    done = fake.run(device, minutes=60.0)
    assert done.finished
    assert fake.tried == fake.rows() == ALL
    assert all(m.times for m in read(fake.out).measurements)


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_time_that_is_up_loses_nothing(fake: Bench, device: torch.device) -> None:
    fake.trouble[1, "vmap"] = fails(RuntimeError, "bad luck")
    fake.run(device)
    before = read(fake.out).measurements
    after = fake.run(device, minutes=0.0)
    assert after.measurements == before
    assert after.finished
    fake.trouble[1, "sfumato"] = fails(RuntimeError, "worse")
    assert fake.run(device).measurements == before


def test_time_that_is_up_within_a_case_keeps_the_better_one(fake: Bench) -> None:
    fake.trouble[1, "vmap"] = lambda: time.sleep(0.6)
    fake.run(CPU, minutes=0.5 / 60, cases=CASES[:2])
    found = read(fake.out).measurements
    assert [bool(m.times) for m in found] == [True] * 3 + [False] * 3
    fake.trouble = {(2, "sfumato"): lambda: time.sleep(0.6)}
    first = fake.run(CPU, minutes=0.5 / 60, cases=CASES[:2])
    assert [bool(m.times) for m in first.measurements] == [True] * 5 + [False]
    fake.trouble = {(2, "not-private"): lambda: time.sleep(0.6)}
    second = fake.run(CPU, minutes=0.5 / 60, cases=CASES[:2])
    assert fake.tried == [(2, "not-private")]
    assert second.measurements == first.measurements
    assert not second.finished


def test_a_file_that_is_not_there_is_begun(fake: Bench) -> None:
    assert fake.run(CPU).finished
    assert fake.rows() == ALL
    assert "resumed" not in read(fake.out).settings


def test_a_case_is_measured_once(fake: Bench) -> None:
    fake.run(CPU, cases=[TINY, TINY])
    assert fake.tried == fake.rows() == ALL[:3]


def test_options_survive_the_file(fake: Bench) -> None:
    cases = [replace(TINY, options={"widths": (1, 2)})]
    fake.run(CPU, cases=cases)
    fake.run(CPU, cases=cases)
    assert fake.tried == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cases": CASES[:2]}, "--views 1, 2, 4, not 1, 2:"),
        ({"cases": [replace(c, model="resnet9") for c in CASES]}, "--models papernot-1, not resne"),
        ({"cases": [replace(c, examples=70) for c in CASES]}, "other cases:"),
        ({"against": []}, "--against not-private, vmap, not none:"),
        ({"steps": 3}, "--steps 2, not 3:"),
        ({"warmup": 2}, "--warmup 1, not 2:"),
        ({"seconds": 0.01}, "seconds of steps 0.0, not 0.01:"),
    ],
)
def test_other_settings_do_not_fit(fake: Bench, changes: dict[str, Any], words: str) -> None:
    cut(fake, CPU)
    before = fake.out.read_bytes()
    with pytest.raises(UserError, match=re.escape(words)) as caught:
        fake.run(CPU, **changes)
    assert str(caught.value).startswith(f"{fake.out} was begun with ")
    assert str(caught.value).endswith(": choose another --out.")
    assert fake.out.read_bytes() == before
    assert fake.tried == []


def test_the_order_of_contenders_does_not_matter(fake: Bench) -> None:
    cut(fake, CPU)
    fake.run(CPU, against=NAMES[::-1], minutes=10.0)
    assert fake.rows() == ALL


def test_other_hardware_versions_and_commits_do_not_fit(
    fake: Bench, cuda: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut(fake, CUDA)
    with pytest.raises(UserError, match="with device cuda, not cpu"):
        fake.run(CPU)
    with monkeypatch.context() as changed:
        changed.setattr(cuda, "name", "NVIDIA L4")
        with pytest.raises(UserError, match="with GPU NVIDIA H200, not NVIDIA L4"):
            fake.run(CUDA)
    with monkeypatch.context() as changed:
        changed.setenv("SFUMATO_COMMIT", "0123abc+")
        with pytest.raises(UserError, match=r"with commit 0123abc, not 0123abc\+"):
            fake.run(CUDA)
    with monkeypatch.context() as changed:
        changed.setattr("sfumato.version.version", lambda name: "9.9")
        with pytest.raises(UserError, match=r"not 9\.9: choose"):
            fake.run(CUDA)
    cold = torch._inductor.config.patch(force_disable_caches=True)
    with cold, pytest.raises(UserError, match="with --cold off, not on"):
        fake.run(CUDA)
    monkeypatch.setattr("sfumato.bench.record.processor", lambda: "another host")
    assert fake.run(CUDA).finished


def test_another_cpu_or_other_threads_do_not_fit(
    fake: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut(fake, CPU)
    with monkeypatch.context() as changed:
        changed.setattr(torch, "get_num_threads", lambda: 64)
        with pytest.raises(UserError, match="with threads 1, not 64"):
            fake.run(CPU)
    monkeypatch.setattr("sfumato.bench.record.processor", lambda: "another CPU")
    with pytest.raises(UserError, match=r"with CPU .*, not another CPU"):
        fake.run(CPU)


def test_without_resume_a_file_is_refused_with_the_way_on(fake: Bench) -> None:
    cut(fake, CPU)
    with pytest.raises(UserError, match="not overwritten: go on with it by --resume, or choose"):
        fake.run(CPU, resume=False)
    fake.run(CPU)
    with pytest.raises(UserError, match="not overwritten: choose another") as caught:
        fake.run(CPU, resume=False)
    assert "--resume" not in str(caught.value)


app = typer.Typer()
bench.register(app)
app.callback()(lambda: None)
SMALL = ["--device", "cpu", "--models", "papernot-1", "--rows", "4", "--physical", "1",
         "--steps", "1", "--against", "none", "--views", "1"]  # fmt: skip


def command(*words: str) -> str:
    done = CliRunner().invoke(app, ["bench", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_the_same_command_until_it_is_done(tmp_path: Path) -> None:
    out, picture = tmp_path / "r.json", tmp_path / "r.png"
    words = [*SMALL, "--out", str(out), "--picture", str(picture), "--resume"]
    said = command(*words, "--minutes", "0")
    assert "Go on by the same command with --resume." in said
    assert not picture.exists()
    with pytest.raises(UserError, match=r"^--out .*r\.json already exists .* by --resume"):
        command(*SMALL, "--out", str(out))
    assert not read(out).finished
    assert "Go on" not in command(*words)
    assert read(out).finished
    before = out.read_bytes(), picture.read_bytes()
    said = command(*words)
    assert "everything is measured already" in said
    assert (out.read_bytes(), picture.read_bytes()) == before


def test_a_cut_command_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> Contender:
        raise KeyboardInterrupt

    monkeypatch.setattr("sfumato.bench.recording.measure", interrupted)
    done = CliRunner().invoke(app, ["bench", *SMALL, "--out", str(tmp_path / "r.json")])
    assert done.exit_code != 0
    assert "Go on by the same command with --resume." in done.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--resume"], "--resume needs --out FILE.json"),
        (["--resume", "--out", "r.txt"], "end in .json"),
        (
            ["--resume", "--out", "r.json", "--profile", "resnet9"],
            "--profile has nothing to resume",
        ),
    ],
)
def test_mistakes_are_explained(words: list[str], says: str) -> None:
    with pytest.raises(UserError, match=says):
        command("--device", "cpu", *words)


def test_what_is_no_record_is_not_resumed(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text("mine")
    with pytest.raises(UserError, match="is not a record"):
        command(*SMALL, "--out", str(path), "--resume")
    assert path.read_text() == "mine"
    profiled = Record.begin("cpu", {"profile": {}}, path=tmp_path / "p.json")
    profiled.finished = True
    profiled.save()
    with pytest.raises(UserError, match="--models none, not papernot-1"):
        command(*SMALL, "--out", str(tmp_path / "p.json"), "--resume")
