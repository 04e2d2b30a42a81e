"""Phases of a run: what is trained when, and what must stay as it is."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import sfumato
from sfumato import recipes
from sfumato.analysis.overview import Effort, analyze
from sfumato.errors import UserError
from sfumato.privacy import ledger, per_example
from sfumato.privacy.checks.compiled_pass import compiled_pass
from sfumato.privacy.checks.engine_choice import choose_engine
from sfumato.privacy.engines.objective import Objective
from sfumato.privacy.mechanism import PrivateGradients
from sfumato.recipe import Recipe
from sfumato.settings import Phase
from sfumato.training import metrics, phases, run_folder, snapshots
from sfumato.training.pipeline import resume, train
from sfumato.training.reporter import Progress, Silent
from thinning import with_slow
from tiny_run import TINY
from uncompiled import run_without_code

HEAD = ("head.weight", "head.bias")
BODY = ("conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias")
STEPS = 7
TURNS: list[dict[str, Any]] = [
    {"steps": 2, "train": ["head"], "lr": 0.05},
    {"steps": 2, "train": ["conv*"]},
    {},
]
"""The head, all but the head, everything."""

WHEN = {1: HEAD, 2: HEAD, 3: BODY, 4: BODY, 5: BODY + HEAD, 6: BODY + HEAD, 7: BODY + HEAD}
"""The parameters that each step trains."""


def recipe(**changes: Any) -> Recipe:
    """Seven steps in three phases, with an optimizer that would move whatever it is given."""
    settings = TINY | {
        "training.epochs": None, "training.steps": STEPS, "training.seed": 0,
        "training.log_every": 1, "training.phases": TURNS, "privacy.accountant": "rdp",
        "privacy.noise_multiplier": 4.0, "privacy.epsilon": 90.0, "optimizer.name": "adamw",
        "optimizer.lr": 0.01, "optimizer.weight_decay": 0.1, "training.checkpoint_every": 1,
    }  # fmt: skip
    dotted = {name.replace("__", "."): value for name, value in changes.items()}
    return recipes.find("digits").replace(settings | dotted)


def course(folder: Path) -> list[dict[str, Tensor]]:
    """The parameters after every step, those before the first at position 0."""
    return [snapshots.tensors(path) for _, path in snapshots.read(folder)]


class Crash(Silent):
    """Fails after a step, as a process does that is killed there."""

    def __init__(self, after: int) -> None:
        self._after = after

    def show(self, progress: Progress) -> None:
        if progress.step == self._after:
            raise RuntimeError("crashed")


@dataclass
class Seen:
    """What was seen of a run while it was trained.

    Attributes:
        folder: Its folder.
        released: The parameters that had a gradient after the release of each step.
        groups: The number of parameters that the clipping rule was for.
        checked: The events in the ledger when each set of parameters was first checked.
    """

    folder: Path
    released: dict[int, set[str]] = field(default_factory=dict)
    groups: dict[int, int] = field(default_factory=dict)
    checked: dict[frozenset[str], int] = field(default_factory=dict)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """A run with a snapshot of every step, averages, and a clipping rule with a state."""
    found = Seen(tmp_path_factory.mktemp("phases") / "run")
    release = PrivateGradients.release

    def released(self: PrivateGradients, **more: Any) -> Any:
        found.groups[self.released + 1] = len(self.clipping.groups)  # type: ignore[attr-defined]
        statistics = release(self, **more)
        named = self.per_example.model.named_parameters()
        found.released[self.released] = {name for name, p in named if p.grad is not None}
        return statistics

    def chosen(objective: Objective, *args: Any, **more: Any) -> Any:
        _, events = ledger.read(found.folder / run_folder.LEDGER)
        found.checked.setdefault(frozenset(objective.trainable), len(events))
        return choose_engine(objective, *args, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PrivateGradients, "release", released)
        patch.setattr(per_example, "choose_engine", chosen)
        train(with_state(), out=found.folder, device="cpu")
    return found


@pytest.fixture(scope="module")
def whole(seen: Seen) -> Path:
    """The folder of that run."""
    return seen.folder


def with_state() -> Recipe:
    return recipe(
        training__snapshots=STEPS + 1, training__average=0.9,
        privacy__clipping="adaptive-per-layer",
    )  # fmt: skip


def test_only_the_parameters_of_a_phase_move(whole: Path) -> None:
    """Neither noise nor momentum nor weight decay reaches what a phase does not train."""
    weights = course(whole)
    assert len(weights) == STEPS + 1 and set(weights[0]) == {*HEAD, *BODY}
    for step in range(1, STEPS + 1):
        before, after = weights[step - 1], weights[step]
        moved = {name for name in after if not torch.equal(before[name], after[name])}
        assert moved == {*WHEN[step]}, step


def test_every_release_is_of_the_parameters_of_its_phase(seen: Seen) -> None:
    assert seen.released == {step: {*names} for step, names in WHEN.items()}
    assert seen.groups == {step: len(names) for step, names in WHEN.items()}
    _, steps = ledger.read(seen.folder / run_folder.LEDGER)
    assert len(steps) == STEPS and len({(s.q, s.noise_multiplier) for s in steps}) == 1


def test_every_phase_is_checked_before_its_first_release(seen: Seen) -> None:
    wanted = {frozenset(HEAD): 0, frozenset(BODY): 2, frozenset(HEAD + BODY): 4}
    assert seen.checked == wanted


def test_the_first_phase_is_a_run_that_trains_nothing_else(tmp_path: Path, whole: Path) -> None:
    alone = with_state().replace(
        {"training.phases": None, "start.train": ["head"], "optimizer.lr": 0.05}
    )
    wanted = course(train(alone, out=tmp_path / "alone", device="cpu"))
    for mine, other in zip(course(whole)[:3], wanted[:3], strict=True):
        assert all(torch.equal(tensor, other[name]) for name, tensor in mine.items())


@pytest.mark.parametrize("after", with_slow([1, 2, 3, 4, 6], 1, 3, 4, 6))
def test_a_run_goes_on_before_at_and_after_a_change(
    after: int, whole: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    with pytest.raises(RuntimeError, match="crashed"):
        train(with_state(), out=folder, device="cpu", reporter=Crash(after))
    resume(folder, device="cpu")
    for name in (run_folder.WEIGHTS, run_folder.LEDGER, run_folder.STATEMENT, run_folder.METRICS):
        assert (folder / name).read_bytes() == (whole / name).read_bytes(), name
    last = f"step-{STEPS:07d}.safetensors"
    mine, other = (load_file(f / run_folder.CHECKPOINTS / last) for f in (folder, whole))
    assert mine.keys() == other.keys()
    assert all(torch.equal(tensor, other[name]) for name, tensor in mine.items())


@pytest.mark.slow
def test_a_run_that_crashed_at_its_end_is_checked_as_it_was_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left to do but the check of the last weights, and the release."""
    folder, seen = tmp_path / "run", []
    turns = [{"share": 0.5, "train": ["head"]}, {"train": ["conv1"]}]
    with pytest.raises(RuntimeError, match="crashed"):
        train(recipe(training__phases=turns), out=folder, device="cpu", reporter=Crash(STEPS))
    check = PrivateGradients.check

    def spied(self: PrivateGradients, x: Tensor, y: Tensor) -> None:
        seen.append(set(self.per_example.trainable))
        check(self, x, y)

    monkeypatch.setattr(PrivateGradients, "check", spied)
    resume(folder, device="cpu")
    assert seen == [{"conv1.weight", "conv1.bias"}]
    start = sfumato.open(folder).guarantee.start  # type: ignore[union-attr]
    assert "Only conv1.weight, conv1.bias, head.weight, head.bias were trained" in start


