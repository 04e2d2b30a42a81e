"""The mechanism as one object: accumulate, release, account."""

from __future__ import annotations

import copy
import itertools
import pickle
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sfumato.errors import UserError
from sfumato.privacy import (
    ClippingRule,
    Flat,
    GaussianNoise,
    GroupWise,
    PoissonSampler,
    PrivateGradients,
    Randomness,
    Step,
    Unclipped,
    one_at_a_time,
    physical_batches,
)
from sfumato.privacy.checks import spot_check
from sfumato.privacy.statement import upwards
from sfumato.privacy.statistics import BatchStatistics

X = torch.randn(10, 3, 6, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(10) % 4


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 5, 3), nn.Tanh(), nn.Flatten(), nn.Linear(80, 4))


def private(model: nn.Module, **changes) -> PrivateGradients:
    settings = {
        "sampler": PoissonSampler(100, 8),
        "clipping": Flat(0.5),
        "noise": GaussianNoise(0.0),
    }
    return PrivateGradients(model, **(settings | changes))


def grads(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_release_is_the_clipped_sum_over_the_expected_batch(model: nn.Module) -> None:
    mechanism = private(model)
    mechanism.accumulate(X, Y)
    mechanism.release()
    reference = one_at_a_time(model, X, Y)
    factor = (0.5 / reference.squared_norms().sum(1).sqrt()).clamp(max=1).float()
    for got, tensor in zip(grads(model), reference.tensors, strict=True):
        assert tensor is not None
        assert torch.allclose(got, torch.tensordot(factor, tensor, 1) / 8, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("size", [1, 3, 4, 10, 16])
def test_physical_batches_do_not_change_the_sum(model: nn.Module, size: int) -> None:
    mechanism = private(model)
    mechanism.accumulate(X, Y)
    whole_statistics = mechanism.release()
    whole = grads(model)
    seen = []
    for part in physical_batches(torch.arange(10), size):
        assert len(part.indices) == len(part.weights) == size
        seen += part.indices[part.weights > 0].tolist()
        mechanism.accumulate(X[part.indices], Y[part.indices], part.weights)
    statistics = mechanism.release()
    assert seen == list(range(10))
    for a, b in zip(whole, grads(model), strict=True):
        assert torch.allclose(a, b, atol=1e-7)
    assert statistics.examples == 10 and statistics.clipped == whole_statistics.clipped
    assert statistics.loss == pytest.approx(whole_statistics.loss, rel=1e-5)
    assert statistics.correct == whole_statistics.correct


def test_physical_batches_start_anywhere() -> None:
    parts = list(physical_batches(torch.arange(10), 4, start=6))
    assert [p.start for p in parts] == [6] and parts[0].drawn == 4
    with pytest.raises(UserError, match="at least one"):
        list(physical_batches(torch.arange(3), 0))


def test_views_are_averaged_before_clipping(model: nn.Module) -> None:
    views = X.repeat_interleave(3, 0) + 0.3 * torch.randn(30, 3, 6, 6)
    mechanism = private(model, views=3)
    mechanism.accumulate(views, Y)
    statistics = mechanism.release()
    alone = [one_at_a_time(model, views[3 * i : 3 * i + 3], Y[i].repeat(3)) for i in range(10)]
    means = [torch.cat([t.mean(0).flatten() for t in g.tensors if t is not None]) for g in alone]
    wanted = sum(m * min(1.0, 0.5 / float(m.norm())) for m in means) / 8
    got = torch.cat([g.flatten() for g in grads(model)])
    assert torch.allclose(got, wanted, rtol=1e-3, atol=1e-6)
    assert statistics.examples == 10


def test_history_records_events_as_they_happen(model: nn.Module) -> None:
    mechanism = private(model, noise=GaussianNoise(2.0))
    seen: list[Step] = []
    assert mechanism.history == [] and mechanism.epsilon(delta=1e-5) == 0
    for _ in range(3):
        mechanism.release(before=seen.append)
    before = mechanism.epsilon(delta=1e-5)
    mechanism.noise = GaussianNoise(50.0)
    mechanism.release(before=seen.append)
    assert mechanism.history == [Step(0.08, 2.0, 3), Step(0.08, 50.0, 1)]
    assert mechanism.released == 4 and seen == [Step(0.08, 2.0)] * 3 + [Step(0.08, 50.0)]
    assert mechanism.epsilon(delta=1e-5) >= before > 0


def test_the_history_of_a_resumed_run_counts_earlier_releases(model: nn.Module) -> None:
    mechanism = private(model, noise=GaussianNoise(2.0))
    mechanism.released = 5
    mechanism.release()
    assert mechanism.history == [Step(0.08, 2.0, 6)]
    other = private(model, noise=GaussianNoise(2.0))
    other.history = mechanism.history
    assert other.epsilon(delta=1e-5) == mechanism.epsilon(delta=1e-5)


def test_nothing_is_released_if_the_ledger_fails(model: nn.Module) -> None:
    mechanism = private(model, noise=GaussianNoise(1.0))
    mechanism.accumulate(X, Y)

    def full_disk(step: Step) -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        mechanism.release(before=full_disk)
    assert mechanism.released == 0 and not grads(model)
    mechanism.release()
    assert mechanism.released == 1


def test_same_key_same_release(model: nn.Module) -> None:
    releases = []
    for seed in (1, 1, 2):
        mechanism = private(model, noise=GaussianNoise(1.0))
        mechanism.randomness = Randomness.from_seed(seed)
        mechanism.accumulate(X, Y)
        mechanism.release()
        releases.append(grads(model))
    assert all(torch.equal(a, b) for a, b in zip(*releases[:2], strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(*releases[1:], strict=True))


def test_noise_is_never_used_again(model: nn.Module) -> None:
    """Not even if somebody sets the history back: two releases with one noise give their sums
    away."""
    mechanism = private(model, noise=GaussianNoise(1.0))
    releases = []
    for _ in range(3):
        mechanism.history = []
        mechanism.release()
        releases.append(torch.cat([g.flatten() for g in grads(model)]))
    for a, b in itertools.combinations(releases, 2):
        assert abs(float(torch.corrcoef(torch.stack([a, b]))[0, 1])) < 0.3


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_has_noise_of_its_own(model: nn.Module, copied) -> None:
    first = private(model, noise=GaussianNoise(1.0))
    second = copied(first)
    assert first.randomness != second.randomness
    first.randomness = Randomness.from_seed(0)
    assert copied(first).randomness == first.randomness, "a seed asks for the same noise again"


def test_files_of_a_mechanism_hold_no_key_sum_or_example(model: nn.Module) -> None:
    mechanism = private(model, noise=GaussianNoise(1.0))
    mechanism.accumulate(X, Y)
    content = pickle.dumps(mechanism)
    assert mechanism.randomness.key not in content
    assert X.numpy().tobytes() not in content
    assert pickle.loads(content)._sum.totals is None and mechanism._sum.totals is not None


def test_the_global_seed_changes_no_release(model: nn.Module) -> None:
    releases = []
    for _ in range(2):
        torch.manual_seed(0)
        mechanism = private(model, noise=GaussianNoise(1.0))
        mechanism.accumulate(X, Y)
        mechanism.release()
        releases.append(grads(model))
    assert not any(torch.equal(a, b) for a, b in zip(*releases, strict=True))


def test_discarded_batches_are_not_released(model: nn.Module) -> None:
    mechanism = private(model)
    mechanism.accumulate(X, Y)
    mechanism.discard()
    assert mechanism.release().examples == 0
    assert not any(bool(g.any()) for g in grads(model))


@pytest.mark.parametrize("call", ["backward", "accumulate"])
@pytest.mark.parametrize("by_unit", [False, True])
def test_fewer_targets_than_images_are_refused(model: nn.Module, call: str, by_unit: bool) -> None:
    units = {"units": torch.arange(10) // 2} if by_unit else {}
    take = getattr(private(model), call)
    for x, y in ((X, Y[:6]), (X[:6], Y), (X, Y[:0])):
        with pytest.raises(UserError, match=f"{len(y)} targets .* rows, not {len(x)}: give one"):
            take(x, y, **units)
    for y in (None, Y.tolist(), Y[0]):
        with pytest.raises(UserError, match=r"argets must be|must have one row"):
            take(X, y, **units)


def test_fewer_targets_than_images_are_refused_in_physical_batches_too(model: nn.Module) -> None:
    mechanism = private(model)
    with pytest.raises(UserError, match="6 targets with 1 views each need 6 rows, not 10"):
        mechanism.backward(X, Y[:6], physical_batch=3)
    assert mechanism.released == 0


@pytest.mark.parametrize("name", ["epsilon", "delta", "steps", "batch", "examples"])
def test_a_budget_is_made_of_numbers(model: nn.Module, name: str) -> None:
    budget = {"epsilon": 3.0, "delta": 1e-5, "steps": 2, "batch": 8, "examples": 100}
    for value in ("3", None, [3]):
        with pytest.raises(UserError, match="must be a number, not"):
            PrivateGradients.for_budget(model, **(budget | {name: value}))


def test_a_failed_batch_adds_nothing(model: nn.Module) -> None:
    mechanism = private(model)
    mechanism.accumulate(X, Y)
    with pytest.raises(UserError, match="targets"):
        mechanism.accumulate(X, Y[:3])
    with pytest.raises(ValueError, match="weights"):
        mechanism.accumulate(X, Y, torch.ones(1))
    with pytest.raises(UserError, match="a label 1"):
        mechanism.accumulate(X, Y + 10)
    assert mechanism.release().examples == 10


def test_a_batch_that_fails_at_its_very_end_adds_nothing(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is run again in smaller pieces then: what it had added would count twice."""
    mechanism = private(model)
    mechanism.accumulate(X, Y)
    before = {name: t.clone() for name, t in (mechanism._sum.totals or {}).items()}

    def fail(*_: object) -> BatchStatistics:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patched, pytest.raises(RuntimeError, match="memory"):
        patched.setattr(BatchStatistics, "__add__", fail)
        mechanism.accumulate(X, Y)
    after = mechanism._sum.totals or {}
    assert all(torch.equal(after[name], t) for name, t in before.items())
    assert mechanism.release().examples == 10


def test_weights_only_say_who_was_drawn(model: nn.Module) -> None:
    """A weight above one must not raise the sensitivity."""
    mechanism = private(model)
    with pytest.raises(UserError, match="Weights must be one"):
        mechanism.accumulate(X[:1], Y[:1], torch.tensor([7.0]))
    mechanism._add(mechanism.per_example(X[:1], Y[:1]), Y[:1], torch.tensor([7.0]))
    assert mechanism.release().examples == 1
    norm = torch.cat([g.flatten() for g in grads(model)]).norm() * 8
    assert float(norm) <= 0.5


def test_freezing_between_accumulate_and_release_is_refused(model: nn.Module) -> None:
    mechanism = private(model)
    mechanism.accumulate(X, Y)
    model[0].requires_grad_(False)
    with pytest.raises(RuntimeError, match="frozen"):
        mechanism.release()
    mechanism.discard()
    mechanism.accumulate(X, Y)
    mechanism.release()
    assert model[3].weight.grad is not None


def test_modules_are_walked_three_times_per_batch_and_once_per_release(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spot_check, "EVERY", 1 << 40)  # No batch of these is checked at random.
    mechanism = private(model)
    mechanism.accumulate(X, Y)
    mechanism.release()
    walks = []
    walk = nn.Module.named_parameters

    def counted(self: nn.Module, *args, **options):
        walks.append(self)
        return walk(self, *args, **options)

    monkeypatch.setattr(nn.Module, "named_parameters", counted)
    for _ in range(2):
        mechanism.accumulate(X, Y)
        assert len(walks) == 3
        walks.clear()
    mechanism.release()
    assert len(walks) == 1


@pytest.mark.parametrize("rule", [Flat(0.5), GroupWise(0.5)])
def test_parameters_created_or_frozen_in_the_first_call_are_followed(rule: ClippingRule) -> None:
    class Grown(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.old, self.kept = nn.Linear(108, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            if not hasattr(self, "gain"):
                self.gain = nn.Parameter(torch.ones(4))
                self.old.weight.requires_grad_(False)
            return self.kept(self.old(x.flatten(1))) * self.gain

    torch.manual_seed(0)
    grown = Grown()
    mechanism = private(grown, clipping=rule)
    found = []
    for _ in range(2):
        mechanism.accumulate(X, Y)
        mechanism.release()
        found.append({n: p.grad for n, p in grown.named_parameters() if p.requires_grad})
    assert found[0].keys() == {"gain", "old.bias", "kept.weight", "kept.bias"}
    for name, grad in found[0].items():
        assert grad is not None and bool(grad.any())
        assert torch.allclose(grad, found[1][name])


def test_noise_without_clipping_is_refused(model: nn.Module) -> None:
    with pytest.raises(UserError, match="not clipped"):
        private(model, clipping=Unclipped(), noise=GaussianNoise(1.0))
    mechanism = private(model, clipping=Unclipped())
    mechanism.accumulate(X, Y)
    mechanism.release()
    plain = torch.autograd.grad(
        nn.functional.cross_entropy(model(X), Y, reduction="sum"), list(model.parameters())
    )
    for a, b in zip(grads(model), plain, strict=True):
        assert torch.allclose(a * 8, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Flat(0.0),
        lambda: Flat(float("nan")),
        lambda: Flat(float("inf")),
        lambda: GaussianNoise(-1.0),
        lambda: GaussianNoise(float("inf")),
        lambda: PoissonSampler(0, 1),
        lambda: PoissonSampler(10, 0),
        lambda: PoissonSampler(10, 11),
        lambda: PoissonSampler(10, float("nan")),
    ],
)
def test_impossible_settings_are_refused(make) -> None:
    with pytest.raises(UserError):
        make()


def test_soft_targets_with_an_own_loss_are_accepted() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(108, 4))
    targets = torch.softmax(torch.randn(10, 4), 1)

    def loss(outputs: Tensor, wanted: Tensor) -> Tensor:
        return -(wanted * outputs.log_softmax(1)).sum(1)

    mechanism = private(model, loss=loss)
    mechanism.accumulate(X, targets)
    assert mechanism.release().examples == 10


def test_mean_loss_is_refused(model: nn.Module) -> None:
    with pytest.raises(UserError, match="reduction='none'"):
        private(model, loss=nn.functional.cross_entropy).accumulate(X, Y)


def test_no_views_is_refused(model: nn.Module) -> None:
    with pytest.raises(UserError, match="at least one view"):
        private(model, views=0)


def test_delta_must_mean_something(model: nn.Module) -> None:
    mechanism = private(model)
    for ask in (mechanism.epsilon, lambda **given: mechanism.statement(data="x", **given)):
        with pytest.raises(UserError, match=r"not below 1/N = 0\.01"):
            ask(delta=0.01)


def test_numbers_in_place_of_rules_are_refused(model: nn.Module) -> None:
    for wrong in ({"noise": 1.0}, {"clipping": 1.0}, {"sampler": 64}):
        (name,) = wrong
        with pytest.raises(UserError, match=f"{name} must be something like .*, not"):
            private(model, **wrong)


def test_a_loop_of_ones_own_gets_a_statement(model: nn.Module) -> None:
    mechanism = private(model, noise=GaussianNoise(1.5))
    loader = DataLoader(
        TensorDataset(X.repeat(10, 1, 1, 1), Y.repeat(10)),
        batch_sampler=mechanism.sampler.batches(3, Randomness.from_seed(0)),
    )
    sizes = []
    for x, y in loader:
        mechanism.accumulate(x, y)
        sizes.append(mechanism.release().examples)
    assert len(sizes) == 3 and len(set(sizes)) > 1
    said = mechanism.statement(delta=1e-5, data="my scans")
    spent = mechanism.epsilon(delta=1e-5)
    assert f"**({upwards(spent)}, 1e-05)-differential privacy**" in said and "'my scans'" in said
    assert "3 with q = 0.08 and σ = 1.5" in said
    assert "one training image" not in said
    assert f"| clipping | {mechanism.clipping.describe('example')} |" in said
    assert "each example's gradient scaled to norm at most C = 0.5" in said


def test_integer_inputs_may_be_indices_of_a_table() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(20, 4))
    words = torch.randint(7, (10, 5), generator=torch.Generator().manual_seed(1))
    mechanism = private(model, clipping=Flat(1e3))
    mechanism.accumulate(words, Y)
    mechanism.release()
    reference = one_at_a_time(model, words, Y)
    for got, tensor in zip(grads(model), reference.tensors, strict=True):
        assert tensor is not None
        assert torch.allclose(got, tensor.sum(0) / 8, atol=1e-6)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"precision": "bf16"}, "precision='bf16' is not known"),
        ({"precision": torch.int8}, "such as torch.bfloat16"),
        ({"model": "resnet"}, "must be a torch.nn.Module, not 'resnet'"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(given: dict[str, Any], words: str) -> None:
    known: dict[str, Any] = {"model": nn.Linear(3, 2), "precision": "auto"}
    budget = {"examples": 100, "batch": 10, "epsilon": 3.0, "delta": 1e-3, "steps": 3}
    model = (known | given).pop("model")
    more = {key: value for key, value in (known | given).items() if key != "model"}
    with pytest.raises(UserError, match=re.escape(words)):
        PrivateGradients.for_budget(model, **budget, **more)
    assert PrivateGradients.for_budget(nn.Linear(3, 2), **budget, precision="auto")


def test_the_noise_of_a_budget_cannot_be_given_too() -> None:
    with pytest.raises(TypeError, match="noise"):
        PrivateGradients.for_budget(  # type: ignore[call-arg]
            nn.Linear(3, 2), examples=100, batch=10, epsilon=3, delta=1e-3, steps=3,
            noise=GaussianNoise(99.0),
        )  # fmt: skip
