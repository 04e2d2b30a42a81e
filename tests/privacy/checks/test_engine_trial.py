"""The trial of an engine: rounding in any order is none of its faults, influence always is."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.errors import UserError
from sfumato.privacy.checks.engine_choice import choose_engine
from sfumato.privacy.checks.engine_trial import MOVES
from sfumato.privacy.engines.objective import Objective
from sfumato.privacy.engines.operators import Operators
from sfumato.privacy.engines.results import Gradients
from sfumato.privacy.per_example import PerExample, cross_entropy


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(144, 3))


def scaled(found: Gradients, factor: float) -> Gradients:
    """All gradients times a factor."""
    tensors = [None if part is None else part * factor for part in found.tensors]
    return Gradients(found.names, found.shapes, tensors, found.losses, found.outputs)


def choice(monkeypatch: pytest.MonkeyPatch, moved: dict[torch.dtype, float]) -> dict[str, str]:
    """The engines passed over where gradients move by so much when a batch has a NaN in it.

    A batch without gives the same bits each time, as atomic additions do by chance.
    """
    right = Operators.gradients

    def gradients(self: Operators, x: Tensor, y: Tensor, keys: Tensor | None = None) -> Gradients:
        found = right(self, x, y, keys)
        strange = bool(x.isnan().any())
        return scaled(found, 1 + moved[x.dtype]) if strange else found

    monkeypatch.setattr(Operators, "gradients", gradients)
    objective = Objective(model(), cross_entropy, 1)
    return choose_engine(objective, torch.randn(8, 1, 8, 8), torch.arange(8) % 3).passed_over


def test_rounding_in_any_order_is_no_influence(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not choice(monkeypatch, {torch.float32: 1e-6, torch.float64: 1e-15})


@pytest.mark.parametrize("size", [1e-6, 1e-3])
def test_influence_is_found_however_small(monkeypatch: pytest.MonkeyPatch, size: float) -> None:
    found = choice(monkeypatch, {torch.float32: size, torch.float64: size})
    assert found["operators"].startswith(MOVES)


def test_influence_beyond_rounding_is_found_in_one_precision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = choice(monkeypatch, {torch.float32: 1e-3, torch.float64: 0.0})
    assert found["operators"].startswith(MOVES)


def test_a_pass_that_is_not_compiled_says_which_engine_was_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = Operators.gradients
    monkeypatch.setattr(Operators, "gradients", lambda *given: scaled(right(*given), 2))
    engine = PerExample(model(), precision=torch.bfloat16)
    engine(torch.randn(4, 1, 8, 8), torch.arange(4) % 3)
    assert engine.method == "torch.func"
    assert "operators" in engine.passed_over["compiled"]
    assert "differ from the reference" in engine.passed_over["compiled"]


class Faint(nn.Module):
    """A network in which each example's output has a trace of the batch's mean."""

    def __init__(self, trace: float) -> None:
        super().__init__()
        self.inner, self.trace = model(), trace

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        return out + self.trace * F.tanh(out).mean(0, keepdim=True)


@pytest.mark.parametrize("trace", [1e-5, 1e-2])
def test_a_trace_of_other_examples_is_refused(trace: float) -> None:
    objective = Objective(Faint(trace), cross_entropy, 1)
    with pytest.raises(UserError, match="differential privacy"):
        choose_engine(objective, torch.randn(8, 1, 8, 8), torch.arange(8) % 3)
