"""`budget` and `plan` count the training images, or the units, of a folder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cli_result import Run, refused
from PIL import Image

from sfumato.data import load


@pytest.fixture
def scans(sfumato: Run) -> Path:
    """Forty images of ten patients in two classes."""
    drawn = np.random.default_rng(0)
    for number in range(40):
        folder = Path("scans", "ill" if number % 2 else "well", f"P{number % 10}")
        folder.mkdir(parents=True, exist_ok=True)
        pixels = drawn.integers(0, 255, (4, 4)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return Path("scans")


def count(sfumato: Run, *words: object) -> int:
    asked = ("--batch", 2, "--steps", 5, "--noise", 2, "--delta", 1e-4, "--json")
    result = sfumato("budget", *words, *asked)
    assert result.code == 0, result.err
    return int(json.loads(result.out)["examples"])


def test_the_examples_are_those_of_a_run(sfumato: Run, scans: Path) -> None:
    assert count(sfumato, "--data", scans) == len(load(scans, cache=False).train)
    units = load(scans, unit="patient", cache=False).train.units
    assert units is not None
    assert count(sfumato, "--data", scans, "--unit", "patient") == len(np.unique(units))
    np.savez("set.npz", images=np.zeros((50, 4, 4), np.uint8), labels=np.arange(50) % 2)
    assert count(sfumato, "--data", "set.npz") == len(load("set.npz", cache=False).train)
    planned = sfumato("plan", "--epsilon", 3, "--data", scans, "--delta", 1e-4,
                      "--batch", 2, "--steps", 5)  # fmt: skip
    assert planned.code == 0 and "images to train on" in planned.err


def test_data_that_are_not_there(sfumato: Run) -> None:
    refused(sfumato("plan", "--epsilon", 3, "--data", "./scans"), "scans")
    refused(sfumato("plan", "--epsilon", 3, "--data", "cifar1"), "cifar10", "--examples")
