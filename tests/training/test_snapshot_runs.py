"""Snapshots of real runs."""

from __future__ import annotations

from pathlib import Path

import torch

from sfumato import recipes
from sfumato.training import snapshots
from sfumato.training.pipeline import train


def test_a_run_keeps_the_snapshots_it_is_asked_for(tmp_path: Path) -> None:
    changes = {"training.steps": 6, "training.snapshots": 3, "training.seed": 0}
    recipe = recipes.find("digits").replace({**changes, "training.epochs": None})
    train(recipe, out=tmp_path / "run", device="cpu")
    kept = snapshots.read(tmp_path / "run")
    assert [step for step, _ in kept] == [0, 3, 6]
    first, *_, last = (snapshots.tensors(path) for _, path in kept)
    assert any(not torch.equal(first[name], last[name]) for name in first)
