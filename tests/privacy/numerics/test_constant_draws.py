"""Random numbers that are held constant: the same in a batch and for one example."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from sfumato.privacy.numerics.model_state import Still


@pytest.mark.parametrize("inplace", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_a_randomised_rectifier_has_the_mean_of_its_slopes(training: bool, inplace: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 3, requires_grad=True)
    with Still():  # type: ignore[no-untyped-call]
        y = F.rrelu(x * 1, 0.2, 0.6, training, inplace)
        y.square().sum().backward()
    wanted = torch.where(x > 0, x, 0.4 * x).detach()
    torch.testing.assert_close(y.detach(), wanted)
    slopes = torch.where(x > 0, 1.0, 0.4)
    torch.testing.assert_close(x.grad, 2 * wanted * slopes)
