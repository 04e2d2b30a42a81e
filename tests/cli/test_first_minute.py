"""The first minute of a run at a terminal: something to see, and Ctrl-C that is obeyed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from terminal_session import in_terminal

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="terminals")

SLOW_TORCH = """
import os, time
os.write(2, b"<pytorch>")
time.sleep(1.0)
os._exit(3)
"""

SLOW_STEP = """
import sys, time
from sfumato import cli
from sfumato.training.draw_feed import DrawFeed
usual = DrawFeed.accumulate
def accumulate(self, draw, step):
    if step == 3:
        print("<step 3>", flush=True)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            time.sleep(0.01)
    usual(self, draw, step)
DrawFeed.accumulate = accumulate
sys.argv = ["sfumato", *sys.argv[1:]]
cli.main()
"""


def test_something_is_shown_before_pytorch_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(SLOW_TORCH)
    command = [sys.executable, "-m", "sfumato", "train", "--out", str(tmp_path / "run")]
    where = ":".join([str(tmp_path), *filter(None, sys.path)])
    session = in_terminal(command, environment={"PYTHONPATH": where})
    assert session.code == 3
    assert session.first("loading PyTorch") < session.first("<pytorch>") < float("inf")


@pytest.mark.slow
def test_ctrl_c_in_a_long_step_is_answered_and_loses_nothing(tmp_path: Path) -> None:
    """Ten times the five seconds are allowed here: machines that run tests are busy."""
    settings = ["--seed", "3", "--device", "cpu", "--set", "training.steps=5",
                "--set", "training.log_every=1"]  # fmt: skip
    begin = [sys.executable, "-c", SLOW_STEP, "train", *settings]
    session = in_terminal([*begin, "--out", str(tmp_path / "run")], interrupt_at="<step 3>")
    assert session.code == 130, session.text
    assert session.interrupted is not None
    assert session.first("Stopping") - session.interrupted < 5
    assert session.seconds - session.interrupted < 50
    assert "Stopped after step 2" in session.text or "Go on with" in session.text
    again = [sys.executable, "-m", "sfumato", "train"]
    assert in_terminal([*again, "--resume", str(tmp_path / "run"), "--device", "cpu"]).code == 0
    assert in_terminal([*again, *settings, "--out", str(tmp_path / "whole")]).code == 0
    for name in ("model.safetensors", "ledger.jsonl"):
        found = [(tmp_path / run / name).read_bytes() for run in ("run", "whole")]
        assert found[0] == found[1], name
