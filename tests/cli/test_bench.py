from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from sfumato.cli import bench
from sfumato.errors import UserError

app = typer.Typer()
bench.register(app)
app.callback()(lambda: None)

SMALL = ["--device", "cpu", "--models", "papernot-1", "--rows", "8", "--physical", "2"]


def run(*words: str) -> str:
    done = CliRunner().invoke(app, ["bench", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.usefixtures("real_pictures")
def test_a_small_bench_prints_keeps_and_draws(tmp_path: Path) -> None:
    out, drawn = tmp_path / "r.json", tmp_path / "r.png"
    words = run(*SMALL, "--views", "1,2", "--steps", "2", "--against", "not-private,vmap",
                "--out", str(out), "--picture", str(drawn))  # fmt: skip
    content = json.loads(out.read_text())
    assert content["finished"]
    assert len(content["measurements"]) == 6
    for m in content["measurements"]:
        assert m["reason"] == ""
        assert len(m["times"]) == 2
        assert m["first_step"] > 0
    assert "of not private" in words
    assert drawn.stat().st_size > 5000


def test_time_that_is_up_is_a_reason() -> None:
    words = run(*SMALL, "--minutes", "0", "--against", "none")
    assert "not begun: the time was up" in words


def test_a_profile_is_printed() -> None:
    words = run("--device", "cpu", "--profile", "papernot-1", "--rows", "8", "--physical", "1")
    assert "aten::" in words
    assert "least work" in words


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--views", "1,x"], "whole numbers"),
        (["--models", "resnet-9"], "Did you mean"),
        (["--against", "opacos"], "Did you mean 'opacus'"),
        (["--out", "r.txt"], "end in .json"),
        (["--precision", "bfloat16"], "CUDA"),
        (["--rows", "7", "--views", "2"], "multiple of 2"),
        (["--foreign", "--rows", "8"], "cases of its own"),
        (["--foreign", "--models", "resnet9"], "no such case on cpu"),
        (["--foreign", "--views", "8"], "--views 8: --foreign has no such case on cpu"),
    ],
)
def test_mistakes_are_explained(words: list[str], says: str) -> None:
    with pytest.raises(UserError, match=says):
        CliRunner().invoke(app, ["bench", "--device", "cpu", *words], catch_exceptions=False)


def test_files_are_never_overwritten(tmp_path: Path) -> None:
    for option, name in (("--out", "r.json"), ("--picture", "r.png")):
        path = tmp_path / name
        path.write_text("mine")
        with pytest.raises(UserError, match="not overwritten"):
            CliRunner().invoke(app, ["bench", option, str(path)], catch_exceptions=False)
        assert path.read_text() == "mine"
