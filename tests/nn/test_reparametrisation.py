"""Parametrisations are recognised in every version of Python."""

import inspect

import pytest
import torch
from torch import nn

from sfumato.nn.reparametrisation import FilterStandardisation, LinearExpansion, Reparametrisation
from sfumato.nn.standardise import WeightStandardisation, standardised
from sfumato.privacy.engines.objective import Objective
from sfumato.privacy.engines.slots import Slots
from sfumato.privacy.engines.stored_gradients import Filters


@pytest.mark.parametrize("protocol", [Reparametrisation, LinearExpansion])
def test_protocols_consist_of_methods_alone(protocol: type) -> None:
    """From Python 3.12 on `isinstance` does not find parameters, which are not attributes."""
    own = [base for base in protocol.__mro__ if base.__module__ == protocol.__module__]
    assert not any(inspect.get_annotations(base) for base in own)


@pytest.mark.parametrize("gain", [True, False])
def test_standardised_filters_are_recognised(gain: bool) -> None:
    step = WeightStandardisation(4, form="de", gain=gain, eps=1e-4)
    assert isinstance(step, FilterStandardisation)
    assert isinstance(step, Reparametrisation)


def test_standardised_filters_are_stored_by_the_operators() -> None:
    conv = standardised(nn.Conv2d(3, 8, 3), form="de", gain=True)
    model = nn.Sequential(conv, nn.Flatten(), nn.Linear(8 * 16, 3))
    objective = Objective(model, views=2)
    found = Slots(objective, torch.randn(4, 3, 6, 6), 2, torch.float32, storage="materialise")
    assert [type(slot) for slot in found.slots if slot.value.dim() == 4] == [Filters]
