from __future__ import annotations

import sys
from pathlib import Path

import pytest
from cli_result import Result, Run

from sfumato import cli


@pytest.fixture
def sfumato(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Run:
    """`sfumato("train", "--seed", 0)` is that command line, typed in a new folder.

    The folder is `tmp_path`, the user's cache is new and lies elsewhere, and the terminal is 120
    columns wide.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("COLUMNS", "120")

    def call(*words: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["sfumato", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        code = left.value.code or 0
        assert isinstance(code, int), code
        return Result(code, *capsys.readouterr())

    return call
