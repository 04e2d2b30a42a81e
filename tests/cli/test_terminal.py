"""Text on the terminal is shown as it is."""

from __future__ import annotations

import ast
import io
import sys
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

import sfumato
from sfumato.cli import training_progress
from sfumato.cli.terminal import Terminal
from sfumato.data.progress_bar import progress
from sfumato.training.reporter import Progress

NAME = "[red]scans[/] :abc: [link=x]"


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal_of(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """A terminal that takes the place of stdout and stderr."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)
    return screen


def test_strings_are_not_markup_wherever_they_are_printed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = terminal_of(monkeypatch)
    table = Table(title=f"title {NAME}")
    table.add_column(f"column {NAME}")
    table.add_row(f"cell {NAME}")
    Terminal().print(f"line {NAME}", table, Text.assemble(("text ", ""), NAME))
    Terminal(stderr=True).print(f"error {NAME}")
    shown = terminal.getvalue()
    for part in ("title", "column", "cell", "line", "text", "error"):
        assert f"{part} {NAME}" in shown, part


def test_progress_shows_names_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)
    monkeypatch.setattr(training_progress, "console", Terminal())
    with training_progress.watched() as reporter:
        reporter.say(f"said {NAME}")
        reporter.show(Progress(1, 2, 1.0, None, None, 0.0, None))
    with progress(f"decoding {NAME}\x1b[2J", 10) as advance:
        advance(5)
    assert f"said {NAME}" in terminal.getvalue()
    assert f"decoding {NAME}\\u001b[2J" in terminal.getvalue()


def test_markup_is_switched_on_nowhere() -> None:
    """Whoever makes a console of rich's own, or builds text from markup, obeys names."""
    house = Path(sfumato.__file__).parent
    makers = set()
    for path in house.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if not any(word in text for word in ("Console(", "markup", "emoji")):
            continue
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Call(func=ast.Name(id="Console")):
                    makers.add(path.relative_to(house).as_posix())
                    off = {k.arg for k in node.keywords if getattr(k.value, "value", 1) is False}
                    assert {"markup", "emoji"} <= off, path
                case ast.keyword(arg="markup" | "emoji", value=ast.Constant(value=True)):
                    raise AssertionError(path)
                case ast.Attribute(attr="from_markup") | ast.ImportFrom(module="rich.markup"):
                    raise AssertionError(path)
    assert makers == {"live.py"}, "commands print by sfumato.cli.terminal.Terminal"
