"""What is measured of a finished run besides its accuracy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from sfumato import data, recipes
from sfumato.errors import UserError
from sfumato.reproduce import measures
from sfumato.reproduce.measures import MEASURES, measure
from sfumato.training.classifier import load
from sfumato.training.pipeline import train


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = recipes.find("digits").replace(
        {
            "data.size": 16,
            "model.name": "scale-resnet9",
            "model.options": {"layout": [4, 8, 8]},
            "training.batch": 32,
            "training.steps": 3,
            "training.seed": 0,
        }
    )
    out = tmp_path_factory.mktemp("runs") / "tiny"
    train(recipe, out=out, device="cpu")
    return out


@pytest.mark.slow
def test_every_measure_gives_numbers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "_CURVED", 64)
    found = measure(tuple(MEASURES), folder, root=None, device="cpu")
    assert list(found) == [
        "activation-norm", "V_A mean", "V_A std", "V_A^S mean", "V_A^S std", "Hessian trace",
        "largest eigenvalue", "Brier score", "ECE", "near-zero parameters",
    ]  # fmt: skip
    assert all(np.isfinite(number) for number in found.values())
    assert abs(found["V_A^S mean"]) < 0.2 and abs(found["V_A^S std"] - 1) < 0.3


def test_brier_score_and_sparsity_against_their_definitions(folder: Path) -> None:
    found = measure(("calibration", "sparsity"), folder, root=None, device="cpu")
    test = data.load("digits", size=16).test
    classifier = load(folder)
    outputs = classifier.predict(torch.from_numpy(test.images)).double()
    truth = torch.nn.functional.one_hot(torch.from_numpy(test.labels), outputs.shape[1])
    assert found["Brier score"] == pytest.approx(float((outputs - truth).square().sum(1).mean()))
    sizes = torch.cat([p.detach().abs().flatten() for p in classifier.network.parameters()])
    assert found["near-zero parameters"] == pytest.approx(float((sizes <= 1e-3).float().mean()))


def test_unknown_measures_are_named() -> None:
    with pytest.raises(UserError, match=r"no measure 'curvatur'. Did you mean 'curvature'"):
        measure(("curvatur",), Path("nowhere"), root=None, device="cpu")
    assert measure((), Path("nowhere"), root=None, device="cpu") == {}
