"""Sparsity of parameters and gradients against closed forms and autograd."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from random_images import images, scaled

from sfumato.analysis.sparsity import l0_eps, mean_gradient, sparsity_of
from sfumato.errors import UserError


def test_l0_eps_in_closed_form() -> None:
    t = torch.tensor([0.0, 1e-4, -1e-3, 0.5, float("nan")])
    assert l0_eps(t, eps=0) == 0.2
    assert l0_eps(t, eps=1e-4) == 0.4
    assert l0_eps([t, torch.zeros(5)], eps=2e-3) == 0.8
    uniform = torch.linspace(-1, 1, 20_001, dtype=torch.float64)
    assert l0_eps(uniform, eps=0.25) == pytest.approx(0.25, abs=1e-4)
    normal = torch.randn(200_000, generator=torch.Generator().manual_seed(0)) * 0.02
    inside = math.erf(0.01 / 0.02 / math.sqrt(2))
    assert l0_eps(normal, eps=0.01) == pytest.approx(inside, abs=0.005)
    with pytest.raises(UserError, match="at least 0"):
        l0_eps(t, eps=-1)
    with pytest.raises(UserError, match="no entries"):
        l0_eps([], eps=1)


def test_sparsity_of_parameters_and_gradient() -> None:
    model, (x, y) = scaled(), images()
    model.head.weight.requires_grad_(False)
    found = sparsity_of(model, x, y, thresholds=(1e-2, 1e-4), batch=4)
    trained = [p for p in model.parameters() if p.requires_grad]
    flat = torch.cat([p.detach().reshape(-1) for p in trained]).numpy()
    assert found.size == flat.size
    assert found.parameters[0] == pytest.approx((np.abs(flat) <= 1e-2).mean())
    model.eval()
    slopes = torch.autograd.grad(F.cross_entropy(model(x), y), trained)
    mine = mean_gradient(model, x, y, batch=4)
    for slope, own in zip(slopes, mine.values(), strict=True):
        torch.testing.assert_close(own, slope, rtol=1e-3, atol=1e-6)
    flat = torch.cat([s.reshape(-1) for s in slopes]).numpy()
    assert found.gradients[0] == pytest.approx((np.abs(flat) <= 1e-2).mean(), abs=1e-3)
    assert sum(size for size, _, _ in found.by_tensor.values()) == found.size
