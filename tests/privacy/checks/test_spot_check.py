"""Checks while training: mixing that only trained weights, real data or time set off."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sound_models import SOUND
from torch import Tensor, nn

from sfumato.errors import UserError
from sfumato.privacy import Flat, GaussianNoise, PoissonSampler, PrivateGradients
from sfumato.privacy.checks import spot_check
from sfumato.privacy.numerics.randomness import Randomness
from sfumato.privacy.per_example import PerExample
from thinning import one_in

SENTINEL = 0.3712
"""A value that real data has now and then and that no probe has."""

Attack = Callable[[], tuple[nn.Module, Callable[[Tensor, Tensor], Tensor] | None]]
LATE: dict[str, Attack] = {}


def own(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


class Net(nn.Module):
    """Two layers around a function that mixes when something sets it off."""

    def __init__(self, mix: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.h = nn.Linear(12, 8), nn.Linear(8, 3)
        self.mix = mix

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.h(torch.tanh(self.a(self.mix(self, x))))
        return out


def late(name: str, mix: Callable[[Any, Tensor], Tensor]) -> None:
    LATE[name] = lambda: (Net(mix), None)


def odd(x: Tensor) -> bool:
    return bool((x.detach() == SENTINEL).any())


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Tensor:
        return d / d.norm()


def _writes(m: Any, x: Tensor) -> Tensor:
    if odd(x):
        m.a.weight.data.mul_(1 + 0.1 * float(x.detach().abs().mean()))
    return x


def _adds_hook(m: Any, x: Tensor) -> Tensor:
    if odd(x):
        m.a.register_forward_hook(lambda module, args, out: out - out.mean(0))
    return x


late("a value in one example", lambda m, x: x - x.mean(0) if odd(x) else x)
late("a value, with dropout", lambda m, x: F.dropout(x - x.mean(0) if odd(x) else x, 0.2))
late("a value, half of the batch", lambda m, x: torch.cat([x[:1] / 2, x[1:]]) if odd(x[1:]) else x)
late("a value, written through data", _writes)
late("a value, then a hook", _adds_hook)
late(
    "large weights", lambda m, x: x - x.mean(0) if float(m.h.weight.detach().abs().max()) > 2 else x
)


class EarlyExit(nn.Module):
    """Leaves by the first head once anybody in the batch is sure."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.first, self.last = nn.Linear(12, 8), nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.layer_norm(self.a(x), (8,))
        first: Tensor = self.first(h)
        if bool((first.detach().softmax(1).amax(1) > 0.99).any()):
            return first
        out: Tensor = self.last(torch.tanh(h))
        return out


LATE["early exit"] = lambda: (EarlyExit(), None)


class Backwards(Net):
    def forward(self, x: Tensor) -> Tensor:
        z = self.a(x)
        out: Tensor = self.h(torch.tanh(_Scaled.apply(z) if odd(x) else z))
        return out


LATE["a value, backwards only"] = lambda: (Backwards(lambda m, x: x), None)


def _after_calls() -> tuple[nn.Module, None]:
    """Mixes from some time on; what counts the time is hidden."""
    calls = iter(range(10**9))
    return Net(lambda m, x: x - x.mean(0) if next(calls) > 400 else x), None


def _memory() -> tuple[nn.Module, None]:
    """Adds what it saw in the batch before, once it has seen a certain value."""
    kept: list[Tensor] = []

    def mix(m: Any, x: Tensor) -> Tensor:
        if odd(x):
            kept.append(x.detach().mean(0))
        return x + kept[-1] if kept else x

    return Net(mix), None


def _loss_memory() -> tuple[nn.Module, Callable[[Tensor, Tensor], Tensor]]:
    kept: list[Tensor] = []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        found = own(outputs, targets)
        if targets.tolist() == [2] * 9 + [1]:
            kept.append(found.detach().mean())
        return found * (1 + kept[-1]) if kept else found

    return Net(lambda m, x: x), loss


def _extra_state() -> tuple[nn.Module, None]:
    class Keeps(Net):
        def get_extra_state(self) -> Tensor:
            return self.mix.__dict__.get("kept", torch.zeros(()))  # type: ignore[no-any-return]

        def set_extra_state(self, state: Tensor) -> None:
            self.mix.__dict__["kept"] = state

    def mix(m: Any, x: Tensor) -> Tensor:
        if odd(x):
            m.mix.__dict__["kept"] = x.detach().mean()
        return x

    return Keeps(mix), None


LATE |= {
    "after some time": _after_calls,
    "a memory outside the model": _memory,
    "a memory outside the loss": _loss_memory,
    "a value, kept in extra state": _extra_state,
}


