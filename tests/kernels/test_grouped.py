"""Filter gradients of convolutions with groups, and their kernel against the definition."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from sfumato.kernels import AVAILABLE, definitions
from sfumato.kernels.definitions import Geometry

CASES = [
    # in, out, groups, height, width, kernel, stride, padding, dilation, views, examples
    (6, 6, 6, 5, 4, (3, 3), (1, 1), (1, 1), (1, 1), 1, 2),
    (4, 8, 4, 7, 7, (7, 7), (1, 1), (3, 3), (1, 1), 2, 2),
    (12, 18, 3, 6, 5, (3, 2), (2, 1), (1, 0), (1, 2), 3, 2),
    (16, 16, 2, 4, 4, (1, 1), (1, 1), (0, 0), (1, 1), 1, 3),
    # Even padding and widths, of which Triton 3.6 takes too much for even.
    (64, 64, 64, 2, 2, (5, 5), (1, 1), (2, 2), (1, 1), 2, 2),
    (64, 64, 64, 4, 4, (5, 5), (1, 1), (2, 2), (1, 1), 1, 2),
    (128, 128, 128, 2, 2, (5, 5), (1, 1), (2, 2), (1, 1), 8, 2),
    (64, 64, 64, 8, 8, (5, 5), (2, 2), (2, 2), (1, 1), 2, 2),
    (32, 32, 32, 4, 4, (3, 3), (1, 1), (2, 2), (2, 2), 2, 2),
]


def inputs(case: tuple[object, ...]) -> tuple[torch.Tensor, torch.Tensor, Geometry, int]:
    """Inputs, output gradients, geometry and groups of a case."""
    c, o, groups, h, w, kernel, stride, padding, dilation, views, examples = case
    at = Geometry(kernel, stride, padding, dilation, views)  # type: ignore[arg-type]
    x = torch.randn(examples * views, c, h, w)  # type: ignore[operator, call-overload]
    filters = torch.zeros(o, c // groups, *kernel)  # type: ignore[operator, misc, call-overload]
    y = F.conv2d(x, filters, None, stride, padding, dilation, groups)  # type: ignore[arg-type]
    return x, torch.randn_like(y), at, groups  # type: ignore[return-value]


def compare(device: str, dtype: torch.dtype, tolerance: float) -> None:
    """The kernel on every case; the definition works on the same, possibly rounded, numbers."""
    from sfumato.kernels import grouped

    torch.manual_seed(0)
    for case in CASES:
        x, d, at, groups = inputs(case)
        x, d = x.to(device, dtype), d.to(device, dtype)
        ours = grouped.grouped_gradients(x, d, at, groups)
        wanted = definitions.grouped_gradients(x.float(), d.float(), at, groups)
        atol = max(tolerance, torch.finfo(dtype).eps) * float(wanted.abs().max())
        torch.testing.assert_close(ours.float(), wanted, rtol=0, atol=atol)
        x[-at.views :] = float("nan")
        after = grouped.grouped_gradients(x, d, at, groups)
        assert torch.equal(after[:-1], ours[:-1]), "it reads inputs of the next example"


@pytest.mark.skipif(not AVAILABLE, reason="needs CUDA and Triton")
def test_the_kernel_on_the_device_equals_its_definition() -> None:
    compare("cuda", torch.bfloat16, 1e-4)
    compare("cuda", torch.float32, 1e-5)


@pytest.mark.parametrize("case", CASES)
def test_the_definition_is_the_gradient_of_each_example(case: tuple[object, ...]) -> None:
    torch.manual_seed(0)
    x, d, at, groups = inputs(case)
    x, d = x.double(), d.double()
    found = torch.ops.sfumato.grouped_gradients(x, d, at.numbers, groups, at.views)
    filters = torch.zeros(d.shape[1], x.shape[1] // groups, *at.kernel).double().requires_grad_()
    for i in range(len(x) // at.views):
        rows = slice(i * at.views, (i + 1) * at.views)
        y = F.conv2d(x[rows], filters, None, at.stride, at.padding, at.dilation, groups)
        (wanted,) = torch.autograd.grad((y * d[rows]).sum(), filters)
        torch.testing.assert_close(found[i].permute(0, 3, 1, 2), wanted)
