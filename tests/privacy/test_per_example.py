"""The engine: which method it takes, what its checks leave behind, and what it never does."""

from __future__ import annotations

import random
import time
import warnings
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from sound_models import CLASSES, SHAPE, SOUND
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from sfumato.bench import plain_networks
from sfumato.errors import UserError
from sfumato.privacy import (
    Flat,
    GaussianNoise,
    PerExample,
    PoissonSampler,
    PrivateGradients,
    one_at_a_time,
)
from sfumato.privacy.checks import announcement, spot_check
from sfumato.privacy.checks.agreement import errors
from sfumato.privacy.engines.engine import Engine
from sfumato.privacy.engines.one_at_a_time import OneAtATime
from sfumato.privacy.engines.operators import Operators
from sfumato.privacy.numerics.model_state import Snapshot

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
X = torch.rand(6, *SHAPE, generator=torch.Generator().manual_seed(0))
Y = torch.arange(6) % CLASSES


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, CLASSES)
    )


def worst(engine: PerExample, x: Tensor = X, y: Tensor = Y) -> float:
    return max(errors(engine(x, y), one_at_a_time(engine.model, x, y)).values())


def test_checks_leave_no_trace() -> None:
    """Random states, modes, buffers and gradients are as before."""
    torch.manual_seed(3)
    net = nn.Sequential(
        parametrizations.spectral_norm(nn.Conv2d(3, 4, 3)), nn.Dropout(0.5), nn.Flatten(),
        nn.Linear(144, CLASSES),
    )  # fmt: skip
    net[3].eval()
    modes = [m.training for m in net.modules()]
    twice = PerExample(net)
    before = Snapshot(net)
    torch_state, python_state, numpy_state = (
        torch.get_rng_state(),
        random.getstate(),
        np.random.get_state()[1].copy(),
    )
    twice.settle(X, Y)
    assert before.first_difference(Snapshot(net)) is None
    assert torch.equal(torch_state, torch.get_rng_state())
    assert python_state == random.getstate()
    assert (numpy_state == np.random.get_state()[1]).all()
    assert [m.training for m in net.modules()] == modes
    assert all(p.grad is None for p in net.parameters())
    assert all("forward" not in m.__dict__ for m in net.modules())


@pytest.mark.parametrize("kind", [Operators, OneAtATime])
def test_one_pass_advances_the_model_s_own_state_once(kind: type[Engine]) -> None:
    build, _ = SOUND["counts_calls"]
    net = build()
    calls = next(net.buffers())
    engine = PerExample(net)
    engine.settle(X, Y)
    assert calls == 0
    kind(engine.objective).gradients(X, Y)
    assert calls == 1


