"""What the command says to PyTorch before it is loaded, and that a user's word counts more."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import pytest

from sfumato import cli

NAMES = (
    "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_LOGS",
)  # fmt: skip
SHOW = (
    "import sys, os, sfumato.cli; e = os.environ.get;"
    "print('torch' in sys.modules, e('GOMP_SPINCOUNT'), e('PYTORCH_ALLOC_CONF'), e('TORCH_LOGS'))"
)
QUIET = "-dynamo,-inductor"
GROWS = "expandable_segments:True"


@pytest.mark.parametrize(
    ("own", "wanted"),
    [
        ({}, f"False 1000 {GROWS} {QUIET}"),
        ({"OMP_WAIT_POLICY": "active"}, f"False None {GROWS} {QUIET}"),
        ({"GOMP_SPINCOUNT": "7"}, f"False 7 {GROWS} {QUIET}"),
        (
            {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"},
            f"False 1000 max_split_size_mb:64 {QUIET}",
        ),
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}, f"False 1000 None {QUIET}"),
        ({"TORCH_LOGS": "recompiles"}, f"False 1000 {GROWS} recompiles"),
    ],
)
def test_the_command_says_so_before_pytorch_is_loaded(own: dict[str, str], wanted: str) -> None:
    rest = {k: v for k, v in os.environ.items() if k not in NAMES}
    found = subprocess.run(
        [sys.executable, "-c", SHOW],
        env={**rest, **own},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == wanted


@pytest.mark.parametrize("asked", [False, True])
def test_warnings_of_the_compiler_are_shown_on_request_alone(
    monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    def warn() -> None:
        for module in ("torch._inductor.ir", "torch._dynamo.utils", "torch.nn", "torch_inductor"):
            warnings.warn_explicit(module, UserWarning, "file.py", 1, module=module)

    monkeypatch.setattr("typer.main.get_command", lambda _: warn)
    monkeypatch.setattr(sys, "warnoptions", ["default"] if asked else [])
    monkeypatch.delenv("PYTHONWARNINGS", raising=False)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        cli.main()
    compiler = ["torch._inductor.ir", "torch._dynamo.utils"] if asked else []
    assert [str(one.message) for one in shown] == [*compiler, "torch.nn", "torch_inductor"]


def test_a_place_that_cannot_be_written_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise OSError(30, "Read-only file system", "/somewhere/runs")

    monkeypatch.setattr("typer.main.get_command", lambda _: fail)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert "/somewhere/runs cannot be used: Read-only file system." in capsys.readouterr().err


def test_an_error_of_the_system_without_a_place_is_not_hidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        raise OSError("something of ours")

    monkeypatch.setattr("typer.main.get_command", lambda _: fail)
    with pytest.raises(OSError, match="something of ours"):
        cli.main()
