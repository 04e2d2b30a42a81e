"""`sfumato reproduce` from the command line."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from tiny_rows import entry, paper, row
from typer.testing import CliRunner

from sfumato.cli import app
from sfumato.errors import UserError
from sfumato.reproduce import cifar10_front, lookup, results_file, rows, tables


@pytest.fixture(autouse=True)
def tiny_paper(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = (paper(row("first", 5.0, alias="short"), row("second")),)
    for module in (lookup, rows, tables, cifar10_front):
        monkeypatch.setattr(module, "PAPERS", made)
    monkeypatch.chdir(tmp_path)


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["reproduce", *arguments])
    if result.exit_code != code:
        raise result.exception or AssertionError(result.output)
    return result.output


def record(name: str, accuracy: float) -> None:
    """Record a run of 2.5 minutes on a processor."""
    made = entry(lookup.every_row()[f"tiny/{name}"], accuracy)
    results_file.append(Path("results"), dataclasses.replace(made, hardware="This, 2 threads"))


def test_without_arguments_every_row_is_listed_with_its_state() -> None:
    record("first", 0.75)
    said = run("--seeds", "2", "--device", "cpu")
    line = next(line for line in said.splitlines() if line.startswith("first"))
    assert line.split() == ["first", "(short)", "1/2", "2.5", "5", "75.00", "reached,", "+70.0"]
    assert "0/2" in next(line for line in said.splitlines() if line.startswith("second"))
    assert "no folder of results" not in said
    assert not Path("runs").exists()


def test_the_list_says_where_results_were_looked_for(tmp_path: Path) -> None:
    said = run("--list")
    assert f"There is no folder of results at {tmp_path / 'results'}, so no row counts" in said


def test_a_row_by_its_alias_is_run_once_and_shown() -> None:
    said = run("tiny/short", "--seeds", "1", "--device", "cpu")
    assert "tiny/first, published, seed 0: test accuracy" in said
    assert "published 5; reached" in said and "Tables and figures: docs/results" in said
    (found,) = results_file.read(Path("results"))
    assert found.row == "tiny/first"
    page = Path("docs/results/tiny.md").read_text(encoding="utf-8")
    assert f"**{100 * found.accuracy:.2f}**" in page
    assert "Nothing is missing" in run("tiny/short", "--seeds", "1")
    assert len(results_file.read(Path("results"))) == 1


def test_a_budget_of_no_minutes_runs_nothing() -> None:
    said = run("tiny", "--budget-minutes", "0", "--seeds", "1")
    assert "2 runs were not started" in said and "Tables and figures" not in said
    assert not results_file.read(Path("results"))


def test_the_list_of_a_budget_shows_what_it_would_run() -> None:
    """Both rows are of one network, and the one with a published number has one seed to go."""
    record("first", 0.75)
    said = run("--list", "--budget-minutes", "6", "--seeds", "2", "--device", "cpu")
    table = said.partition("6 minutes would run 3 of 3 runs that are missing, in this order:\n")[2]
    assert [line.split() for line in table.splitlines()] == [
        ["run", "published", "minutes", "until"],
        ["tiny/second,", "published,", "seed", "0", "2.5", "2.5"],
        ["tiny/first,", "published,", "seed", "1", "5", "2.5", "5.0"],
        ["tiny/second,", "published,", "seed", "1", "2.5", "cut,", "goes", "on", "next", "time"],
    ]
    assert not Path("runs").exists()


def test_a_budget_without_names_is_for_every_row() -> None:
    said = run("--budget-minutes", "0", "--seeds", "2")
    assert "4 runs were not started" in said
    for name in ("first", "second"):
        record(name, 0.5)
    assert "Nothing is missing: every row" in run("--budget-minutes", "9", "--seeds", "1")
    assert not Path("runs").exists()


def test_pages_of_others_are_seen_before_anything_is_run() -> None:
    Path("docs").mkdir()
    Path("docs/README.md").write_text("mine")
    with pytest.raises(UserError, match="name another --docs"):
        run("tiny/short", "--seeds", "1", "--device", "cpu", "--docs", "docs")
    assert not Path("runs").exists() and not results_file.read(Path("results"))


def test_render_alone_trains_nothing() -> None:
    results_file.append(Path("results"), entry(lookup.every_row()["tiny/first"], 0.02))
    run("--render")
    assert "**missed** by 3.0" in Path("docs/results/tiny.md").read_text(encoding="utf-8")
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("none",), "no paper 'none'"),
        (("tiny/thrid",), "has no row 'thrid'"),
        (("tiny", "--setting", "good"), "--setting must be"),
        (("tiny/first", "--device", "warp"), "Unknown device 'warp'"),
    ],
)
def test_mistakes_are_explained(arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(UserError, match=said):
        run(*arguments)


def test_runs_can_be_shared_between_processes() -> None:
    from sfumato.cli.parts import parse_part

    assert "abcde"[parse_part(None)] == "abcde"
    assert ["abcde"[parse_part(f"{i}/2")] for i in (1, 2)] == ["ace", "bd"]
    for wrong in ("0/2", "3/2", "x", "1-2"):
        with pytest.raises(UserError, match="--part"):
            parse_part(wrong)
