"""Memory that runs out: how it is told, and runs that go on with less at once."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import sfumato
from sfumato.analysis.curvature import Hessian
from sfumato.memory import BatchSize, out_of_memory

LIMITED = Path(__file__).parent / "limited_memory.py"
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="limits the address space")


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("any words"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("MPS backend out of memory (MPS allocated: 9 GB, max allowed: 9 GB)."),
        RuntimeError("std::bad_alloc"),
        RuntimeError("could not create a primitive"),
        OSError(12, "Cannot allocate memory"),
    ],
    ids=repr,
)
def test_failed_allocations_are_told(error: Exception) -> None:
    assert out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("could not create a primitive descriptor for a convolution"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        OSError(28, "No space left on device"),
        ValueError("out of memory"),
    ],
    ids=repr,
)
def test_other_errors_are_not(error: Exception) -> None:
    assert not out_of_memory(error)


def test_parts_are_halved_and_stay_small() -> None:
    tried: list[int] = []

    def work(part: slice) -> list[int]:
        rows = list(range(23))[part]
        tried.append(len(rows))
        if len(rows) > 5:
            raise MemoryError
        return rows

    size = BatchSize(16)
    assert [row for rows in size.parts(23, work) for row in rows] == list(range(23))
    assert tried == [16, 8, 4, 4, 4, 4, 4, 3] and size.rows == 4


@pytest.mark.parametrize("error", [MemoryError, ValueError])
def test_what_halving_cannot_help_is_raised(error: type[Exception]) -> None:
    def work(rows: int) -> None:
        tried.append(rows)
        raise error

    tried: list[int] = []
    with pytest.raises(error):
        BatchSize(4).attempt(work)
    assert tried == ([4, 2, 1] if error is MemoryError else [4])


def test_curvature_is_the_same_in_smaller_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, x, y = torch.nn.Linear(4, 3), torch.randn(10, 4), torch.arange(10) % 3
    whole = Hessian(model, x, y) @ torch.ones(15)
    forward, tried = torch.nn.Linear.forward, []

    def cramped(self: torch.nn.Linear, rows: torch.Tensor) -> torch.Tensor:
        tried.append(len(rows))
        if len(rows) > 3:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return forward(self, rows)

    monkeypatch.setattr(torch.nn.Linear, "forward", cramped)
    hessian = Hessian(model, x, y, physical_batch=8)
    torch.testing.assert_close(hessian @ torch.ones(15), whole)
    assert tried == [8, 4, 2, 2, 2, 2, 2]
    torch.testing.assert_close(hessian @ torch.ones(15), whole)
    assert tried[7:] == [2] * 5, "it stays at what fitted"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of which 200 take a hundred megabytes in one layer, and a run on them."""
    folder = tmp_path_factory.mktemp("memory")
    rng = np.random.default_rng(0)
    labels = np.arange(1000) % 2
    images = rng.integers(0, 90, (1000, 64, 64), dtype=np.uint8) + 60 * labels[:, None, None]
    np.savez(folder / "scans.npz", images=images.astype(np.uint8), labels=labels)
    assert run(folder, None, "train", *TRAIN, "--out", "roomy").returncode == 0
    return folder


TRAIN = (
    "from-scratch", "--data", "scans.npz", "--model", "tanh-cnn", "--device", "cpu", "--seed", "0",
    "--set", "model.options.filters=32", "--set", "training.steps=2", "--set", "training.batch=128",
    "--set", "training.physical_batch=160", "--set", "training.views=1", "--epsilon", "8",
    "--set", "privacy.accountant='rdp'",
)  # fmt: skip


def run(folder: Path, mebibytes: int | None, *words: str) -> subprocess.CompletedProcess[str]:
    """The command, with so much more memory than it has after its start."""
    begin = ["-m", "sfumato"] if mebibytes is None else [str(LIMITED), str(mebibytes)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    return subprocess.run(
        [sys.executable, *begin, *words], cwd=folder, env=environment, capture_output=True,
        text=True, check=False,
    )  # fmt: skip


@LINUX
@pytest.mark.slow
def test_training_with_little_memory_gives_the_same_weights(place: Path) -> None:
    done = run(place, 250, "train", *TRAIN, "--out", "cramped")
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Not enough memory: going on with" in done.stdout
    for a, b in zip(
        sfumato.load(place / "roomy").parameters(),
        sfumato.load(place / "cramped").parameters(),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@LINUX
@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "few"),
    [("evaluate", ()), ("analyze", ("--only", "calibration,activations,sparsity,gradients"))],
)
def test_numbers_of_a_run_are_the_same_with_little_memory(
    place: Path, verb: str, few: tuple[str, ...]
) -> None:
    found = []
    for kind, mebibytes in (("roomy", None), ("cramped", 250)):
        (place / f"{verb}-{kind}").mkdir()
        out = Path(f"{verb}-{kind}", "evaluation.json" if verb == "evaluate" else "analysis.json")
        where = str(out.parent if verb == "evaluate" else out)
        done = run(place, mebibytes, verb, "roomy", "--device", "cpu", *few, "--out", where)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        found.append(json.loads((place / out).read_text()))
    assert int(re.findall(r"halved (\d+) times", done.stdout)[0]) > 0
    roomy, cramped = found
    assert "missing" not in cramped
    assert _numbers(cramped) == pytest.approx(_numbers(roomy), rel=1e-3, abs=1e-5)


def _numbers(content: object) -> list[float]:
    if isinstance(content, dict):
        return [number for key in sorted(content) for number in _numbers(content[key])]
    if isinstance(content, list):
        return [number for each in content for number in _numbers(each)]
    return [float(content)] if isinstance(content, int | float) else []
