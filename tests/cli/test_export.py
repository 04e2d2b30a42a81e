"""`sfumato export` as a user types it."""

from __future__ import annotations

from pathlib import Path

import torch
from cli_result import Run, refused

from tiny_run import make_run, train_run


def test_a_file_beside_the_user(sfumato: Run, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "runs" / "digits-001")
    result = sfumato("export", folder, "--to", "torchscript")
    assert result.code == 0, result.err
    assert "100 test images of 'digits'" in result.out
    assert "Written: digits-001.pt (torchscript)" in result.out
    probabilities = torch.jit.load(tmp_path / "digits-001.pt")(torch.rand(3, 1, 8, 8))
    torch.testing.assert_close(probabilities.sum(1), torch.ones(3))
    before = (tmp_path / "digits-001.pt").read_bytes()
    refused(sfumato("export", folder, "--to", "torchscript"), "exists already")
    assert (tmp_path / "digits-001.pt").read_bytes() == before


def test_what_is_refused(sfumato: Run, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    refused(sfumato("export", folder, "--to", "pt2", "--opset", 18), "--opset is for ONNX")
    refused(sfumato("export", folder, "--to", "onnx", "--opset", 9), "from 18 to 23, not 9")
    refused(sfumato("export", folder, "--to", "pt2", "-o", "m.onnx"), "must end in .pt2")
    refused(sfumato("export", tmp_path / "norun", "--to", "pt2"), "There is no run folder")
    assert not list(tmp_path.glob("*.pt2"))


def test_a_folder_for_a_hub(sfumato: Run, tmp_path: Path) -> None:
    run = train_run(tmp_path / "digits-001", {"training.seed": 0})
    result = sfumato("export", run, "--to", "huggingface")
    assert result.code == 0, result.err
    assert "Written: digits-001-huggingface" in result.out
    assert (tmp_path / "digits-001-huggingface" / "config.json").is_file()
    refused(sfumato("export", run, "--to", "huggingface"), "exists already")
    refused(sfumato("export", run, "--to", "huggingface", "--opset", 18), "--opset is for ONNX")
