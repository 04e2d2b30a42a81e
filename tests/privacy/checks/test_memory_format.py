"""The memory format changes no gradient, and a kernel in which it does is found."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sfumato import models
from sfumato.privacy.checks import memory_format
from sfumato.privacy.verify.verification import verify


class _Faulty(torch.autograd.Function):
    """The identity, whose backward pass is one pixel off in channels_last."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.last = x.is_contiguous(memory_format=torch.channels_last)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0].roll(1, 3) if ctx.last else grads[0]


class _Noisy(nn.Module):
    """Random numbers in evaluation mode too, drawn in memory order."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rand_like(x)


class _Layer(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = _Faulty.apply(x)
        return result


def _network(*between: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    head = nn.Linear(8 * 36, 3)
    return nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), *between, nn.Flatten(), head)


LIKE = torch.zeros(1, 2, 6, 6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_fault_in_one_memory_format_is_found(dtype: torch.dtype) -> None:
    found = memory_format.difference(_network(_Layer()).to(dtype), LIKE.to(dtype))
    assert found > 0.1


class _Narrow(nn.Module):
    """A layer that is wrong in channels_last in single precision alone."""

    def forward(self, x: Tensor) -> Tensor:
        faulty: Tensor = _Faulty.apply(x)
        return faulty if x.dtype == torch.float32 else x


def test_a_fault_of_one_precision_is_found() -> None:
    assert memory_format.difference(_network(_Narrow()), LIKE) > 0.1


def test_a_fault_behind_zeros_is_found() -> None:
    model = _network(_Layer(), nn.Tanh())
    nn.init.zeros_(model[-1].weight)  # type: ignore[arg-type,index]
    assert memory_format.difference(model, LIKE) > 0.1
    assert not model[-1].weight.any()  # type: ignore[union-attr,operator,index]


@pytest.mark.parametrize(
    "between",
    [
        nn.ReLU(),
        nn.Dropout(0.5),
        _Noisy(),
        nn.Sequential(nn.ReLU(), nn.MaxPool2d(3, 1, 1)),
        nn.AvgPool2d(3, 1, 1),
        nn.GroupNorm(2, 8),
    ],
)
def test_right_layers_have_equal_gradients_in_both_memory_formats(between: nn.Module) -> None:
    model = _network(between)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    assert memory_format.difference(model, LIKE) == 0
    assert torch.equal(random, torch.get_rng_state())
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_model_that_does_not_run_is_left_to_others() -> None:
    assert memory_format.difference(_network(), torch.zeros(1, 5, 6, 6)) == 0


def test_verify_warns_of_a_layer_that_is_wrong_in_channels_last() -> None:
    report = verify(_network(_Layer()), input_shape=(2, 6, 6))
    (warning,) = report.warnings
    assert "channels_last" in warning and "own" in warning
    assert not verify(_network(nn.ReLU()), input_shape=(2, 6, 6)).warnings


@pytest.mark.parametrize("shape", [(1, 4, 4), (2, 7, 5)])
def test_smoothnets_mean_counts_zeros_around(shape: tuple[int, ...]) -> None:
    network = models.create("smoothnet", width=1, depth=1, pooling="average")
    pool = network.get_submodule("stage1.blocks.0.pool")
    x = torch.randn(3, *shape)
    torch.testing.assert_close(pool(x), nn.functional.avg_pool2d(x, 3, 1, 1))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the fault is in a CUDA kernel")
def test_padded_average_pooling_on_cuda_is_right_in_the_chosen_memory_format() -> None:
    model = _network(nn.AvgPool2d(3, 1, 1))
    reference = memory_format._gradients(model, LIKE, torch.contiguous_format, False)
    on = LIKE.cuda()
    order = (
        torch.contiguous_format
        if memory_format.difference(model.cuda(), on)
        else torch.channels_last
    )
    for ours, right in zip(
        memory_format._gradients(model, on, order, False), reference, strict=True
    ):
        torch.testing.assert_close(ours.cpu(), right, rtol=1e-3, atol=1e-4)
