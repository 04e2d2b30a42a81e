"""Without clipping the sum of gradients is one ordinary backward pass."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sfumato.privacy import GaussianNoise, PoissonSampler, PrivateGradients, Unclipped
from sfumato.privacy.engines.ordinary_backward import Ordinary


def mechanism(model: nn.Module, views: int = 1) -> PrivateGradients:
    return PrivateGradients(
        model,
        sampler=PoissonSampler(100, batch=6.0),
        clipping=Unclipped(),
        noise=GaussianNoise(0.0),
        views=views,
    )


def network() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(36, 3)
    )
    model.register_parameter("unused", nn.Parameter(torch.ones(2)))
    return model


@pytest.mark.parametrize("views", [1, 3])
def test_the_sum_equals_that_of_per_example_gradients(views: int) -> None:
    model = network()
    private = mechanism(model, views)
    x, y = torch.randn(5 * views, 2, 5, 5), torch.randint(0, 3, (5,))
    weights = torch.tensor([1.0, 1, 0, 1, 0])
    assert isinstance(private._gradients(x, y), Ordinary)
    wanted = private.per_example(x, y).weighted_sum(weights.unsqueeze(1))
    private.accumulate(x, y, weights)
    private.accumulate(x[:0], y[:0])
    statistics = private.release()
    assert (statistics.examples, statistics.clipped, statistics.not_finite) == (3, 0, 0)
    for parameter, total in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, total.float() / 6, rtol=1e-4, atol=1e-6)


def test_the_model_is_run_once_and_examples_that_are_not_finite_are_counted() -> None:
    model = network()
    private, calls = mechanism(model), []
    model.register_forward_hook(lambda *_: calls.append(1))
    x, y = torch.randn(4, 2, 5, 5), torch.randint(0, 3, (4,))
    x[2] = float("inf")
    private.accumulate(x, y)
    statistics = private.release()
    assert len(calls) == 1
    assert (statistics.examples, statistics.not_finite) == (4, 1)


def test_frozen_models_have_no_gradient() -> None:
    model = network().requires_grad_(False)
    model.get_parameter("unused").requires_grad_(True)
    private = mechanism(model)
    private.accumulate(torch.randn(4, 2, 5, 5), torch.randint(0, 3, (4,)))
    private.release()
    assert not bool(model.get_parameter("unused").grad.any())