def test_targets_of_the_batch_are_not_used_by_the_checks(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the ends of their range, beside a random one, and to see what the loss calls."""
    seen: list[Tensor] = []
    own = nn.functional.cross_entropy

    def spied(outputs: Tensor, targets: Tensor, **options: Any) -> Tensor:
        seen.append(targets)
        return own(outputs, targets, **options)

    monkeypatch.setattr(nn.functional, "cross_entropy", spied)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    impossible = torch.full((6,), 99)
    PerExample(model, loss=loss).settle(torch.full_like(X, float("nan")), impossible)
    assert seen and all(int(t.max()) < CLASSES or len(t) in (2, 3) for t in seen)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("classes", [2, 3, 6])
def test_a_loss_may_read_fewer_classes_than_there_are_outputs(device: str, classes: int) -> None:
    """A GPU ends the process at a target that is no class."""

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        own = nn.functional.cross_entropy(outputs[:, :classes], targets, reduction="none")
        return own + outputs[:, classes:].square().mean(1)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(108, 7)).to(device)
    for targets in (torch.arange(9) % classes, torch.zeros(9, dtype=torch.long)):
        engine = PerExample(model, loss=loss)
        x, y = torch.randn(9, 3, 6, 6, device=device), targets.to(device)
        found = engine(x, y)
        assert engine.method == "operators"
        assert max(errors(found, one_at_a_time(model, x, y, loss=loss)).values()) < 1e-5


def test_inputs_are_not_used_by_the_checks(model: nn.Module) -> None:
    calls: list[Tensor] = []
    model.register_forward_pre_hook(lambda _, args: calls.append(args[0].detach().clone()))
    PerExample(model).settle(X, Y)
    assert calls
    assert not any(bool((row == X.flatten(1)).all(1).any()) for c in calls for row in c.flatten(1))


def test_the_engine_is_chosen_per_input_shape() -> None:
    """One engine, two shapes that need different methods, in turns."""

    class Picky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)
            self.out = nn.Linear(4, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            if x.shape[-1] == 8:
                return self.out(self.conv(x).mean((2, 3)))
            return torch.stack(
                [self.out(self.conv(r[None]).mean((2, 3)))[0] for r in x if r.sum() < 9e9]
            )

    engine = PerExample(Picky())
    wide = torch.rand(6, 3, 8, 10)
    for _ in range(2):
        assert worst(engine) < 1e-4 and engine.method == "operators"
        assert worst(engine, wide) < 1e-4 and engine.method == "loop"


def test_frozen_parameters_have_no_gradients_until_they_are_trained_again(model: nn.Module) -> None:
    engine = PerExample(model)
    assert worst(engine) < 1e-4
    model[0].requires_grad_(False)
    assert engine(X, Y).names == ("3.weight", "3.bias") and worst(engine) < 1e-4
    model[0].requires_grad_(True)
    assert len(engine(X, Y).names) == 4 and worst(engine) < 1e-4
    model.requires_grad_(False)
    assert engine(X, Y).names == ()


def test_what_was_chosen_can_be_forgotten(model: nn.Module) -> None:
    engine = PerExample(model)
    engine(X, Y)
    assert engine.knows(X, Y)
    engine.forget()
    assert not engine.knows(X, Y) and engine.method is None
    engine(X, Y)
    assert engine.knows(X, Y)


def test_rare_branch_falls_back_while_running() -> None:
    """A layer that sees only some rows, but all of them in the checks."""

    class Routed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(192, CLASSES), nn.Linear(192, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            flat = x.flatten(1)
            if bool((flat[:, 0] < 50).all()):
                return self.a(flat)
            chosen = flat[:, 0] < 50
            out = flat.new_zeros(len(flat), CLASSES)
            out[chosen], out[~chosen] = self.a(flat[chosen]), self.b(flat[~chosen])
            return out

    engine = PerExample(Routed())
    x = X.clone()
    x[2, 0, 0, 0] = 60
    ours = engine(x, Y)
    assert engine.method == "loop"
    assert max(errors(ours, one_at_a_time(engine.model, x, Y)).values()) < 1e-4
    engine(X, Y)
    assert engine.method == "operators"


def test_a_wrong_number_of_rows_is_refused(model: nn.Module) -> None:
    with pytest.raises(UserError, match="need 12 rows, not 6"):
        PerExample(model, views=2)(X, Y)


def test_out_of_memory_is_not_a_reason_for_another_method(model: nn.Module) -> None:
    class Hungry(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if len(x) > 5 and x.requires_grad:
                raise torch.OutOfMemoryError("not enough memory")
            return x

    net = nn.Sequential(model[0], Hungry(), *model[1:])
    engine = PerExample(net)
    with pytest.raises(torch.OutOfMemoryError):
        engine(X, Y)
    assert worst(engine, X[:3], Y[:3]) < 1e-4 and engine.method == "operators"


def test_broken_model_is_reported_as_it_breaks() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(7, CLASSES))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        PerExample(net)(X, Y)


def test_without_checks_the_first_engine_is_taken(model: nn.Module) -> None:
    engine = PerExample(model, check=False)
    assert worst(engine) < 1e-4 and engine.method == "operators"
    bad = nn.Sequential(model, nn.BatchNorm1d(CLASSES))
    with pytest.raises(UserError, match="BatchNorm1d"):
        PerExample(bad, check=False)


def test_a_wrong_rule_is_never_used(model: nn.Module, monkeypatch) -> None:
    """Sabotage the rule for convolutions: the engine must notice and take another method."""
    from sfumato.privacy.engines import autograd_functions as layers

    right = layers.filter_gradients
    monkeypatch.setattr(layers, "filter_gradients", lambda *a, **k: right(*a, **k) * 1.001)
    engine = PerExample(model)
    assert worst(engine) < 1e-4
    assert (
        engine.method == "torch.func"
        and "differ from the reference" in engine.passed_over["operators"]
    )


def test_a_leaking_rule_is_never_used(model: nn.Module, monkeypatch) -> None:
    from sfumato.privacy.engines import autograd_functions as layers

    right = layers.filter_gradients

    def leaky(*args, **kwargs) -> Tensor:
        found = right(*args, **kwargs)
        return found + 1e-9 * found.mean(0)

    monkeypatch.setattr(layers, "filter_gradients", leaky)
    engine = PerExample(model)
    engine(X, Y)
    assert (
        engine.method == "torch.func" and "moves the gradients" in engine.passed_over["operators"]
    )


class _Squeezed(nn.Module):
    """Ends as many networks do; of a single example it drops the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.conv(x).mean((2, 3), keepdim=True).squeeze())
        return result


