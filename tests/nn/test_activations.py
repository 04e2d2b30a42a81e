"""Mish on a CPU: the function of PyTorch, without its denormal numbers."""

from __future__ import annotations

import pytest
import torch

from sfumato.nn import activation


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mish_is_that_of_pytorch(dtype: torch.dtype) -> None:
    x = torch.linspace(-400, 400, 4001, dtype=dtype).requires_grad_()
    ours, wanted = activation("mish")(x), torch.nn.functional.mish(x)
    close = {"rtol": 1e-5, "atol": 1e-6}
    if dtype == torch.float64:
        close = {"rtol": 1e-12, "atol": 1e-13}
    torch.testing.assert_close(ours, wanted, **close)
    with torch.no_grad():
        assert torch.equal(activation("mish")(x), ours), "in place it is the same"
    slopes = [torch.autograd.grad(y.sum(), x)[0] for y in (ours, wanted)]
    torch.testing.assert_close(*slopes, **close)


def test_mish_computes_with_no_denormal_numbers() -> None:
    """On them a CPU takes ten times longer."""
    x = torch.cat([torch.linspace(-400, -1, 400), torch.linspace(1, 400, 400)]).requires_grad_()
    y = activation("mish")(x)
    (slope,) = torch.autograd.grad(y.sum(), x)
    tiny = torch.finfo(torch.float32).tiny
    for values in (y, slope):
        assert not ((values != 0) & (values.abs() < tiny)).any()
    seen = torch.nn.functional.mish(x)  # The test can fail: PyTorch's own has some.
    assert ((seen != 0) & (seen.abs() < tiny)).any()
