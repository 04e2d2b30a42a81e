"""Runs of a tuning that are stopped early: when, what is kept of them, and what they count."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sfumato import recipes
from sfumato.errors import UserError
from sfumato.privacy.accounting.accountants import Step, epsilon
from sfumato.recipe import Recipe
from sfumato.report.runs import gather, together
from sfumato.training import pruning, run_folder
from sfumato.training import tune as tuning
from sfumato.training.loop import Loop
from sfumato.training.proposals import Trial, _asked, parse_choices
from sfumato.training.pruning import _Judge, accuracies
from sfumato.training.tune import sentence, tune
from tiny_run import TINY

optuna = pytest.importorskip("optuna")

CURVES = [[0.1, 0.2, 0.3, 0.4], [0.2, 0.3, 0.5, 0.7], [0.3, 0.5, 0.6, 0.8]]


def curve(values: list[float]) -> dict[int, float]:
    return {10 * k: value for k, value in enumerate(values, start=1)}


def recipe(**changes: Any) -> Recipe:
    few = {**TINY, "training.steps": 6, "training.log_every": 2, "training.checkpoint_every": 1}
    return recipes.find("digits").replace({**few, **changes})


def reference(
    pruner: Any, others: list[dict[int, float]], own: dict[int, float], planned: int
) -> int | None:
    """The step after which Optuna's own loop prunes the last of several runs."""
    study = optuna.create_study(study_name="sfumato", direction="maximize", pruner=pruner)
    ended: list[int | None] = []

    def objective(trial: Any) -> float:
        values = [*others, own][trial.number]
        for step, value in values.items():
            trial.report(value, step)
            if trial.should_prune() and step < planned:
                ended.append(step)
                raise optuna.TrialPruned
        ended.append(None)
        return values[max(values)]

    study.optimize(objective, n_trials=len(others) + 1)
    return ended[-1]


def judged(
    name: str, others: list[dict[int, float]], own: dict[int, float], planned: int
) -> int | None:
    judge, seen = _Judge(name, planned, others), {}
    for step, value in own.items():
        seen[step] = value
        if judge.stops(seen):
            return step
    return None


@pytest.mark.parametrize("own", [[0.1, 0.1, 0.1, 0.1], [0.3, 0.2, 0.2, 0.1], [0.4, 0.6, 0.7, 0.9]])
def test_runs_are_stopped_where_optuna_stops_them(own: list[float]) -> None:
    others = [curve(values) for values in (*CURVES, *CURVES)]
    median = reference(optuna.pruners.MedianPruner(), others, curve(own), 40)
    assert judged("median", others, curve(own), 40) == median
    pruner = optuna.pruners.HyperbandPruner(1, 40, 3)
    ladder = reference(pruner, others, curve(own), 40)
    assert judged("hyperband", [*map(_as_run(others), range(6))], curve(own), 40) == ladder
    if own[0] == 0.1:
        assert median is not None


def _as_run(others: list[dict[int, float]]) -> Any:
    """Cut each run where hyperband stopped it, as its metrics would be."""
    cut: list[dict[int, float]] = []
    for other in others:
        end = judged("hyperband", cut, other, 40)
        cut.append({step: value for step, value in other.items() if end is None or step <= end})
    return cut.__getitem__


def test_too_few_runs_to_compare_with_stop_none() -> None:
    assert judged("median", [curve(CURVES[2])] * 4, curve([0.0] * 4), 40) is None
    assert judged("median", [curve(CURVES[2])] * 5, curve([0.0] * 4), 40) == 10


def test_the_last_step_is_never_the_reason() -> None:
    others = [{40: 0.9}] * 6
    assert judged("median", others, {40: 0.1}, 40) is None


class _Fourth(_Judge):
    """A judge that stops every run but the first after its fourth step."""

    def __init__(self, name: str, planned: int, others: Any) -> None:
        self.first = not others

    def stops(self, own: Mapping[int, float]) -> bool:
        return not self.first and max(own) == 4


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "_Judge", _Fourth)


@pytest.mark.usefixtures("judge")
def test_a_pruned_run_is_kept_counted_and_not_run_again(tmp_path: Path) -> None:
    out, choices = tmp_path / "t", {"optimizer.lr": [2.0, 1.0, 4.0]}
    found = tune(recipe(), choices, out=out, device="cpu", pruner="median")
    assert [trial.pruned for trial in found] == [None, 4, 4]
    whole, first, _ = runs = gather([out / trial.folder for trial in found])
    assert found[1].accuracy == accuracies(out / found[1].folder)[4] and not found[1].note
    assert sum(step.count for step in first.history) == 4 and not first.finished
    assert found[1].epsilon == pytest.approx(first.spent, rel=1e-3) and first.problems == ()
    assert not list(out.glob("trial-*/secret.key")), "nothing goes on from here"

    q, sigma = float(whole.header["rate"]), float(whole.header["sigma"])
    delta = whole.recipe.privacy.delta
    taken, planned = together(runs), together(runs, planned=runs[1:])
    assert taken == pytest.approx(epsilon([Step(q, sigma, 6 + 4 + 4)], delta=delta), rel=1e-3)
    assert planned == pytest.approx(epsilon([Step(q, sigma, 18)], delta=delta), rel=1e-3)

    new: list[Trial] = []
    again = tune(recipe(), choices, out=out, device="cpu", pruner="median", after=new.append)
    assert again == found and new == []
    assert "3 runs, of which 2 were stopped early," in sentence(found, recipe())