@pytest.mark.parametrize("rows", [1, 6])
def test_a_batch_that_is_squeezed_away_is_named(rows: int) -> None:
    x, y = torch.randn(rows, 3, 6, 6), torch.randint(0, 5, (rows,))
    with pytest.raises(UserError, match=r"squeeze\(1\)"):
        PerExample(_Squeezed())(x, y)


@pytest.mark.parametrize("views", [1, 2])
def test_padding_to_a_checked_size_changes_nothing(views: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(1024, 40),
        nn.Linear(40, 4),
    )
    x, y = torch.randn(20 * views, 3, 8, 8), torch.arange(20) % 4
    sizes: set[int] = set()
    model.register_forward_pre_hook(lambda m, args: sizes.add(len(args[0]) // views))
    engine = PerExample(model, views=views)
    engine(x, y)
    for size in (19, 18, 17):
        found = engine(x[: size * views], y[:size])
        wanted = one_at_a_time(model, x[: size * views], y[:size], views=views)
        assert torch.allclose(found.squared_norms(), wanted.squared_norms(), rtol=1e-4)
        assert found.losses.shape == (size,) and found.outputs is not None
        assert found.outputs.shape == (size * views, 4)
        weights = torch.rand(size, len(found.names), dtype=torch.float64)
        sums = zip(found.weighted_sum(weights), wanted.weighted_sum(weights), strict=True)
        assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-6) for a, b in sums)
    assert not sizes & {17, 18, 19}


def sizes_checked(engine: PerExample) -> list[int]:
    return sorted(size for known in engine._checked._engines.values() for size in known)


def private(model: nn.Module) -> PrivateGradients:
    return PrivateGradients(
        model, sampler=PoissonSampler(600, 64), clipping=Flat(1.0), noise=GaussianNoise(1.0)
    )


@pytest.mark.parametrize("order", ["ascending", "descending", "drawn"])
def test_draws_of_varying_sizes_are_checked_in_two_sizes(order: str) -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    mechanism, x, y = private(model), torch.randn(90, 6), torch.arange(90) % 3
    sizes = list(range(50, 86))
    if order == "drawn":
        sizes = torch.poisson(torch.full((300,), 64.0), torch.Generator().manual_seed(2)).int()
        sizes = sizes.clamp(40, 90).tolist()
    ran: list[int] = []
    model.register_forward_pre_hook(lambda m, args: ran.append(len(args[0])))
    used = 0
    for step, size in enumerate(sizes if order != "descending" else sizes[::-1]):
        if step == 10:  # Checks are over by then.
            ran.clear()
        used += size if step >= 10 else 0
        mechanism.backward(x[:size], y[:size])
        assert mechanism.released == step + 1
    assert len(sizes_checked(mechanism.per_example)) <= 2
    if order == "drawn":
        assert sum(ran) < 1.25 * used


def test_a_halved_draw_has_the_gradients_of_a_whole_one() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    x, y = torch.randn(80, 6), torch.arange(80) % 3
    found = []
    for before in ([50, 52], []):
        mechanism = private(model)
        for size in before:
            mechanism.backward(x[:size], y[:size])
        assert mechanism.per_example.at_once(x, y) == (40 if before else 80)
        statistics = mechanism.backward(x, y)
        assert statistics.examples == 80
        found.append(statistics.loss)
    assert found[0] == pytest.approx(found[1])


def test_batches_that_stay_small_are_checked_in_a_size_of_their_own() -> None:
    model = nn.Linear(6, 3)
    engine, x, y = PerExample(model), torch.randn(64, 6), torch.arange(64) % 3
    engine(x, y)
    for _ in range(5):
        engine(x[:9], y[:9])
    assert sizes_checked(engine) == [11, 64]


def test_a_size_with_room_that_memory_lacks_is_not_used() -> None:
    def limited(module: nn.Module, args: tuple[Tensor]) -> None:
        if len(args[0]) > 75:
            raise torch.OutOfMemoryError("out of memory")

    model = nn.Linear(6, 3)
    model.register_forward_pre_hook(limited)
    engine, x, y = PerExample(model), torch.randn(90, 6), torch.arange(90) % 3
    for size in (64, 70):
        engine(x[:size], y[:size])
    assert sizes_checked(engine) == [64, 70]
    with pytest.raises(torch.OutOfMemoryError):
        engine(x, y)


