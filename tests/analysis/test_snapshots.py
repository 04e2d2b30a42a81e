"""Snapshots: which steps, what is on disk, and that nothing is written twice."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sfumato.errors import UserError
from sfumato.recipe import from_dict
from sfumato.training import snapshots


@given(steps=st.integers(1, 3000), count=st.integers(2, 60))
def test_due_steps_are_evenly_spaced_with_both_ends(steps: int, count: int) -> None:
    due = [step for step in range(steps + 1) if snapshots.due(step, steps, count)]
    assert due[0] == 0 and due[-1] == steps
    assert len(due) == min(count, steps + 1)
    gaps = {b - a for a, b in pairwise(due)}
    assert max(gaps) - min(gaps) <= 1


def test_no_snapshots_one_and_steps_outside() -> None:
    assert not any(snapshots.due(step, 10, 0) for step in range(11))
    assert [step for step in range(11) if snapshots.due(step, 10, 1)] == [10]
    assert not snapshots.due(11, 10, 5) and not snapshots.due(-1, 10, 5)


def test_keep_writes_whole_files_once(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    for step in range(5):
        with torch.no_grad():
            model.weight.fill_(step)
        snapshots.keep(tmp_path, model, step, 4, 3)
    found = snapshots.read(tmp_path)
    assert [step for step, _ in found] == [0, 2, 4]
    assert [path.name for _, path in found][1] == "step-0000002.safetensors"
    assert snapshots.tensors(found[1][1])["weight"].eq(2).all()
    before = found[1][1].read_bytes(), found[1][1].stat().st_mtime_ns
    left = tmp_path / "snapshots" / ".step-0000003.safetensors.abcdefgh"
    left.write_bytes(b"torn by a kill")
    with torch.no_grad():
        model.weight.fill_(9)
    snapshots.keep(tmp_path, model, 2, 4, 3)
    assert (found[1][1].read_bytes(), found[1][1].stat().st_mtime_ns) == before
    snapshots.write(tmp_path, 3, model.state_dict())
    assert not left.exists() and len(snapshots.read(tmp_path)) == 4
    again = tmp_path / "again"
    again.mkdir()
    snapshots.write(again, 3, model.state_dict())
    mine, theirs = (
        folder / "snapshots" / "step-0000003.safetensors" for folder in (tmp_path, again)
    )
    assert mine.read_bytes() == theirs.read_bytes(), "equal weights are equal bytes"


def test_reading_nothing_and_something_broken(tmp_path: Path) -> None:
    assert snapshots.read(tmp_path) == []
    where = tmp_path / "snapshots"
    where.mkdir()
    (where / "step-0000001.safetensors").write_bytes(b"no")
    (where / "step-x.safetensors").write_bytes(b"no")
    assert [step for step, _ in snapshots.read(tmp_path)] == [1]
    with pytest.raises(UserError, match="cannot be read"):
        snapshots.tensors(where / "step-0000001.safetensors")


def test_the_setting_is_checked_like_its_neighbours() -> None:
    assert from_dict({"training": {"snapshots": 12}}).training.snapshots == 12
    for wrong in (-1, 2.5, "many"):
        with pytest.raises(UserError, match=r"training\.snapshots"):
            from_dict({"training": {"snapshots": wrong}})
