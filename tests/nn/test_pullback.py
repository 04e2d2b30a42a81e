"""The closed-form way back from a weight to its parameters, against autograd."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from sfumato import models
from sfumato.nn.standardise import standardised


@pytest.mark.parametrize("form", ["de", "plain"])
@pytest.mark.parametrize("gain", [True, False])
@pytest.mark.parametrize("scale", [1.0, 1e-4])
def test_weight_standardisation(form: str, gain: bool, scale: float) -> None:
    torch.manual_seed(0)
    conv = standardised(nn.Conv2d(3, 5, 3).double(), form=form, gain=gain)  # type: ignore[arg-type]
    chain = conv.parametrizations["weight"]  # type: ignore[index]
    step, raw = chain[0], chain.original
    with torch.no_grad():
        raw.mul_(scale)
        if gain:
            step.gain.uniform_(0.5, 2)
    gradients = torch.randn(4, *conv.weight.shape).double()
    behind = [raw, *step.parameters()]
    wanted = torch.autograd.grad(conv.weight, behind, gradients, is_grads_batched=True)
    for ours, theirs in zip(step.pullback(raw.detach(), gradients), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)
    assert parametrize.is_parametrized(conv, "weight")


def test_steerable_weights_and_field_biases() -> None:
    torch.manual_seed(0)
    model = models.create("eq-resnet9-c4", size=16).double()
    conv = next(m for m in model.modules() if parametrize.is_parametrized(m, "bias"))
    for name in ("weight", "bias"):
        chain = conv.parametrizations[name]  # type: ignore[index]
        value = getattr(conv, name)
        gradients = torch.randn(4, *value.shape).double()
        (wanted,) = torch.autograd.grad(value, [chain.original], gradients, is_grads_batched=True)
        (ours,) = chain[0].pullback(chain.original.detach(), gradients)
        torch.testing.assert_close(ours, wanted, rtol=1e-8, atol=1e-10)