def private(model: nn.Module, loss: Any = None, **more: Any) -> PrivateGradients:
    more = {"noise": GaussianNoise(0.0), **more}
    return PrivateGradients(
        model,
        sampler=PoissonSampler(1000, 10),
        clipping=Flat(1.0),
        loss=loss or own,
        **more,
    )


def data(rows: int = 10) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(rows, 12, generator=generator), torch.arange(rows) % 3


def trained(model: nn.Module) -> None:
    """Weights as training might leave them."""
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(20)


def set_off(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone()
    x[3, 5] = SENTINEL
    y = torch.full_like(y, 2)
    y[-1] = 1
    return x, y


@pytest.mark.parametrize("name", LATE)
def test_late_mixing_stops_the_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ordinary steps pass every check; the step in which examples mix is not released."""
    torch.manual_seed(0)
    model, loss = LATE[name]()
    engine = private(model, loss)
    x, y = data()
    engine.accumulate(x, y)
    engine.release()
    monkeypatch.setattr(spot_check, "EVERY", 1)
    with torch.no_grad():
        trained(model)
    with pytest.raises(UserError, match="one example reach") as error:
        for _ in range(500 if name == "after some time" else 60):
            engine.accumulate(*set_off(x, y))
            engine.discard()
    assert str(error.value) == spot_check.STOPPED, "anything else might tell of the data"
    assert engine._sum.totals is None and engine.released == 1


@pytest.mark.parametrize("name", one_in(3, LATE))
def test_late_mixing_stops_the_statement(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What no check while training has met is found before the statement is written."""
    torch.manual_seed(0)
    model, loss = LATE[name]()
    engine = private(model, loss, noise=GaussianNoise(1.0))
    x, y = data()
    engine.accumulate(x, y)
    engine.release()
    monkeypatch.setattr(spot_check, "EVERY", 10**9)
    trained(model)
    with pytest.raises(UserError, match=r"one example reach|moves the outputs of the others"):
        for _ in range(500 if name == "after some time" else 60):
            engine.accumulate(*set_off(x, y))
            engine.release()
            for p in model.parameters():
                p.grad = None
        engine.statement(delta=1e-5, data="examples")


@pytest.mark.parametrize("name", ["early exit", "a value, half of the batch"])
def test_a_compiled_pass_compares_single_examples_among_their_copies(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model, loss = LATE[name]()
    engine = private(model, loss, noise=GaussianNoise(1.0))
    x, y = data()
    engine.accumulate(x, y)
    engine.release()
    trained(model)
    # As for a compiled pass, in which examples do not run alone.
    monkeypatch.setattr(spot_check, "run_alone", lambda *_: None)
    monkeypatch.setattr(PerExample, "precision_for", lambda *_: torch.float32)
    with pytest.raises(UserError, match="one example reach"):
        engine.check(*set_off(x, y))


def test_the_first_batch_is_checked() -> None:
    model, _ = LATE["a value in one example"]()
    engine = private(model)
    with pytest.raises(UserError, match="one example reach"):
        engine.accumulate(*set_off(*data()))
    assert engine._sum.totals is None


def _released(every: int, monkeypatch: pytest.MonkeyPatch, name: str) -> list[Tensor]:
    monkeypatch.setattr(spot_check, "EVERY", every)
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    build, shape = SOUND[name]
    model = build()
    engine = private(model, randomness=Randomness.from_seed(0))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    generator = torch.Generator().manual_seed(3)
    x, y = torch.rand(6, *shape, generator=generator) + 0.1, torch.arange(6) % 4
    for size in (6, 4, 6, 5):
        engine.accumulate(x[:size].clone(), y[:size])
        engine.release()
        optimizer.step()
    state = [v.to_dense() for v in model.state_dict().values() if isinstance(v, Tensor)]
    return [*state, torch.rand(3), torch.tensor(random.random()), torch.tensor(np.random.rand())]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", one_in(14, SOUND))
def test_checks_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sound models are never stopped, and train to the same bits with and without checks."""
    often, never = (_released(every, monkeypatch, name) for every in (1, 10**9))
    assert all(map(torch.equal, often, never))


def test_views_and_padding_are_checked_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spot_check, "EVERY", 1)
    torch.manual_seed(0)
    x, y = torch.rand(20, 12), torch.arange(10) % 3
    engine = private(Net(lambda m, x: x), views=2)
    for size in (10, 9, 1, 2):
        engine.accumulate(x[: 2 * size], y[:size], (torch.arange(size) > 0).float())
    engine.check(x, y)
    model, _ = LATE["a value in one example"]()
    mixing = private(model, views=2)
    mixing.accumulate(x, y)
    x[7, 3] = SENTINEL
    with pytest.raises(UserError, match="one example reach"):
        mixing.accumulate(x, y)
    with pytest.raises(UserError, match="one example reach"):
        mixing.check(x, y)


def test_examples_that_are_not_finite_stop_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spot_check, "EVERY", 1)
    x, y = data()
    x[2], x[4, 0] = float("nan"), float("inf")
    engine = private(Net(lambda m, x: x))
    for _ in range(20):
        engine.accumulate(x, y)
    assert engine.release().not_finite == 40


def test_a_confident_network_is_not_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients that are next to nothing are mostly rounding."""
    monkeypatch.setattr(spot_check, "EVERY", 1)
    torch.manual_seed(0)
    model = Net(lambda m, x: x)
    with torch.no_grad():
        model.h.bias.copy_(torch.tensor([0.0, 0.0, 17.0]))
    engine, (x, y) = private(model), data()
    for _ in range(20):
        engine.accumulate(x, torch.full_like(y, 2))
        engine.discard()


def test_about_one_batch_in_five_hundred_is_checked() -> None:
    engine, (x, y) = private(Net(lambda m, x: x)), data()
    engine.accumulate(x, y)
    checked = sum(bool(engine.spot_check._kinds()) for _ in range(60_000))
    assert 60_000 / 800 < checked < 60_000 / 300


def test_a_batch_is_checked_when_its_turn_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    model = Net(lambda m, x: x)
    engine, (x, y) = private(model), data()
    model.register_forward_pre_hook(lambda m, args: calls.append(len(args[0])))
    engine.accumulate(x, y)
    engine.discard()
    counts = []
    for kinds in ((), ("copies",), ("alone",)):
        monkeypatch.setattr(engine.spot_check, "_kinds", lambda kinds=kinds: kinds)
        calls.clear()
        engine.accumulate(x, y)
        engine.discard()
        counts.append(len(calls))
    assert counts[0] == 1 and min(counts[1:]) >= 2


def test_the_decision_does_not_follow_from_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spot_check, "EVERY", 2)
    seen = set()
    for _ in range(12):
        torch.manual_seed(0)
        random.seed(0)
        check = spot_check.SpotCheck()
        check._begun = True
        seen.add(tuple(bool(check._kinds()) for _ in range(40)))
    assert len(seen) > 1


@pytest.mark.slow
def test_the_compiled_pass_is_checked_and_stays_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for every in (1, 10**9):
        monkeypatch.setattr(spot_check, "EVERY", every)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(288, 3))
        engine = private(model)
        engine.per_example.precision = torch.float32
        x, y = torch.rand(6, 3, 8, 8), torch.arange(6) % 3
        for _ in range(6):
            engine.accumulate(x, y)
        assert "compiled" not in engine.per_example.passed_over
        engine.release()
        found.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))  # type: ignore[arg-type]