@pytest.mark.slow
@pytest.mark.usefixtures("judge")
def test_a_kill_before_the_result_is_written_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run goes on from its checkpoint, with the same noise, to the same end."""
    out, choices = tmp_path / "t", {"optimizer.lr": [2.0, 1.0]}
    with monkeypatch.context() as patch:
        patch.setattr(tuning, "_forget_key", lambda *_: None)
        found = tune(recipe(), choices, out=out, device="cpu", pruner="median")
    assert list(out.glob("trial-*/secret.key"))
    lines = (out / "trials.jsonl").read_text().splitlines()
    (out / "trials.jsonl").write_text(lines[0] + "\n")
    ledger = out / found[1].folder / run_folder.LEDGER
    before = ledger.read_bytes()
    assert tune(recipe(), choices, out=out, device="cpu", pruner="median") == found
    assert ledger.read_bytes() == before
    assert not list(out.glob("trial-*/secret.key"))


@pytest.mark.slow
@pytest.mark.usefixtures("judge")
def test_an_interrupted_run_is_judged_by_all_of_its_accuracies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, choices = tmp_path / "t", {"optimizer.lr": [2.0, 1.0]}
    whole = tune(recipe(), choices, out=tmp_path / "whole", device="cpu", pruner="median")
    seen: list[list[int]] = []

    class Recorded(_Fourth):
        def stops(self, own: Mapping[int, float]) -> bool:
            seen.append(sorted(own))
            return super().stops(own)

    monkeypatch.setattr(pruning, "_Judge", Recorded)
    step = Loop.take_step
    interrupted = [True]

    def stop(self: Loop) -> object:
        if interrupted and self.step == 3 and "1.0" in str(self.recipe.optimizer.lr):
            interrupted.clear()
            raise KeyboardInterrupt
        return step(self)

    monkeypatch.setattr(Loop, "take_step", stop)
    with pytest.raises(KeyboardInterrupt):
        tune(recipe(), choices, out=out, device="cpu", pruner="median")
    found = tune(recipe(), choices, out=out, device="cpu", pruner="median")
    assert [trial.pruned for trial in found] == [trial.pruned for trial in whole]
    assert seen[-1] == [2, 4]


def test_results_of_a_pruned_run_are_read_back(tmp_path: Path) -> None:
    trial = Trial({"optimizer.lr": 1.0}, 0.5, 1.0, None, "trial-0", pruned=4)
    content = json.loads(json.dumps(vars(trial)))
    assert Trial.from_dict(content) == trial and not trial.whole
    older = {name: value for name, value in content.items() if name != "pruned"}
    assert Trial.from_dict(older).whole
    for pruned in (-1, 1.5, True, "4"):
        with pytest.raises(ValueError):
            Trial.from_dict(content | {"pruned": pruned})
    for folder in ("..", "", "a/b"):
        with pytest.raises(ValueError):
            Trial.from_dict(content | {"folder": folder})


def test_optuna_hears_of_pruned_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[Any] = []
    study = optuna.study.Study
    monkeypatch.setattr(study, "add_trial", lambda _, trial: added.append(trial))
    choices = parse_choices(["optimizer.lr=0.5..8.0"])
    done = [
        Trial({"optimizer.lr": 1.0}, 0.9, 3.0, None, "trial-0"),
        Trial({"optimizer.lr": 2.0}, 0.5, 1.0, None, "trial-1", pruned=4),
    ]
    _asked(choices, done, 0)
    assert [trial.state.name for trial in added] == ["COMPLETE", "PRUNED"]
    assert added[1].intermediate_values == {4: 0.5} and added[1].value is None


def test_pruners_that_there_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choices = {"optimizer.lr": [1.0]}
    with pytest.raises(UserError, match="none, median or hyperband, not 'best'"):
        tune(recipe(), choices, out=tmp_path / "t", pruner="best")
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match="Pruning needs Optuna"):
        tune(recipe(), choices, out=tmp_path / "t", pruner="median")
    assert not (tmp_path / "t").exists()
