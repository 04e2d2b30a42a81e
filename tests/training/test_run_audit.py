"""Runs with canaries: what the ledger says, what an audit finds, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from sfumato import api, recipes
from sfumato.errors import UserError
from sfumato.privacy.accounting.accountants import epsilon
from sfumato.privacy.noise import GaussianNoise
from sfumato.run import Run
from sfumato.training import run_audit, run_folder
from sfumato.training.canary_plan import SCORES, CanaryPlan
from sfumato.training.reporter import Progress, Silent
from thinning import with_slow
from tiny_run import TINY


class Crash(Silent):
    """Fails after a step, as a process does that is killed there."""

    def __init__(self, after: int) -> None:
        self._after = after

    def show(self, progress: Progress) -> None:
        if progress.step == self._after:
            raise RuntimeError("crashed")


def images(count: int) -> tuple[Any, Any]:
    """Small images of noise with labels of four classes."""
    source = np.random.default_rng(0)
    pixels = source.integers(0, 256, (count, 1, 6, 6), dtype=np.uint8)
    return pixels, np.arange(count, dtype=np.int64) % 4


def network(classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 40), nn.Tanh(), nn.Linear(40, classes))


def noise_run(out: Path, **changes: Any) -> Run:
    """An audit with 400 canaries of a small network on 5 000 images of noise."""
    given: dict[str, Any] = {
        "canaries": 400, "epsilon": 4.0, "seed": 2, "device": "cpu", "model": network,
        "training.batch": 150, "training.steps": 60, "optimizer.lr": 0.05,
        "optimizer.name": "sgd", "privacy.clip": 0.5, "data.test_fraction": 0.05,
        "optimizer.momentum": 0.0, "training.average": 0.0, "optimizer.schedule": "constant",
        "start.source": "", "training.views": 1,
    }  # fmt: skip
    given |= changes
    recipe = given.pop("recipe", "from-scratch")
    return api.audit(images(5300), recipe=recipe, out=out, **given)


def digits(out: Path, **changes: Any) -> Run:
    """An audit of a few steps on digits."""
    settings = TINY | {"training.seed": 0, "training.checkpoint_every": 2} | changes
    wanted = {k: settings.pop(k) for k in ("canaries", "images", "score") if k in settings}
    reporter = settings.pop("reporter", None)
    recipe = recipes.find("digits").replace(settings)
    return api.audit(recipe, out=out, device="cpu", reporter=reporter, **wanted)


def test_an_honest_run_is_bounded_below_its_claim(tmp_path: Path) -> None:
    run = noise_run(tmp_path / "run", score="released")
    audit, header = run.audit, run.header
    assert not run.problems and audit is not None
    assert header["canaries"]["count"] == audit.canaries == 400
    assert header["examples"] == 400 + len(run.dataset.train)
    assert run.history[0].q == 150 / header["examples"]
    assert audit.guesses == 80 and 150 < audit.included < 250
    assert audit.claim == epsilon(run.history, delta=run.recipe.privacy.delta)
    assert 0.2 * audit.claim < audit.epsilon < audit.claim and not audit.exceeds


def test_half_the_noise_in_a_run_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add = GaussianNoise.add

    def half(self: GaussianNoise, total: Any, *, sensitivity: float, stream: Any) -> Any:
        return add(self, total, sensitivity=sensitivity / 2, stream=stream)

    monkeypatch.setattr(GaussianNoise, "add", half)
    run = noise_run(tmp_path / "run", score="released")
    assert run.audit is not None and run.audit.exceeds and run.audit.p_value < 0.05
    assert "above the claim" in run.statement


@pytest.mark.parametrize("kind", with_slow([None, "random", "mislabelled"], "random"))
def test_an_interrupted_audit_goes_on_to_the_same_result(tmp_path: Path, kind: str | None) -> None:
    given = {"canaries": 40, "images": kind, "score": None if kind else "released"}
    whole = digits(tmp_path / "whole", **given)
    with pytest.raises(RuntimeError, match="crashed"):
        digits(tmp_path / "part", **given, reporter=Crash(3))
    resumed = api.resume(tmp_path / "part", device="cpu")
    assert resumed.audit == whole.audit is not None
    for name in ("model.safetensors", "audit.json", "statement.md", "ledger.jsonl"):
        assert (tmp_path / "part" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.usefixtures("real_pictures")
def test_files_and_statement_hold_the_result(tmp_path: Path) -> None:
    run = digits(tmp_path / "run")
    read = run_audit.read(run.folder)
    assert read is not None and read[0] == run.audit == run.verify().audit
    assert run.audit is not None and run.audit.canaries == 143
    assert run.audit.score == SCORES["weights"]
    assert (run.folder / run_folder.AUDIT_PICTURE).stat().st_size > 5000
    assert "143 canaries of an audit among them" in run.statement
    assert not run.notes  # The images are those of the run, without canaries.
    path = run.folder / run_folder.GUARANTEE
    content = json.loads(path.read_text())
    del content["audit"], content["canaries"]
    path.write_text(json.dumps(content))
    assert any("another audit" in problem for problem in Run(run.folder).problems)
    (run.folder / run_folder.AUDIT).write_text("{}")
    with pytest.raises(UserError, match="cannot be read"):
        run_audit.read(run.folder)


def test_an_ordinary_run_says_nothing_of_audits(tmp_path: Path) -> None:
    recipe = recipes.find("digits").replace(TINY | {"training.seed": 0})
    run = api.train(recipe, out=tmp_path / "run", device="cpu")
    assert run.audit is None and "canaries" not in run.header
    assert "audit" not in json.loads((run.folder / run_folder.GUARANTEE).read_text())
    assert run_audit.read(run.folder) is None


def test_optimizers_that_are_not_linear_are_scored_by_released_gradients(tmp_path: Path) -> None:
    run = digits(tmp_path / "run", **{"optimizer.name": "adam", "optimizer.lr": 0.01})
    assert run.audit is not None and run.audit.score == SCORES["released"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"canaries": 144}, "from 10 to 143 .*a tenth of the 1438 training images"),
        ({"canaries": 3}, "from 10 to 143"),
        ({"canaries": 40, "images": "cats"}, "'random' or 'mislabelled'"),
        ({"images": "random", "score": "weights"}, "scored by their loss"),
        ({"score": "luck"}, "'weights' or 'released'"),
        ({"score": "weights", "optimizer.name": "adam"}, "not linear.*'released'"),
        ({"score": "weights", "optimizer.weight_decay": 0.1}, "decay the weights"),
        ({"privacy.enabled": False}, "claims nothing"),
    ],
)
def test_what_cannot_be_audited_is_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        digits(tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


def test_too_few_images_are_refused(tmp_path: Path) -> None:
    given: dict[str, Any] = {"model": network, "recipe": "from-scratch", "delta": 1e-4}
    with pytest.raises(UserError, match=r"at most [1-9] canaries \(a tenth of the"):
        api.audit(images(99), out=tmp_path / "run", device="cpu", **given)


def test_a_plan_in_a_ledger_is_read_strictly() -> None:
    plan = CanaryPlan(50, "gradient", "weights", "ab" * 32)
    assert CanaryPlan.of(plan.header) == plan
    assert CanaryPlan.of({}) is None
    damaged: list[Callable[[dict[str, Any]], Any]] = [
        lambda c: c.pop("key"), lambda c: c.update(key="zz"), lambda c: c.update(count="50"),
        lambda c: c.update(kind="cats"), lambda c: c.update(more=1),
    ]  # fmt: skip
    for damage in damaged:
        header = plan.header
        damage(header["canaries"])
        with pytest.raises(UserError, match="canaries that cannot be read"):
            CanaryPlan.of(header)


def test_canaries_stand_for_units_of_several_images(tmp_path: Path) -> None:
    pixels, labels = images(1800)
    given: dict[str, Any] = {
        "epsilon": 4.0, "seed": 2, "device": "cpu", "model": network, "recipe": "from-scratch",
        "training.batch": 60, "training.steps": 6, "data.unit": "patient", "data.per_unit": 2,
        "start.source": "", "training.views": 1,
    }  # fmt: skip
    data = pixels, labels, np.arange(1800) // 3
    run = api.audit(data, canaries=40, out=tmp_path / "run", **given)
    assert not run.problems and run.audit is not None and run.audit.canaries == 40
    assert run.header["examples"] == 40 + run.dataset.train.examples
    assert run.guarantee is not None and run.guarantee.unit == "patient"
    with pytest.raises(UserError, match="An image canary stands for a unit of one image"):
        api.audit(data, canaries=40, images="random", out=tmp_path / "other", **given)
