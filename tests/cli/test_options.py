"""Options that mean the same everywhere are called the same."""

from __future__ import annotations

import typer

from sfumato.cli import app


def test_every_out_has_a_short_name() -> None:
    found = {}
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        for parameter in command.params:
            if "--out" in parameter.opts:
                found[name] = "-o" in parameter.opts
    assert {"train", "predict", "report"} <= set(found) and all(found.values()), found
