"""The first batch of a size: what it shows of itself need not be shown by random ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sfumato.errors import UserError
from sfumato.privacy import Flat, GaussianNoise, PoissonSampler, PrivateGradients
from sfumato.privacy.checks import engine_choice, spot_check
from sfumato.privacy.engines.one_at_a_time import one_at_a_time
from sfumato.privacy.engines.operators import Operators
from sfumato.privacy.engines.padding import with_room
from sfumato.privacy.engines.results import Gradients

ROWS = 12
"""Examples of a batch; the batches of random inputs that precede it have five at most."""


class Net(nn.Module):
    """A network in which examples may reach each other in batches of more than five."""

    def __init__(self, amount: float = 0.0, *, gated: bool = False) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.gates = nn.ParameterList([torch.zeros(8), torch.zeros(8)] if gated else [])
        self.amount = amount

    def forward(self, x: Tensor) -> Tensor:
        if self.amount:
            # No half of the rows is closed under this.
            other = x.nan_to_num().roll(1, 0 if len(x) > 5 else 1)
            for gate in self.gates:  # Two of zeros have gradients of zeros.
                other = gate * other
            x = x + self.amount * other
        out: Tensor = self.last(torch.tanh(self.first(x)))
        return out


def private(model: nn.Module, views: int = 1) -> PrivateGradients:
    return PrivateGradients(
        model,
        sampler=PoissonSampler(1000, ROWS),
        clipping=Flat(1.0),
        noise=GaussianNoise(0.0),
        views=views,
    )


def batch(rows: int = ROWS) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(rows, 8, generator=generator), torch.arange(rows) % 3


@pytest.fixture
def random_batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes at which a model was checked on random batches, of which images alike tell nothing."""
    monkeypatch.setattr(engine_choice, "refuse_mixing_alike", lambda *_: None)
    found: list[int] = []
    real = engine_choice.refuse_mixing_at

    def noted(objective: Any, draws: Any, rows: int) -> None:
        found.append(rows)
        real(objective, draws, rows)

    monkeypatch.setattr(engine_choice, "refuse_mixing_at", noted)
    monkeypatch.setattr("sfumato.privacy.checks.model_isolation.refuse_mixing_at", noted)
    return found


def test_a_sound_model_runs_few_rows_before_its_first_step(random_batches: list[int]) -> None:
    torch.manual_seed(0)
    model, rows = Net(), []
    model.register_forward_pre_hook(lambda _, given: rows.append(len(given[0])))
    engine = private(model)
    engine.accumulate(*batch())
    assert not random_batches
    assert sum(size > 5 for size in rows) == 2, "the batch once mixed with others, and as it is"
    assert sum(rows) <= 2 * ROWS + 110
    rows.clear()
    engine.accumulate(*batch(ROWS + 1))  # The next size is compared with itself alone.
    assert not random_batches and sum(rows) <= 2 * (ROWS + 5) + 12
    rows.clear()
    engine.accumulate(*batch(ROWS + 1))
    assert len(rows) == 1


@pytest.mark.parametrize("amount", [1e-6, 1e-3, 1.0])
def test_mixing_in_large_batches_only_is_refused_by_name(
    amount: float, random_batches: list[int]
) -> None:
    """However little it is; random batches of that size say where."""
    torch.manual_seed(0)
    engine = private(Net(amount))
    with pytest.raises(UserError, match="cannot be trained with differential privacy"):
        engine.accumulate(*batch())
    assert random_batches == [ROWS]
    assert not engine.per_example.knows(*batch())


def test_what_parameters_of_zeros_hide_is_found(random_batches: list[int]) -> None:
    torch.manual_seed(0)
    with pytest.raises(UserError, match="cannot be trained with differential privacy"):
        private(Net(1.0, gated=True)).accumulate(*batch())
    assert random_batches == [ROWS]