@pytest.mark.slow
def test_physical_batches_change_nothing(tmp_path: Path, whole: Path) -> None:
    small = with_state().replace({"training.physical_batch": 7})
    folder = train(small, out=tmp_path / "small", device="cpu")
    for name, tensor in course(folder)[-1].items():
        torch.testing.assert_close(tensor, course(whole)[-1][name], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_rates_are_one_schedule_times_that_of_the_phase(tmp_path: Path, whole: Path) -> None:
    lrs = [r["lr"] for r in metrics.read(whole / run_folder.METRICS) if "lr" in r]
    assert lrs == [0.05] * 2 + [0.01] * 5
    linear = recipe(optimizer__schedule="linear", privacy__clip=2.0, training__phases=[
        {"steps": 4, "train": ["head"], "lr": 0.1, "clip": 0.5}, {}
    ])  # fmt: skip
    folder = train(linear, out=tmp_path / "run", device="cpu")
    found = [r for r in metrics.read(folder / run_folder.METRICS) if "lr" in r]
    rates = [(0.1 if step < 4 else 0.01) * (1 - step / STEPS) for step in range(STEPS)]
    assert [r["lr"] for r in found] == pytest.approx(rates)
    assert [r["clip"] for r in found] == [0.5] * 4 + [2.0] * 3
    g = sfumato.open(folder).guarantee
    assert g is not None and g.clip == 0.5
    assert "C = 0.5 in steps 1 to 4; " in g.clipping and "C = 2 in steps 5 to 7" in g.clipping


class Sly(nn.Module):
    """Mixes examples as soon as its first layer is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(64, 8), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x.flatten(1)).tanh()
        if self.first.weight.requires_grad and self.training:
            h = h + h.mean(0)
        return self.head(h)  # type: ignore[no-any-return]


def test_mixing_that_begins_with_a_phase_is_refused_there(tmp_path: Path) -> None:
    """What no step with the head alone shows, and what is not released."""
    turns = [{"steps": 2, "train": ["head"]}, {}]
    settings = {"training.batch": 64, "training.steps": 4, "training.phases": turns}
    folder = tmp_path / "run"
    with pytest.raises(UserError, match="cannot be trained with differential privacy"):
        sfumato.train("digits", model=Sly(), out=folder, device="cpu", **settings)
    assert len(ledger.read(folder / run_folder.LEDGER)[1]) == 2


class Own(nn.Module):
    """A network with a part that its author froze."""

    def __init__(self) -> None:
        super().__init__()
        self.fixed, self.end = nn.Linear(64, 16), nn.Sequential()
        self.end.add_module("norm", nn.LayerNorm(16))
        self.end.add_module("head", nn.Linear(16, 10))
        self.fixed.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.fixed(x.flatten(1)).tanh())  # type: ignore[no-any-return]


def test_an_own_module_has_its_fixed_layers_run_once_in_all_phases(tmp_path: Path) -> None:
    given, said = Own(), []
    initial = {name: p.detach().clone() for name, p in given.named_parameters()}

    class Listening(Silent):
        def say(self, text: str) -> None:
            said.append(text)

    run = sfumato.train(
        "digits", model=given, out=tmp_path / "run", device="cpu", reporter=Listening(),
        **{"training.batch": 64, "training.steps": 4, "training.snapshots": 5,
           "training.phases": [{"share": 0.5, "train": ["*.head"], "lr": 0.5}, {}]},
    )  # fmt: skip
    assert any("Fixed layers run once" in text for text in said)
    assert "The next phase trains everything in steps 3 to 4, learning rate 2." in said
    weights = course(run.folder)
    head = ("end.head.weight", "end.head.bias")
    for step, names in ((1, head), (2, head), (3, (*head, "end.norm.weight", "end.norm.bias"))):
        pairs = zip(weights[step - 1].items(), weights[step].values(), strict=True)
        assert {name for (name, a), b in pairs if not torch.equal(a, b)} == {*names}
    assert torch.equal(weights[-1]["fixed.weight"], initial["fixed.weight"])


def test_runs_without_privacy_have_phases(tmp_path: Path) -> None:
    chosen = recipe(
        privacy__enabled=False, privacy__noise_multiplier=None, training__snapshots=STEPS + 1
    )
    weights = course(train(chosen, out=tmp_path / "run", device="cpu"))
    pairs = zip(weights[1].items(), weights[2].values(), strict=True)
    assert {name for (name, a), b in pairs if not torch.equal(a, b)} == {*HEAD}


def test_files_say_what_was_trained_when(whole: Path, tmp_path: Path) -> None:
    run = sfumato.open(whole)
    assert run.problems == () and run.guarantee is not None and run.guarantee.start == ""
    assert run.guarantee.phases == (
        "only head in steps 1 to 2, learning rate 0.05",
        "only conv* in steps 3 to 4, learning rate 0.01",
        "everything in steps 5 to 7, learning rate 0.01",
    )
    row = "| trained | only head in steps 1 to 2, learning rate 0.05; only conv"
    assert row in (whole / run_folder.STATEMENT).read_text()
    edited = Path(shutil.copytree(whole, tmp_path / "edited"))
    path = edited / run_folder.GUARANTEE
    path.write_text(path.read_text().replace("only head in steps 1", "only tail in steps 1"))
    assert any("phases" in problem for problem in sfumato.open(edited).problems)


def test_gradients_of_a_snapshot_are_those_of_the_step_after_it(whole: Path) -> None:
    run = sfumato.open(whole)
    found = analyze(run, parts=("gradients",), effort=Effort(examples=32))
    layers = [{layer.name for layer in g.layers} for _, g in found.course["gradients"]]
    assert layers[:2] == [{"head"}] * 2 and layers[2:4] == [{"conv1", "conv2"}] * 2
    assert layers[4:] == [{"conv1", "conv2", "head"}] * 4
    assert all(p.requires_grad for p in run.network.parameters())


# Steps and parameters


def lengths(steps: int, *settings: Phase) -> list[int]:
    return [len(span) for span in phases.spans(settings, steps)]


def test_the_last_phase_takes_the_steps_that_are_left() -> None:
    assert lengths(10, Phase(share=0.2), Phase()) == [2, 8]
    assert lengths(10, Phase(steps=3), Phase(share=0.25), Phase()) == [3, 2, 5]
    assert lengths(100, Phase(share=0.001), Phase()) == [1, 99], "no phase is empty"
    assert phases.spans([Phase(steps=3), Phase()], 4) == [range(1, 4), range(4, 5)]
    with pytest.raises(UserError, match=r"10 steps before the last phase, and the run has 10"):
        lengths(10, Phase(steps=10), Phase())


def test_each_step_has_the_settings_of_its_phase() -> None:
    turns = [{"steps": 2, "train": ["*.norm"], "lr": 3.0, "clip": 0.5}, {}]
    model = Own()
    found = phases.Phases(recipe(training__phases=turns), model, 4)
    assert [found.at(step).optimizer.lr for step in range(1, 5)] == [3.0, 3.0, 0.01, 0.01]
    assert [found.at(step).clip for step in range(1, 5)] == [0.5, 0.5, 1.0, 1.0]
    both = recipe(training__phases=[{"steps": 2, "clip": 0.5}, {"clip": 0.5}])
    assert found.sets_clip and phases.Phases(both, model, 4).sets_clip
    assert [found.begins(step) for step in range(1, 5)] == [False, False, True, False]
    assert [found.enter(step) for step in (1, 2, 3, 4, 2)] == [True, False, True, False, True]
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert trained == ["end.norm.weight", "end.norm.bias"]
    alone = phases.Phases(recipe(training__phases=None), Own(), 4)
    assert not alone.sets_clip
    assert not any(alone.enter(step) or alone.begins(step) for step in range(1, 5))


def test_what_no_phase_trains_is_frozen() -> None:
    model = Own()
    turns = [{"steps": 1, "train": ["*.norm"]}, {"train": ["*.norm.bias"]}]
    phases.freeze(model, recipe(training__phases=turns))
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert trained == ["end.norm.weight", "end.norm.bias"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"training.phases": [{"steps": 2, "train": ["haed"]}, {}]},
         r"'haed' in phase 1 of training\.phases matches no parameter.*'head'"),
        ({"training.phases": [{"steps": 2, "train": ["conv1"]}, {}], "start.train": ["head"]},
         r"'conv1' in phase 1 .*frozen in the whole run, by start\.train"),
        ({"training.phases": [{"steps": 7}, {}]}, r"7 steps before the last .* the run has 7"),
        ({"privacy.clipping": "group-wise", "privacy.groups": ["conv1.*"]},
         r"matches 'conv1\.\*'.*\(In phase 1 of training\.phases\.\)"),
        ({"training.phases": [{"steps": 2, "train": ["head"]}, {"train": ["conv1"]}],
          "start.zero": ["conv2"]}, r"training\.phases freeze it"),
    ],
)  # fmt: skip
def test_phases_that_do_not_fit_the_model_are_refused_before_anything_is_written(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=words):
        train(recipe().replace(changes), out=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_gradient_canaries_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="audit with images as canaries"):
        sfumato.audit(recipe(), out=tmp_path / "run", device="cpu")


def test_a_rate_that_is_too_high_is_named(tmp_path: Path) -> None:
    chosen = recipe(training__diverged=1e-3)
    with pytest.raises(UserError, match=r"\(lr = 0\.05 in phase 1 of training\.phases\)"):
        train(chosen, out=tmp_path / "run", device="cpu")


def test_an_optimizer_goes_on_where_it_was(whole: Path) -> None:
    """AdamW counts the steps of each parameter: five of the body's and five of the head's."""
    last = load_file(whole / run_folder.CHECKPOINTS / f"step-{STEPS:07d}.safetensors")
    counts = [int(last[f"optimizer/{i}/step"]) for i in range(len(HEAD + BODY))]
    assert counts == [5] * len(BODY) + [5] * len(HEAD)


@pytest.mark.slow
def test_a_pass_is_compiled_once_for_each_phase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_without_code(monkeypatch)
    compiled: list[set[str]] = []

    def counted(engine: Any, *args: Any) -> Any:
        found = compiled_pass(engine, *args)
        assert not isinstance(found, str), found
        compiled.append(set(engine.objective.trainable))
        return found

    monkeypatch.setattr(per_example, "compiled_pass", counted)
    monkeypatch.setattr(per_example.PerExample, "precision_for", lambda *_: torch.float32)
    chosen = recipe(training__physical_batch=32, training__snapshots=STEPS + 1)
    weights = course(train(chosen, out=tmp_path / "run", device="cpu"))
    assert compiled == [{*HEAD}, {*BODY}, {*HEAD, *BODY}]
    for step in range(1, STEPS + 1):
        pairs = zip(weights[step - 1].items(), weights[step].values(), strict=True)
        assert {name for (name, a), b in pairs if not torch.equal(a, b)} == {*WHEN[step]}