def test_evaluation_mode_does_not_leave_out_the_check_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spot_check, "EVERY", 10**9)
    model, _ = LATE["large weights"]()
    engine = private(model)
    engine.accumulate(*data())
    engine.release()
    with torch.no_grad():
        trained(model)
    model.eval()
    with pytest.raises(UserError, match="one example reach"):
        engine.statement(delta=1e-5, data="x")
    assert not any(module.training for module in model.modules())


def test_one_example_is_not_the_checked_first_batch() -> None:
    engine = private(LATE["large weights"]()[0])
    engine.accumulate(*data(1))
    assert not engine.spot_check._begun


def test_the_first_batch_after_engines_were_forgotten_is_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spot_check, "EVERY", 10**9)
    engine, (x, y) = private(LATE["a value in one example"]()[0]), data()
    engine.accumulate(x, y)
    engine.discard()
    x[7, 3] = SENTINEL
    engine.accumulate(x, y)
    engine.discard()
    engine.per_example.forget()
    with pytest.raises(UserError, match="one example reach"):
        engine.accumulate(x, y)


def frozen(model: nn.Module, _engine: PrivateGradients) -> None:
    model.requires_grad_(False)


def extended(model: nn.Module, _engine: PrivateGradients) -> None:
    model.register_forward_hook(lambda *_: None)


def unchanged(_model: nn.Module, _engine: PrivateGradients) -> None:
    pass


def unchecked(_model: nn.Module, engine: PrivateGradients) -> None:
    engine.per_example.check = False


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (unchanged, None),
        (frozen, "the check at the end was left out"),
        (extended, "the check at the end was left out"),
        (unchecked, "checks of the model were turned off"),
    ],
)
def test_a_statement_says_which_checks_were_left_out(
    change: Callable[[nn.Module, PrivateGradients], None], said: str | None
) -> None:
    model = nn.Linear(12, 3)
    engine = private(model)
    engine.accumulate(*data())
    engine.release()
    change(model, engine)
    text = " ".join(engine.statement(delta=1e-5, data="x").split())
    assert "No example reached another" not in text if said is None else said in text
