"""The training methods through the loop: schedules, averages, views, clipping, noise plans."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sfumato import data as datasets
from sfumato.api import resume, train
from sfumato.data import Augment, Views
from sfumato.errors import UserError
from sfumato.privacy import Randomness, ledger
from sfumato.privacy.accounting import accountants
from sfumato.privacy.checks import memory_format
from sfumato.privacy.clipping import GroupWise
from sfumato.privacy.ledger import Ledger
from sfumato.recipe import Recipe, from_dict
from sfumato.settings import Optimizer
from sfumato.training import checkpoint, run_folder, schedules, setup, trouble
from sfumato.training.averaging import Average
from sfumato.training.classifier import load
from sfumato.training.interrupt import StopRequest
from sfumato.training.loop import Loop, Stopped
from sfumato.training.metrics import Metrics
from sfumato.training.reporter import Silent
from thinning import with_slow

BASE: dict[str, Any] = {
    "model": {"options": {"filters": 3}},
    "training": {"seed": 3, "batch": 100, "steps": 6, "log_every": 2, "physical_batch": 64},
}


def recipe(**changes: Any) -> Recipe:
    dotted = {name.replace("__", "."): value for name, value in changes.items()}
    return from_dict(BASE).replace(dotted)


def loop(chosen: Recipe, folder: Path) -> Loop:
    """A loop that is ready for its first step."""
    data = datasets.load(chosen.data.name, validation=chosen.data.validation)
    plan = setup.plan(chosen, len(data.train))
    randomness = Randomness.from_seed(chosen.training.seed or 0)
    model = setup.build_model(chosen, data, randomness)
    (folder / run_folder.CHECKPOINTS).mkdir(parents=True)
    return Loop(
        chosen, plan, data, model, torch.device("cpu"), randomness,
        Ledger.create(folder / run_folder.LEDGER, {}), Metrics(folder / run_folder.METRICS), folder,
        chosen.training.physical_batch or 64, Silent(),
    )  # fmt: skip


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / run_folder.METRICS).read_text().splitlines()]


def weights(folder: Path) -> dict[str, Tensor]:
    return {n: p.detach() for n, p in load(folder).network.named_parameters()}


# Learning rates


def rates(steps: int, **settings: Any) -> list[float]:
    s = Optimizer(lr=1.0, **settings)
    return [schedules.learning_rate(s, i, steps, epoch=4) for i in range(1, steps + 1)]


def test_schedules_equal_those_computed_by_hand() -> None:
    assert rates(3) == [1, 1, 1]
    assert rates(4, schedule="linear") == [1, 0.75, 0.5, 0.25]
    assert rates(2, schedule="cosine") == pytest.approx([1, 0.5])
    assert rates(4, warmup=2) == [0.5, 1, 1, 1]
    every_epoch = rates(12, schedule="step", decay=0.7)
    assert every_epoch == pytest.approx([1] * 4 + [0.7] * 4 + [0.49] * 4)
    every_five = rates(41, schedule="step", decay=0.9, decay_epochs=5.0)
    assert (every_five[19], every_five[20], every_five[40]) == pytest.approx((1, 0.9, 0.81))
    assert rates(5, schedule="step", decay=0.1, decay_steps=2) == pytest.approx(
        [1, 1, 0.1, 0.1, 0.01]
    )


def test_the_rate_follows_the_noise() -> None:
    unset, told = Optimizer(lr=2.0), Optimizer(lr=2.0, effective_noise=0.0025)
    assert schedules.noise_scale(unset, 0.01) == 1
    assert schedules.noise_scale(told, 0.0025) == 1
    assert schedules.noise_scale(told, 0.01) == pytest.approx(0.5)
    as_the_noise = Optimizer(lr=2.0, effective_noise=0.0025, noise_power=1.0)
    assert schedules.noise_scale(as_the_noise, 0.01) == pytest.approx(0.25)
    assert schedules.noise_scale(told, 0.0) == 1, "without privacy there is no noise to follow"


@pytest.mark.parametrize("decay", with_slow([1.0, 3.0], 1.0))
def test_a_run_takes_the_rate_for_the_noise_of_each_step(decay: float, tmp_path: Path) -> None:
    chosen = recipe(
        optimizer__lr=2.0, optimizer__effective_noise=0.01, privacy__noise_decay=decay,
        privacy__accountant="rdp", training__log_every=1,
    )  # fmt: skip
    train(chosen, out=tmp_path / "r", device="cpu")
    plan = setup.plan(chosen, len(datasets.load("digits").train))
    taken = [record["lr"] for record in records(tmp_path / "r") if "lr" in record]
    sigmas = [plan.noise_at(step).multiplier for step in range(1, 7)]
    assert taken == pytest.approx([2 * math.sqrt(0.01 * 100 / sigma) for sigma in sigmas])
    assert (taken[-1] > taken[0] * 1.5) == (decay > 1)


def test_a_plateau_lowers_the_rate_and_early_stopping_ends() -> None:
    watch = schedules.Watch(patience=4, stop_after=10, factor=0.5)
    for step, result in [(2, 0.5), (4, 0.6), (6, 0.6), (8, 0.59)]:
        watch.see(step, result)
    assert (watch.best, watch.best_step, watch.scale, watch.stopped) == (0.6, 4, 0.5, False)
    watch.see(10, math.nan)
    assert watch.scale == 0.5
    watch.see(12, 0.6)
    assert watch.scale == 0.25
    other = schedules.Watch(patience=4, stop_after=10)
    other.load(json.loads(json.dumps(watch.state())))
    for w in (watch, other):
        w.see(14, 0.1)
        assert w.stopped and w.scale == 0.25
    low = schedules.Watch(patience=1, higher=False)
    low.see(1, 2.0)
    low.see(2, 1.0)
    assert (low.best, low.scale) == (1.0, 1.0)


def test_a_run_reduces_its_rate_and_stops_on_a_plateau(tmp_path: Path) -> None:
    chosen = recipe(
        data__validation=0.2,
        optimizer__schedule="plateau",
        optimizer__patience=0.1,
        optimizer__lr=1e-9,
        training__early_stop=0.4,
        training__steps=40,
        training__diverged=50.0,
    )
    result = train(chosen, out=tmp_path / "r", device="cpu")
    assert 2 < result.steps < 40
    spent = records(tmp_path / "r")
    assert spent[-2]["lr"] < 1e-9
    # When to stop was decided by looking at the weights: only the whole plan's epsilon holds.
    assert spent[-2]["epsilon"] < spent[-1]["epsilon"] == pytest.approx(result.epsilon["pld"])
    assert len(ledger.read(tmp_path / "r" / run_folder.LEDGER)[1]) == 40
    said = (tmp_path / "r" / run_folder.STATEMENT).read_text()
    assert f"| steps | {result.steps}, counted as all 40 that were planned |" in said
    for words in ("The learning rate, which fell", "The moment training ended", "given up"):
        assert words in said.split("## Not covered")[1]


@pytest.mark.parametrize(
    "changes", [{"optimizer__schedule": "plateau"}, {"training__early_stop": 2.0}]
)
def test_nothing_watches_the_training_images(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no validation images.*data.validation"):
        train(recipe(**changes), out=tmp_path / "r", device="cpu")
    assert not (tmp_path / "r").exists()


def test_a_diverged_run_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Training diverged: the mean loss of step 1"):
        train(recipe(training__diverged=0.1), out=tmp_path / "r", device="cpu")


def test_a_hopeless_loss_is_said_once(tmp_path: Path) -> None:
    class Listener(Silent):
        heard: list[str] = []  # noqa: RUF012

        def say(self, message: str) -> None:
            self.heard.append(message)

    train(recipe(optimizer__lr=1e9), out=tmp_path / "r", device="cpu", reporter=Listener())
    assert sum("nothing is learnt" in message for message in Listener.heard) == 1


# Averages


def test_averages_equal_those_computed_by_hand() -> None:
    model = nn.Linear(1, 1, bias=False)
    values = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0]

    def averaged(average: Average) -> list[float]:
        seen = []
        for step, value in enumerate(values, 1):
            nn.init.constant_(model.weight, value)
            average.update(model, step)
            seen.append(float(average.tensors["weight"]))
        return seen

    tail = averaged(Average(model, 0.5, kind="tail", steps=8))
    assert tail[:4] == values[:4]
    assert tail[4:] == pytest.approx([5, 7, 16 / 3, 5.5])
    nn.init.constant_(model.weight, 0.0)
    ema = averaged(Average(model, 0.5))
    by_hand, decays = 0.0, [2 / 11, 3 / 12, 4 / 13, 5 / 14, 6 / 15, 7 / 16, 8 / 17, 0.5]
    for value, decay, got in zip(values, decays, ema, strict=True):
        by_hand = decay * by_hand + (1 - decay) * value
        assert got == pytest.approx(by_hand, rel=1e-5)


@pytest.mark.parametrize("kind", ["ema", "tail"])
def test_averaged_and_last_weights_are_both_measured(kind: str, tmp_path: Path) -> None:
    chosen = recipe(
        training__average=0.5, training__average_kind=kind, data__validation=0.1,
        optimizer__lr=4.0, training__steps=10,
    )  # fmt: skip
    train(chosen, out=tmp_path / "r", device="cpu")
    logged = records(tmp_path / "r")
    assert {"validation_accuracy", "validation_accuracy_last"} <= logged[0].keys()
    assert {"test_accuracy", "test_accuracy_last"} <= logged[-1].keys()
    assert any(r["validation_accuracy"] != r["validation_accuracy_last"] for r in logged[:-1])
    assert "the averaging of weights" in (tmp_path / "r" / run_folder.STATEMENT).read_text()


# Views


def images(n: int = 5) -> Tensor:
    return torch.rand(n, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_views_are_distinct() -> None:
    views = Views(augment=Augment(crop=3, flip=True), count=6)
    seen = views.apply(images(), views.draw(5, generator())).view(5, 6, -1)
    same = torch.cdist(seen, seen) == 0
    same[:, range(6), range(6)] = False
    assert float(same.float().mean()) < 0.05
    assert not torch.equal(seen[0, 0], seen[0, 1])


def test_the_clean_view_is_the_image_itself() -> None:
    views = Views(augment=Augment(crop=3), count=4, clean=True)
    assert views.total == 4
    seen = views.apply(images(), views.draw(5, generator())).view(5, 4, 3, 8, 8)
    assert torch.equal(seen[:, 0], images())
    assert not torch.equal(seen[:, 1], seen[:, 2])


def test_mixtures_lie_between_two_different_views_of_one_example() -> None:
    views = Views(augment=Augment(crop=3), count=3, mixtures=4, alpha=1.0)
    parameters = views.draw(5, generator())
    assert (parameters.first != parameters.second).all()
    assert ((parameters.share > 0) & (parameters.share < 1)).all()
    seen = views.apply(images(), parameters).view(5, 7, -1)
    for i in range(5):
        for j in range(4):
            a, b = int(parameters.first[i, j]), int(parameters.second[i, j])
            share = float(parameters.share[i, j])
            expected = share * seen[i, a] + (1 - share) * seen[i, b]
            assert torch.allclose(seen[i, 3 + j], expected, atol=1e-6)


def test_a_view_depends_on_its_own_example_alone() -> None:
    views = Views(augment=Augment(crop=2, flip=True), count=3, clean=True, mixtures=2)
    parameters = views.draw(5, generator())
    changed = images()
    changed[2] = 0
    a = views.apply(images(), parameters).view(5, 5, -1)
    b = views.apply(changed, parameters).view(5, 5, -1)
    rest = [0, 1, 3, 4]
    assert torch.equal(a[rest], b[rest])
    assert not torch.equal(a[2], b[2])


METHODS: dict[str, dict[str, Any]] = {
    "plain": {},
    "views": {"training__views": 3, "augment__crop": 1, "augment__flip": True},
    "clean": {"training__views": 3, "augment__crop": 1, "training__clean_view": True},
    "mixed": {"training__views": 2, "augment__crop": 1, "training__self_mix": 2},
    "adaptive": {"privacy__clipping": "adaptive"},
    "adaptive-per-layer": {
        "privacy__clipping": "adaptive-per-layer", "training__views": 2, "augment__crop": 1,
    },
    "dynamic": {
        "privacy__noise_decay": 2.0, "privacy__clip_decay": 2.0, "privacy__accountant": "rdp",
    },
    "everything": {
        "privacy__clipping": "adaptive", "privacy__noise_decay": 0.5, "training__views": 2,
        "augment__crop": 1, "training__self_mix": 1, "training__average": 0.5,
        "training__average_kind": "tail", "optimizer__schedule": "plateau",
        "optimizer__patience": 0.1, "data__validation": 0.2, "privacy__accountant": "rdp",
    },
}  # fmt: skip
SPLIT = ("views", "clean", "mixed", "adaptive-per-layer", "dynamic")


@pytest.mark.parametrize("name", with_slow(SPLIT, "views", "clean", "dynamic"))
def test_physical_batches_do_not_change_a_run(name: str, tmp_path: Path) -> None:
    found = []
    for size in (17, 400):
        chosen = recipe(**METHODS[name], training__physical_batch=size)
        run = loop(chosen, tmp_path / str(size))
        examples = [run.take_step().examples for _ in range(3)]
        found.append((examples, run.private.clipping.sensitivity, list(run.model.parameters())))
    for examples, clip, parameters in found[1:]:
        assert examples == found[0][0]
        assert clip == pytest.approx(found[0][1], rel=1e-12)
        for a, b in zip(parameters, found[0][2], strict=True):
            assert torch.allclose(a, b, atol=2e-5)


@pytest.mark.parametrize("name", with_slow(METHODS, *set(METHODS) - {"everything"}))
def test_an_interrupted_run_ends_bit_for_bit_where_it_would_have(name: str, tmp_path: Path) -> None:
    chosen = recipe(**METHODS[name], training__checkpoint_every=1, training__steps=6)
    train(chosen, out=tmp_path / "whole", device="cpu")
    interrupted(chosen, tmp_path / "cut")
    (tmp_path / "cut" / run_folder.CURVES).write_bytes(b"of an earlier part")
    resume(tmp_path / "cut", device="cpu")
    for folder in ("whole", "cut"):
        assert (tmp_path / folder / run_folder.CURVES).read_bytes().startswith(b"\x89PNG")
    a, b = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    for key in a:
        assert torch.equal(a[key], b[key])
    for file in (run_folder.LEDGER, run_folder.STATEMENT):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "cut" / file).read_bytes()
    keys = ("step", "clip", "lr", "validation_accuracy", "validation_loss", "epsilon")
    told = [[{k: r.get(k) for k in keys} for r in records(tmp_path / f)] for f in ("whole", "cut")]
    assert told[0] == told[1]


def interrupted(chosen: Recipe, folder: Path) -> None:
    """Train, and fail in the middle of step 4."""

    class Failed(Exception):
        pass

    original = Loop.take_step

    def failing(self: Loop) -> Any:
        if self.step == 3:
            raise Failed
        return original(self)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Failed):
        patch.setattr(Loop, "take_step", failing)
        train(chosen, out=folder, device="cpu")


@pytest.mark.parametrize("asked", [False, True])
def test_a_compiler_ended_with_the_run_is_not_called_slow(
    asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(Silent, "say", lambda _self, message: said.append(message))
    monkeypatch.setattr(trouble, "about_start", lambda *_: ["slow"])
    run, stop = loop(recipe(training__steps=2), tmp_path), StopRequest()
    if asked:
        stop.signal = 15
        with pytest.raises(Stopped):
            run.run(stop)
    else:
        run.run(stop)
    assert ("slow" in said) is not asked  # Other remarks depend on the speed of the machine.


@pytest.mark.parametrize("told", [True, False])
def test_checkpoints_tell_no_more_than_metrics(told: bool, tmp_path: Path) -> None:
    run = loop(recipe(training__train_metrics=told), tmp_path)
    run.take_step()
    run.save()
    state, _ = checkpoint.latest(tmp_path / run_folder.CHECKPOINTS)
    assert state is not None and ("not_finite" in state.numbers) is told
    run.restore(state)


# Adaptive clipping and noise plans


def test_the_threshold_is_logged_and_moves(tmp_path: Path) -> None:
    chosen = recipe(privacy__clipping="adaptive", privacy__clip=50.0, training__steps=10)
    train(chosen, out=tmp_path / "r", device="cpu")
    clips = [r["clip"] for r in records(tmp_path / "r") if "clip" in r]
    assert clips[0] > 30 > clips[-1] and len(set(clips)) == len(clips)
    state, _ = checkpoint.latest(tmp_path / "r" / run_folder.CHECKPOINTS)
    assert state is not None
    assert state.numbers["clipping"]["limits"] == [clips[-1]]
    said = (tmp_path / "r" / run_folder.STATEMENT).read_text()
    assert "0.5-quantile" in said


def test_a_noise_plan_spends_the_budget_and_no_more(tmp_path: Path) -> None:
    chosen = recipe(privacy__noise_decay=3.0, privacy__clip_decay=2.0, training__steps=6)
    plan = setup.plan(chosen, 1438)
    assert plan.schedule is not None
    history = plan.history(6)
    assert sum(s.count for s in history) == 6
    assert 2.99 < accountants.epsilon(history, delta=1e-5) <= 3
    first, last = plan.noise_at(1).multiplier, plan.noise_at(6).multiplier
    assert 2.4 < first / last < 3
    clips = [plan.clipping_at(i, plan.clipping, 1.0).sensitivity for i in (1, 6)]
    assert clips == pytest.approx([1.0, 0.5])
    result = train(chosen, out=tmp_path / "r", device="cpu")
    ledger = Ledger.open(tmp_path / "r" / run_folder.LEDGER)
    assert sorted(map(str, ledger.history())) == sorted(map(str, history))
    assert result.epsilon["pld"] == accountants.epsilon(history, delta=1e-5)
    said = (tmp_path / "r" / run_folder.STATEMENT).read_text()
    for step in history:
        assert f"{step.count} with q = {step.q!r} and σ = {step.noise_multiplier!r}" in said
    assert "factor of 0.5 to the last" in said
    epsilons = [r["epsilon"] for r in records(tmp_path / "r")]
    assert epsilons == sorted(epsilons)


def test_a_noise_plan_with_given_noise_stops_within_the_budget() -> None:
    chosen = recipe(
        privacy__noise_decay=2.0,
        privacy__noise_multiplier=1.2,
        training__steps=40,
        privacy__accountant="rdp",
    )
    plan = setup.plan(chosen, 1438)
    assert plan.steps < 40 == plan.asked
    spent = [
        accountants.epsilon(plan.history(n), delta=1e-5, accountant="rdp")
        for n in (plan.steps, plan.steps + 1)
    ]
    assert spent[0] <= 3 < spent[1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"privacy__clipping": "adaptive", "privacy__clip_decay": 2.0}, "finds C by itself"),
        ({"privacy__clipping": "group-wise"}, "go together"),
        ({"training__self_mix": 2}, "training.views of at least 2"),
        ({"training__clean_view": True}, "training.views of at least 2"),
        ({"privacy__clipping": "adaptiv"}, "Did you mean 'adaptive'"),
        ({"privacy__clipping": "adaptive", "privacy__count_noise": 0.1}, "count_noise above"),
        ({"privacy__clipping": "group-wise", "privacy__groups": ["stage9.*"]}, "No trainable"),
        ({"privacy__group_clips": [1.0, 2.0]}, "needs privacy.clipping"),
        ({"privacy__clipping": "per-layer", "privacy__group_clips": [1.0]}, "give one for each"),
        ({"privacy__clipping": "per-layer", "privacy__group_clips": ["a"]}, "a list of numbers"),
    ],
)
def test_impossible_methods_are_refused(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=words):
        train(recipe(**changes), out=tmp_path / "r", device="cpu")
    assert not (tmp_path / "r").exists()


def test_norms_of_groups_can_be_given() -> None:
    changes = {
        "privacy__clipping": "group-wise",
        "privacy__groups": ["head.*"],
        "privacy__group_clips": [3, 4],
        "privacy__clip": 10.0,
    }
    rule = setup.plan(recipe(**changes), 1000).clipping
    names = ["conv.weight", "head.weight", "head.bias"]
    bound = rule.bind(names, [torch.Size([4]), torch.Size([2]), torch.Size([1])])
    assert isinstance(bound, GroupWise)
    assert bound.groups == (1, 0, 0) and bound.limits == pytest.approx((6.0, 8.0))
    assert bound.sensitivity == pytest.approx(10.0)


# The memory format


def test_a_run_uses_the_contiguous_memory_format_where_channels_last_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, orders = recipe(data__channels=3), []
    fetch = Views.fetch

    def spied(*given: Any, **named: Any) -> tuple[Tensor, Tensor]:
        x, labels = fetch(*given, **named)
        orders.append(x.is_contiguous(memory_format=torch.channels_last))
        return x, labels

    monkeypatch.setattr(Views, "fetch", spied)
    train(chosen, out=tmp_path / "fast", device="cpu")
    assert orders and all(orders)
    orders.clear()
    monkeypatch.setattr(memory_format, "difference", lambda model, like: 0.8)
    train(chosen, out=tmp_path / "usual", device="cpu")
    assert orders and not any(orders)
    fast, usual = weights(tmp_path / "fast"), weights(tmp_path / "usual")
    for name, value in fast.items():
        torch.testing.assert_close(usual[name], value, rtol=1e-4, atol=1e-5)
