"""`sfumato audit` as a user types it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from cli_result import Run, refused

from sfumato import recipes
from sfumato.privacy.noise import GaussianNoise
from sfumato.training.canary_plan import AuditSettings
from tiny_run import train_run

SHORT = ("--set", "model.options.filters=4", "--set", "training.steps=4", "--device", "cpu")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_run(tmp_path_factory.mktemp("runs") / "digits", {"training.seed": 0})


def test_a_recipe_is_trained_with_canaries(sfumato: Run, tmp_path: Path) -> None:
    result = sfumato("audit", "digits", "--canaries", 50, "--seed", 1, "-o", "run", *SHORT)
    assert result.code == 0, result
    assert "epsilon at least" in result.out + result.err and "50 canaries" in result.out
    assert json.loads((tmp_path / "run/audit.json").read_text())["result"]["canaries"] == 50
    assert (tmp_path / "run/audit.png").is_file()
    shown = sfumato("report", "run", "--out", "page.html")
    assert shown.code == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert 'id="audit"' in page and "This run was audited" in page and "run0-audit" in page


def test_the_score_that_is_taken_instead_of_the_weights_is_said(sfumato: Run) -> None:
    adam = ("--set", "optimizer.name=adam", "--canaries", 50, "--seed", 1, *SHORT)
    said = "guesses are made from the privacy loss of the released gradients"
    without = sfumato("audit", "digits", *adam, "-o", "a")
    assert without.code == 0 and said in " ".join((without.out + without.err).split()), without
    adam_recipe = recipes.find("digits").replace({"optimizer.name": "adam"})
    assert not AuditSettings(score="released").remarks(adam_recipe)
    assert not AuditSettings().remarks(recipes.find("digits"))


def test_a_bound_above_the_claim_is_exit_status_1(
    sfumato: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = GaussianNoise.add

    def little(self: GaussianNoise, total: Any, *, sensitivity: float, stream: Any) -> Any:
        return add(self, total, sensitivity=sensitivity / 100, stream=stream)

    monkeypatch.setattr(GaussianNoise, "add", little)
    result = sfumato("audit", "--seed", 1, "--score", "released", *SHORT)
    assert result.code == 1
    assert "The bound is above the claim" in result.err and "Traceback" not in result.err


@pytest.mark.usefixtures("real_pictures")
def test_a_finished_run_is_attacked(sfumato: Run, finished: Path, tmp_path: Path) -> None:
    result = sfumato("audit", finished, "--out", ".")
    assert result.code == 0, result
    for words in ("1438 training images against 359", "AUROC", "0.1 %", "not a lower bound"):
        assert words in result.out
    assert "With 359 images held out, one false alarm is 0.28 %" in result.out
    rates = [line for line in result.out.splitlines() if line.startswith("found at")]
    assert len({line.index("false alarms") for line in rates}) == 1
    found = json.loads((tmp_path / "membership.json").read_text())
    assert 0.4 < found["auroc"] < 0.6
    assert set(found["true_positive_rates"]) == {"0.001", "0.01", "0.1"}
    for rate, most in found["allowed"].items():
        assert float(rate) < most < 1
    assert (tmp_path / "membership.png").stat().st_size > 5000
    refused(sfumato("audit", finished, "--out", "."), "exists already")


def test_what_cannot_be_audited_is_a_sentence(sfumato: Run, finished: Path, tmp_path: Path) -> None:
    refused(sfumato("audit", "--canaries", 1000, *SHORT), "from 10 to 143", "a tenth of the 1438")
    refused(sfumato("audit", "--images", "cats", *SHORT), "'random' or 'mislabelled'")
    refused(sfumato("audit", finished, "--canaries", 50), "trained already", "canaries")
    refused(sfumato("audit", "no-such-recipe"), "no-such-recipe")
    assert not (tmp_path / "runs").exists()
    bare = tmp_path / "bare"
    shutil.copytree(finished, bare)
    (bare / "model.safetensors").unlink()
    refused(sfumato("audit", bare), "model.safetensors was removed")
