"""The check of the trained model before anything is released."""

from __future__ import annotations

from pathlib import Path

import pytest
from short_runs import halves, recipe
from torch import Tensor, nn

from sfumato.errors import UserError
from sfumato.privacy.checks import spot_check
from sfumato.training import run_folder, setup
from sfumato.training.pipeline import train


class OnceTrained(nn.Module):
    """Centres the batch once its weights are not the initial ones any more."""

    def __init__(self) -> None:
        super().__init__()
        self.h = nn.Linear(64, 10)
        nn.init.constant_(self.h.weight, 0.01)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        if float((self.h.weight.detach() - 0.01).abs().max()) > 1e-4:
            x = x - x.mean(0)
        out: Tensor = self.h(x)
        return out


def test_a_model_that_mixes_once_trained_gets_no_statement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    halves(tmp_path)
    monkeypatch.setattr(spot_check, "EVERY", 10**9)
    monkeypatch.setattr(setup, "build_model", lambda *_, **__: OnceTrained())
    with pytest.raises(UserError, match="lets one example reach another"):
        train(recipe(tmp_path, "open", {}), out=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run" / run_folder.WEIGHTS).exists()
    assert not (tmp_path / "run" / run_folder.STATEMENT).exists()


def test_a_run_is_the_same_with_and_without_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    halves(tmp_path)
    found = []
    for every in (1, 10**9):
        monkeypatch.setattr(spot_check, "EVERY", every)
        out = tmp_path / str(every)
        train(recipe(tmp_path, "open", {"training.seed": 5}), out=out, device="cpu")
        found.append((out / run_folder.WEIGHTS).read_bytes())
    assert found[0] == found[1]
