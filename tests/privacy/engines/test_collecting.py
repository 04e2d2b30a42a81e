"""Weights that are computed from parameters, and their way back to these."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm

from sfumato.privacy import PerExample
from sfumato.privacy.checks.agreement import errors
from sfumato.privacy.engines.leaves import NotPerOperator
from sfumato.privacy.engines.objective import Objective
from sfumato.privacy.engines.one_at_a_time import one_at_a_time
from sfumato.privacy.engines.operators import Operators

WIDTH = 6


class Computing(nn.Module):
    """Computes its weights from two parameters, and uses one of them several times."""

    def __init__(self, change: str = "") -> None:
        super().__init__()
        self.codes, self.table = nn.Parameter(torch.randn(3, 4)), nn.Linear(4, WIDTH * WIDTH)
        self.head = nn.Linear(WIDTH, 3)
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        first, again, gains = (w * 1 for w in self.table(self.codes).tanh().view(3, WIDTH, WIDTH))
        x = F.linear(x, first)
        for _ in range(3):
            x = F.linear(x.tanh(), again) * gains[0]
        shift = gains[1] * 1
        x = x + shift
        if self.change == "between":
            x = x + shift.mul_(2)
        if self.change == "after":
            shift.mul_(2)
        return self.head(x)


@pytest.mark.parametrize("views", [1, 3])
@pytest.mark.parametrize("examples", [1, 5])
def test_gradients_are_those_of_one_example_at_a_time(views: int, examples: int) -> None:
    torch.manual_seed(0)
    model = Computing().double()
    x, y = torch.randn(examples * views, WIDTH).double(), torch.arange(examples) % 3
    found = Operators(Objective(model, views=views)).gradients(x, y)
    assert max(errors(found, one_at_a_time(model, x, y, views=views)).values()) < 1e-12


def test_what_weights_have_in_common_is_differentiated_once() -> None:
    calls: list[Tensor] = []
    model = Computing()
    model.table.register_forward_hook(lambda *given: given[2].register_hook(calls.append) and None)
    Operators(Objective(model)).gradients(torch.randn(4, WIDTH), torch.arange(4) % 3)
    assert len(calls) == 1


def test_weights_may_be_computed_once_for_several_passes() -> None:
    model, y = nn.Sequential(weight_norm(nn.Linear(WIDTH, 4)), nn.Linear(4, 3)), torch.arange(4) % 3
    engine, x = Operators(Objective(model)), torch.randn(2, 4, WIDTH)
    with parametrize.cached():
        found = [engine.gradients(own, y) for own in x]
    for own, gradients in zip(x, found, strict=True):
        assert max(errors(gradients, one_at_a_time(model, own, y)).values()) < 1e-4


@pytest.mark.parametrize("when", ["between", "after"])
def test_a_weight_that_is_changed_in_place_after_its_use_is_left_to_other_engines(
    when: str,
) -> None:
    torch.manual_seed(0)
    model, x, y = Computing(change=when), torch.randn(4, WIDTH), torch.arange(4) % 3
    with pytest.raises((NotPerOperator, RuntimeError), match=r"in ?place"):
        Operators(Objective(model)).gradients(x, y)
    assert max(errors(PerExample(model)(x, y), one_at_a_time(model, x, y)).values()) < 1e-4
