"""Models that make fewer or other calls for some data than those seen at first."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.errors import UserError
from sfumato.privacy import PerExample
from sfumato.privacy.checks.agreement import errors
from sfumato.privacy.engines import operators
from sfumato.privacy.engines.leaves import NotPerOperator
from sfumato.privacy.engines.objective import Objective
from sfumato.privacy.engines.one_at_a_time import one_at_a_time
from sfumato.privacy.engines.operators import Operators

WIDTH, TOKENS = 8, 6


class Skipping(nn.Module):
    """Tokens in a row by examples, then by positions; dark images take one layer more.

    Args:
        derived: Weights are functions of parameters, else one layer is used three times.
        instead: Bright images take another weight instead of one layer less.
    """

    def __init__(self, *, derived: bool, instead: bool = False) -> None:
        super().__init__()
        self.lengths = nn.Parameter(torch.ones(4))
        self.weights = nn.ParameterList(torch.randn(WIDTH, WIDTH) / 2 for _ in range(4))
        self.shared = nn.Parameter(torch.randn(WIDTH, WIDTH) / 2)
        self.last = nn.Linear(WIDTH, 3)
        self.derived, self.instead = derived, instead

    def weight(self, number: int) -> Tensor:
        return self.lengths[number] * self.weights[number] if self.derived else self.shared

    def forward(self, x: Tensor) -> Tensor:
        rows = len(x)
        asked = F.relu(1.5 - x.abs().mean((1, 2))).repeat_interleave(TOKENS).unsqueeze(1)
        t = x.reshape(-1, WIDTH)
        if bool(asked.any()):
            t = t + F.linear(t, self.weight(0)) * asked
        elif self.instead:
            t = t + F.linear(t, self.weight(3)) * asked
        t = t + torch.tanh(F.linear(t, self.weight(1)))
        t = t.view(rows, TOKENS, WIDTH).transpose(0, 1).reshape(-1, WIDTH)
        t = t + torch.tanh(F.linear(t, self.weight(2)))
        out: Tensor = self.last(t.view(TOKENS, rows, WIDTH).mean(0))
        return out


def images(bright: bool, rows: int = 6) -> tuple[Tensor, Tensor]:
    return torch.rand(rows, TOKENS, WIDTH) + 2 * bright, torch.arange(rows) % 3


@pytest.mark.parametrize("instead", [False, True])
@pytest.mark.parametrize("derived", [False, True])
def test_a_call_that_is_left_out_does_not_lend_its_number(derived: bool, instead: bool) -> None:
    torch.manual_seed(0)
    model = Skipping(derived=derived, instead=instead)
    engine = Operators(Objective(model))
    dark, bright = images(False), images(True)
    assert max(errors(engine.gradients(*dark), one_at_a_time(model, *dark)).values()) < 2e-5
    if instead and not derived:  # The same layer on the same rows, which is the same call.
        wanted = one_at_a_time(model, *bright)
        assert max(errors(engine.gradients(*bright), wanted).values()) < 2e-5
        return
    with pytest.raises(NotPerOperator, match="otherwise than it did at first"):
        engine.gradients(*bright)


def test_such_batches_run_one_example_at_a_time_and_it_is_said() -> None:
    torch.manual_seed(0)
    model = Skipping(derived=True)
    engine = PerExample(model)
    engine(*images(False))
    assert engine.method == "operators" and not engine.passed_over
    bright = images(True)
    with pytest.warns(UserWarning, match="one at a time, .* in some batches the model calls"):
        found = engine(*bright)
    assert max(errors(found, one_at_a_time(model, *bright)).values()) < 2e-5


class Dropping(nn.Module):
    """Leaves out whole layers at random, each with parameters of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.last = nn.Linear(WIDTH, 3)
        self.kept = [True, True, True]

    def forward(self, x: Tensor) -> Tensor:
        for layer, kept in zip(self.layers, self.kept, strict=True):
            x = torch.tanh(layer(x)) if kept else x
        out: Tensor = self.last(x)
        return out


def test_layers_that_are_left_out_lend_nothing_if_each_has_its_own_parameters() -> None:
    torch.manual_seed(0)
    model, x, y = Dropping(), torch.randn(5, WIDTH), torch.arange(5) % 3
    engine = Operators(Objective(model))
    engine.gradients(x, y)
    model.kept = [True, False, True]
    assert max(errors(engine.gradients(x, y), one_at_a_time(model, x, y)).values()) < 2e-5


class Routed(nn.Module):
    """Tokens that ask for it pass an expert, by their indices."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.expert = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, WIDTH)
        self.place, self.last = nn.Parameter(torch.randn(TOKENS, WIDTH)), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        t = (x + self.place).reshape(-1, WIDTH)
        chosen = (self.router(t)[:, 0] > 0).nonzero()[:, 0]
        t = t.index_add(0, chosen, torch.tanh(self.expert(t[chosen])))
        out: Tensor = self.last(t.view(len(x), TOKENS, WIDTH).mean(1))
        return out


@pytest.mark.parametrize("seed", range(4))
def test_tokens_that_are_routed_by_index_have_right_gradients(seed: int) -> None:
    torch.manual_seed(seed)
    model, (x, y) = Routed(), images(False)
    with pytest.warns(UserWarning, match="one at a time"):
        found = PerExample(model)(x, y)
    assert max(errors(found, one_at_a_time(model, x, y)).values()) < 2e-5


class Cropped(nn.Module):
    """Crops series to the longest of the batch, and takes the mean over what is left."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        used = (x != 0).any(2).any(0).nonzero()
        x = x[:, : int(used.max()) + 1 if len(used) else 1]
        out: Tensor = self.last(torch.tanh(self.first(x)).mean(1))
        return out


def test_series_that_are_cropped_to_the_longest_are_refused() -> None:
    torch.manual_seed(0)
    x, y = images(False)
    x[:, 4:] = 0
    with pytest.raises(UserError, match="moves the outputs of the others"):
        PerExample(Cropped())(x, y)


def test_a_crash_while_calls_are_recorded_leaves_a_model_to_other_engines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def crash(*_: object) -> None:
        raise RuntimeError("sizes do not match")

    monkeypatch.setattr(operators, "find_contacts", crash)
    torch.manual_seed(0)
    engine, x, y = PerExample(nn.Linear(WIDTH, 3)), torch.randn(5, WIDTH), torch.arange(5) % 3
    found = engine(x, y)
    assert engine.method == "torch.func" and "sizes do not match" in engine.passed_over["operators"]
    assert max(errors(found, one_at_a_time(engine.model, x, y)).values()) < 2e-5
