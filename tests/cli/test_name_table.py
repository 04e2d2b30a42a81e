"""Names in lists are whole, however narrow the terminal is, and also where there is none."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest
from cli_result import Run
from rich.table import Table

from sfumato import models, recipes
from sfumato.cli.name_table import show
from sfumato.cli.terminal import wrapped
from sfumato.data.catalogue import CATALOGUE
from sfumato.reproduce.rows import PAPERS

ROWS = [row.name for paper in PAPERS for row in paper.rows]


class Terminal(io.StringIO):
    """Where a person reads."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [pytest.param(80, marks=pytest.mark.slow), 50])
@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("recipes", "list"), recipes.packaged()),
        (("models", "list"), models.names()),
        (("data", "list"), list(CATALOGUE)),
        (("reproduce", "--list"), ROWS),
    ],
    ids=["recipes", "models", "data", "reproduce"],
)
def test_each_name_begins_a_line(
    sfumato: Run,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    names: list[str],
    columns: int,
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(models, "summary_of", lambda *_, **__: models.Summary((), 2_752_506, 10**9))
    result = sfumato(*words)
    assert result.code == 0, result.err
    found = {line.split()[0] for line in result.out.splitlines() if line.strip()}
    assert set(names) <= found


def test_without_a_terminal_a_row_is_one_line(
    sfumato: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = sfumato("recipes", "list").out.splitlines()
    assert len(lines) == 1 + len(recipes.packaged())
    names = [line.split()[0] for line in lines[1:]]
    assert sorted(names) == sorted(recipes.packaged())
    assert (
        names.index("last-layer")
        < names.index("sfumato/cifar10-eps1")
        < names.index("smoothnets/resnet18-cifar10-eps7")
    )
    assert "yours" in lines[1 + names.index("last-layer")]
    for line, name in zip(lines[1:], names, strict=True):
        assert line.endswith(recipes.find(name).about.rstrip()) and line.startswith(f"{name} ")


@pytest.mark.parametrize("columns", [200, 60, 30])
def test_on_a_terminal_a_name_is_whole(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", str(columns))
    name = "smoothnets/norm-instance-ü"
    table = Table("name", "number", "about", box=None, pad_edge=False)
    table.add_row(name, "1,234", "word " * 40)
    show(table)
    lines = terminal.getvalue().splitlines()
    assert len([line for line in lines if line.startswith(name)]) == 1


def test_a_copied_recipe_for_own_images_asks_for_them(sfumato: Run) -> None:
    assert "--data ./scans" in sfumato("recipes", "copy", "images", "my.toml").out
    result = sfumato("train", "my.toml")
    assert result.code == 2 and "is for images of your own" in result.err
    assert sfumato("recipes", "copy", "digits", "own.toml").out.rstrip().endswith("train own.toml")


def test_commands_take_the_names_of_version_0_1(sfumato: Run) -> None:
    former, present = "004/eq-resnet9-d4-cifar10-eps2", "equivariant/eq-resnet9-d4-cifar10-eps2"
    assert sfumato("recipes", "show", former).out == sfumato("recipes", "show", present).out
    assert sfumato("recipes", "copy", former, "mine.toml").code == 0
    assert recipes.find("mine.toml") == recipes.find(present)
    listed = sfumato("reproduce", "002/fashion-tanh", "--list")
    assert "fashion-tanh" in listed.out and listed.code == 0
    refused = sfumato("train", former, "--data", "./scans")
    assert refused.code == 2 and "scans does not exist" in refused.err, (
        "the recipe is found, its data are not"
    )


@pytest.mark.parametrize(
    "words",
    [("recipes", "list"), ("plan", "--epsilon", "3", "--examples", "900", "--steps", "10")],
    ids=["recipes", "plan"],
)
def test_no_word_is_cut_on_a_narrow_terminal(
    sfumato: Run, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """Words that fit into 80 columns are neither broken by the terminal nor cut."""
    wide = sfumato(*words).out.split()
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    assert sfumato(*words).code == 0
    lines = terminal.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    found = terminal.getvalue().split()
    assert set(found) <= set(wide) | {"ε"}, "a part of a word"


def test_sentences_wrap_and_commands_do_not() -> None:
    sentence = "word " * 30
    assert max(map(len, wrapped(sentence, 40).splitlines())) <= 40
    for line in (f"Go on with: sfumato train --resume {'a' * 60}", f"  {sentence}"):
        assert wrapped(line, 40) == line


@pytest.mark.skipif(sys.platform == "win32", reason="pipes")
@pytest.mark.parametrize("words", [["models"], ["--version"]])
def test_a_pipe_that_nobody_reads_is_no_traceback(words: list[str]) -> None:
    """As `sfumato models | head -1` has it, but closed before the first line."""
    reads, writes = os.pipe()
    os.close(reads)
    command = [sys.executable, "-m", "sfumato", *words]
    done = subprocess.run(command, stdout=writes, stderr=subprocess.PIPE, check=False, timeout=60)
    os.close(writes)
    assert (done.returncode, done.stderr) == (1, b"")
