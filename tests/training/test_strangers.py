"""What a file that somebody was given may and may not do, and what is rounded which way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

from sfumato import models
from sfumato.errors import UserError
from sfumato.privacy.statement import upwards
from sfumato.training.classifier import FORMAT, Description, load, save_weights
from sfumato.training.start import _same_set


def describe(model: str, **options: object) -> Description:
    return Description(model, options, ("a", "b"), 1, (4, 4), (0.5,), (0.5,), {"private": False})


@pytest.mark.parametrize("model", ["os:popen", "subprocess:getoutput", "os.path:exists"])
def test_code_that_a_weights_file_names_is_not_run(model: str, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    content = {
        "model": model, "options": {"cmd": f"touch {mark}"}, "classes": ["a", "b"], "channels": 1,
        "size": [4, 4], "mean": [0.5], "std": [0.5], "guarantee": {"private": False},
    }  # fmt: skip
    path = tmp_path / "given.safetensors"
    save_file({"x": torch.zeros(1)}, path, metadata={FORMAT: json.dumps(content)})
    with pytest.raises(UserError, match="SFUMATO_MODELS"):
        load(path)
    assert not mark.exists()


def test_own_code_is_run_from_its_folder_or_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, away = tmp_path / "here", tmp_path / "away"
    here.mkdir(), away.mkdir()
    (here / "my_own_models.py").write_text(
        "from torch import nn\n"
        "def flat(classes, channels, size):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size[0] * size[1], classes))\n"
    )
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    path = tmp_path / "own.safetensors"
    save_weights(path, network, describe("my_own_models:flat"))
    monkeypatch.chdir(away)
    with pytest.raises(UserError, match="does not lie in the folder"):
        load(path)
    monkeypatch.chdir(here)
    assert torch.equal(load(path).network[1].weight, network[1].weight)  # type: ignore[index]
    monkeypatch.chdir(away)
    monkeypatch.syspath_prepend(str(here))
    with pytest.raises(UserError, match="SFUMATO_MODELS=my_own_models"):
        load(path)
    monkeypatch.setenv("SFUMATO_MODELS", "others, my_own_models")
    assert load(path).classes == ("a", "b")


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
