"""Per-example gradients of an image model beside those of one example at a time."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from sfumato.privacy.per_example import PerExample


def assert_same_gradients(model: nn.Module, image: tuple[int, int, int]) -> None:
    """Compare both for three random images of four classes."""
    x, y = torch.randn(3, *image), torch.tensor([0, 3, 1])
    found = PerExample(model)(x, y)
    parameters = dict(model.named_parameters())
    for i in range(3):
        loss = cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        alone = torch.autograd.grad(loss, [parameters[name] for name in found.names])
        sums = found.weighted_sum(torch.eye(3)[:, i : i + 1])
        for name, ours, theirs in zip(found.names, sums, alone, strict=True):
            assert torch.allclose(ours.float(), theirs, atol=1e-5, rtol=1e-4), name