def test_nothing_is_hidden_by_biases_of_zeros(random_batches: list[int]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    nn.init.zeros_(model[0].bias)
    private(model).accumulate(*batch())
    assert not random_batches


def wrong(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """Make the engine by operators wrong in batches of more than five."""
    real = Operators.gradients

    def gradients(self: Operators, x: Tensor, y: Tensor, keys: Any = None) -> Gradients:
        found = real(self, x, y, keys)
        if len(y) <= 5:
            return found
        parts = [
            (factor * p.tensor()) if not isinstance(p, Tensor | None) else p for p in found.parts
        ]
        parts = [factor * p if isinstance(p, Tensor) else p for p in parts]
        return Gradients(found.names, found.shapes, parts, found.losses, found.outputs)

    monkeypatch.setattr(Operators, "gradients", gradients)


@pytest.mark.parametrize("factor", [0.5, 1.001])
def test_an_engine_that_is_wrong_in_large_batches_is_passed_over(
    factor: float, monkeypatch: pytest.MonkeyPatch, random_batches: list[int]
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    wrong(monkeypatch, factor)
    engine = private(model)
    x, y = batch()
    found = engine.spot_check.gradients(engine.per_example, x, y)
    assert engine.per_example.method != "operators" and random_batches == [ROWS]
    wanted = one_at_a_time(model, x, y, loss=engine.per_example.loss)
    torch.testing.assert_close(found.squared_norms(), wanted.squared_norms(), rtol=1e-5, atol=0)


def test_examples_of_nan_leave_the_decision_to_random_batches(random_batches: list[int]) -> None:
    torch.manual_seed(0)
    x, y = batch()
    x[3] = float("nan")
    private(Net()).accumulate(x, y)
    assert random_batches == [ROWS]


def test_random_models_are_checked_in_random_batches(random_batches: list[int]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    engine = private(model)
    engine.accumulate(*batch())
    engine.accumulate(*batch(ROWS + 1))
    assert random_batches == [ROWS, with_room(ROWS + 1)]


class _MixesItsLayers(nn.Module):
    """Takes the mean of a layer's results, in batches of more than five."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        h = torch.tanh(h - h.mean(0)) if len(x) > 5 else torch.tanh(h)
        out: Tensor = self.last(h)
        return out


def test_what_is_not_per_operator_in_large_batches_only_is_refused() -> None:
    """One example at a time would be right, so only the checks can tell."""
    torch.manual_seed(0)
    with pytest.raises(UserError, match="cannot be trained with differential privacy"):
        private(_MixesItsLayers()).accumulate(*batch())


def test_a_size_is_unknown_after_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that was never compared must not count as checked."""

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    torch.manual_seed(0)
    engine = private(Net())
    with monkeypatch.context() as patch:
        patch.setattr(spot_check, "_compare", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.accumulate(*batch())
    assert not engine.per_example.knows(*batch())
    engine.accumulate(*batch())
    assert engine.per_example.knows(*batch())


def test_a_size_is_unknown_after_a_lack_of_memory(
    monkeypatch: pytest.MonkeyPatch, random_batches: list[int]
) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError

    torch.manual_seed(0)
    engine = private(_MixesItsLayers())
    with monkeypatch.context() as patch:
        patch.setattr(spot_check, "Snapshot", full)
        with pytest.raises(torch.OutOfMemoryError):
            engine.accumulate(*batch())
    assert not engine.per_example.knows(*batch())
    with pytest.raises(UserError, match="cannot be trained with differential privacy"):
        engine.per_example(*batch())


class _Leak(nn.Module):
    """Adds one example's features to another's, in batches of more than five."""

    def __init__(self, source: int, target: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 3)
        self.source, self.target = source, target

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        if len(x) > 5:
            here = torch.arange(len(x)).unsqueeze(1) == self.target % len(x)
            h = h + torch.where(here, h[self.source], torch.zeros(()))
        out: Tensor = self.last(h)
        return out


class _Dimmed(nn.Module):
    """Halves all features where one number of a batch of more than five is large."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        if len(x) > 5 and bool((x.detach().abs() > 2).any()):
            h = h / 2
        out: Tensor = self.last(h)
        return out


_LEAKS: dict[str, Callable[[], nn.Module]] = {
    "from the first": lambda: _Leak(0, 5),
    "from the last": lambda: _Leak(-1, 5),
    "from last to first": lambda: _Leak(-1, 0),
    "from first to last": lambda: _Leak(0, -1),
    "dimmed": _Dimmed,
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("make", _LEAKS.values(), ids=_LEAKS)
def test_what_the_first_batch_may_not_show_is_refused_every_time(
    make: Callable[[], nn.Module], seed: int
) -> None:
    """The batch's own examples are replaced at random, and do not have all values."""
    torch.manual_seed(seed)
    with pytest.raises(UserError, match="cannot be trained with differential privacy"):
        private(make()).accumulate(*batch())


@pytest.mark.parametrize("views", [1, 3])
def test_the_gradients_are_those_of_the_batch(views: int) -> None:
    torch.manual_seed(0)
    model = Net()
    engine = private(model, views)
    x, _ = batch(ROWS * views)
    _, y = batch()
    found = engine.spot_check.gradients(engine.per_example, x, y)
    wanted = one_at_a_time(model, x, y, loss=engine.per_example.loss, views=views)
    torch.testing.assert_close(found.squared_norms(), wanted.squared_norms(), rtol=1e-5, atol=0)
    weights = torch.linspace(0, 1, ROWS, dtype=torch.float64).unsqueeze(1)
    for ours, theirs in zip(found.weighted_sum(weights), wanted.weighted_sum(weights), strict=True):
        torch.testing.assert_close(ours, theirs)


class _Poisoned(nn.Module):
    """Lets an example of NaN reach all others, in batches of more than five."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x)
        return out + 0 * x.detach().mean() if len(x) > 5 else out


def test_where_nan_spreads_in_large_batches_another_engine_is_used() -> None:
    torch.manual_seed(0)
    engine = private(_Poisoned())
    engine.accumulate(*batch())
    assert engine.per_example.method in ("torch.func", "loop")
