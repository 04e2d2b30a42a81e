"""An .npz file with MedMNIST's arrays on the command line, from training to an exported model."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import torch
from cli_result import Run

QUICK = ("--set", "training.steps=2", "--set", "training.batch=20", "--device", "cpu",
         "--model", "tanh-cnn", "--set", "model.options.filters=2")  # fmt: skip
SIZES = {"train": 120, "val": 20, "test": 30}


def write_pneumonia(path: Path) -> dict[str, np.ndarray]:
    """Grey images of 28x28 pixels of two classes, as PneumoniaMNIST has them."""
    random = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    for part, count in SIZES.items():
        arrays[f"{part}_images"] = random.integers(0, 256, (count, 28, 28), np.uint8)
        arrays[f"{part}_labels"] = (np.arange(count)[:, None] % 2).astype(np.uint8)
    np.savez(path, **arrays)
    return arrays


def test_from_an_npz_file_to_an_exported_model(sfumato: Run, tmp_path: Path) -> None:
    arrays = write_pneumonia(tmp_path / "pneumonia.npz")
    new = tmp_path / "new.npz"
    np.savez(new, images=arrays["test_images"])
    for words in (
        ("train", "pneumonia.npz", "--epsilon", 8, *QUICK, "--out", "r"),
        ("evaluate", "r", "--device", "cpu", "--out", "evaluation"),
        ("predict", "r", new, "--top", 2, "--device", "cpu", "--out", "found.csv"),
        ("export", "r", "--to", "torchscript", "--out", "model.pt"),
        ("report", "r", "--out", "page.html", "--device", "cpu"),
    ):  # fmt: skip
        done = sfumato(*words)
        assert done.code == 0, done
    ledger = Path("r/ledger.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(ledger[0])["examples"] == SIZES["train"]
    with open("found.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == SIZES["test"] and {row["class"] for row in rows} <= {"0", "1"}
    inputs = torch.from_numpy(arrays["test_images"]).float().unsqueeze(1) / 255
    exported = torch.jit.load("model.pt")(inputs)
    said = torch.tensor([float(row["probability"]) for row in rows])
    torch.testing.assert_close(exported.max(1).values, said, atol=1e-4, rtol=0)
    right = (exported.argmax(1).numpy() == arrays["test_labels"][:, 0]).mean()
    evaluation = json.loads(next(Path("evaluation").rglob("*.json")).read_text(encoding="utf-8"))
    assert abs(evaluation["accuracy"] - right) < 1e-6
    assert "pneumonia" in Path("page.html").read_text(encoding="utf-8")