@pytest.mark.parametrize("seconds", [0.0, 0.02])
def test_checks_that_take_long_are_announced_on_stderr(
    seconds: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(announcement, "AFTER", 0.5)
    model = nn.Linear(6, 3)
    model.register_forward_pre_hook(lambda m, args: time.sleep(seconds))
    engine, x, y = PerExample(model), torch.randn(8, 6), torch.arange(8) % 3
    engine(x, y)
    engine(x, y)
    said = capsys.readouterr()
    lines = ["Checking that examples do not affect each other in Linear ..."] * (seconds > 0)
    assert said.err.splitlines() == lines and not said.out


def test_the_checks_of_a_plain_resnet_push_few_rows_through_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spot_check, "EVERY", 1 << 60)  # Else one batch in 550 is checked again.
    torch.manual_seed(0)
    model = plain_networks.resnet18(width=32)
    rows: Counter[tuple[bool, torch.dtype]] = Counter()
    model.register_forward_pre_hook(
        lambda m, args: rows.update({(torch.is_grad_enabled(), args[0].dtype): len(args[0])})
    )
    x, y = torch.randn(32, 3, 8, 8), torch.arange(32) % 10
    mechanism = private(model)
    mechanism.per_example.settle(x, y)
    assert rows[True, torch.float64] + rows[False, torch.float64] == 0, "float32 agrees closely"
    assert rows[True, torch.float32] <= 130 and rows[False, torch.float32] <= 246
    rows.clear()
    mechanism.backward(x, y)
    assert rows.total() <= 4 * 32 + 2
    mechanism = private(model)
    rows.clear()
    mechanism.backward(x, y)  # Batches of 32 random examples tell no more than this one.
    assert rows[True, torch.float64] + rows[False, torch.float64] == 0
    assert rows[True, torch.float32] <= 2 * 32 + 60 and rows[False, torch.float32] <= 3 * 32 + 56
    rows.clear()
    mechanism.backward(x[:30], y[:30])
    assert rows.total() == 32


def test_a_batch_on_another_device_than_the_model_is_refused() -> None:
    engine = PerExample(nn.Linear(3, 2).to("meta"))
    with pytest.raises(UserError, match=r"The model is on meta, the inputs on cpu .* move them"):
        engine(torch.randn(5, 3), torch.zeros(5, dtype=torch.long))


def test_the_time_of_checks_is_counted_once() -> None:
    engine = PerExample(nn.Linear(3, 2))
    x, y = torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
    engine(x, y)
    first = dict(engine.durations)
    assert first["checks"] > 0 and first["compilation"] == 0
    engine(x, y)
    assert engine.durations == first


def test_a_hook_on_a_parameter_that_is_added_later_is_heeded() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(108, 7))
    engine, x, y = PerExample(model), torch.randn(5, 3, 6, 6), torch.arange(5)
    engine(x, y)
    model[1].weight.register_hook(lambda g: g * (torch.arange(7) > 2).unsqueeze(1))
    assert not engine.knows(x, y)
    assert max(errors(engine(x, y), one_at_a_time(model, x, y)).values()) < 1e-5


def test_whole_numbers_have_the_room_for_rounding_that_others_have() -> None:
    """A batch that is cut to its longest series adds up other zeros."""

    class Trimmed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(50, 64), nn.Linear(64, 5)
            self.attention = nn.MultiheadAttention(64, 4, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            lengths = (x != 0).sum(1).clamp_min(1)
            x = x[:, : int(lengths.max())]
            padding = torch.arange(x.shape[1]) >= lengths.unsqueeze(1)
            h = self.embedding(x)
            h = h + self.attention(h, h, h, key_padding_mask=padding, need_weights=False)[0]
            return self.head((h * ~padding.unsqueeze(2)).sum(1) / lengths.unsqueeze(1))

    torch.manual_seed(0)
    model = Trimmed()
    x, y = torch.randint(1, 50, (32, 20)), torch.arange(32) % 5
    x[torch.arange(20) >= torch.randint(1, 15, (32, 1))] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = PerExample(model)(x, y)
    assert max(errors(found, one_at_a_time(model, x, y)).values()) < 1e-4
