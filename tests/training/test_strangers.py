"""Options that a model refuses, what is rounded which way, and the names of a folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato import models
from sfumato.errors import UserError
from sfumato.privacy.statement import upwards
from sfumato.training.initial.start import _same_set


def test_a_model_that_refuses_its_options_is_a_mistake_and_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_wide_models.py").write_text(
        "from torch import nn\n"
        "def wide(classes, width=3):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(16, width), nn.Linear(width, classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    made = models.create("my_wide_models:wide", classes=2, channels=1, size=(4, 4), width=5)
    assert made[1].out_features == 5  # type: ignore[index]
    with pytest.raises(UserError, match="cannot be built with classes = 2, width = 'abc'"):
        models.create("my_wide_models:wide", classes=2, channels=1, size=(4, 4), width="abc")


@given(st.floats(1e-9, 1e9))
def test_a_stated_epsilon_is_never_below_the_spent_one(epsilon: float) -> None:
    assert epsilon <= float(upwards(epsilon)) <= epsilon * 1.00101


def test_epsilons_that_are_round_already_stay() -> None:
    assert [upwards(e) for e in (3.0, 2.999298, 0.5, 1234.5)] == ["3", "3", "0.5", "1235"]


def test_one_folder_has_many_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scans").mkdir()
    (tmp_path / "link").symlink_to("scans")
    monkeypatch.chdir(tmp_path.parent)
    below = f"{tmp_path.name}/scans"
    for other in (below, str(tmp_path / "scans"), f"{tmp_path.name}/link", "elsewhere/scans.npz"):
        assert _same_set("scans", other), "a folder is stated by its own name alone"
    monkeypatch.chdir(tmp_path)
    for other in ("scans", "./scans/", str(tmp_path / "scans"), "link", "scans.npz"):
        assert _same_set("scans", other)
    assert not _same_set("scans", "scans2") and not _same_set("mnist", "scans")
    assert _same_set("mnist", "MNIST")
