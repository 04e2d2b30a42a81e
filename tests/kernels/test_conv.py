"""The kernels against their definitions, by Triton's interpreter where there is one."""

from __future__ import annotations

import pytest
import torch

from sfumato.kernels import AVAILABLE, definitions
from sfumato.kernels.definitions import Geometry

CASES = [
    # in, out, height, width, kernel, stride, padding, dilation, views, examples
    (5, 7, 6, 5, (3, 3), (1, 1), (1, 1), (1, 1), 1, 2),
    (16, 20, 8, 8, (3, 3), (2, 2), (1, 1), (1, 1), 2, 2),
    (8, 16, 7, 7, (1, 1), (2, 2), (0, 0), (1, 1), 3, 2),
    (3, 4, 9, 9, (5, 4), (1, 2), (2, 1), (1, 2), 1, 2),
    (33, 65, 4, 4, (3, 3), (1, 1), (2, 2), (2, 2), 2, 3),
]


def compare(device: str, dtype: torch.dtype, tolerance: float) -> None:
    """Every kernel on every case; the definitions work on the same, possibly rounded, numbers."""
    from sfumato.kernels import conv, ghost

    torch.manual_seed(0)
    for c, o, h, w, kernel, stride, padding, dilation, views, examples in CASES:
        at = Geometry(kernel, stride, padding, dilation, views)
        x = torch.randn(examples * views, c, h, w)
        y = torch.nn.functional.conv2d(
            x, torch.zeros(o, c, *kernel), None, stride, padding, dilation
        )
        d = torch.randn_like(y)
        x, d = x.to(device, dtype), d.to(device, dtype)
        direction = torch.randn(o, *kernel, c, device=device)
        weights = torch.rand(examples, device=device)
        weights[0] = 0
        wanted = definitions.conv_gradients(x, d, at)
        for keep in (True, False):
            grads, statistics = conv.conv_gradients(x, d, direction, at, keep=keep)
            if keep:
                assert not bool(grads[..., c:].any())
                grads = grads[..., :c]
                close(grads, wanted, 2 * torch.finfo(dtype).eps)
                own = definitions.filter_statistics(grads, direction)
            else:
                assert grads.numel() == 0
                own = definitions.filter_statistics(wanted, direction)
            close(statistics, own, tolerance)
        close(conv.conv_gradients(x, d, None, at, keep=False)[1], own[:, :1], tolerance)
        total = definitions.weighted_sum(x, d, weights, at)
        bad = x.clone()
        bad[:views] = float("nan")
        close(conv.weighted_sum(bad, d, weights, at), total, tolerance)
        if views * y.shape[2] * y.shape[3] <= definitions.GHOST_LONGEST:
            for scales in (None, torch.rand(o, device=device)):
                norms = ghost.ghost_norms(x, d, scales, at)
                defined = definitions.ghost_norms(x, d, scales, at, unit=definitions.UNIT)
                close(norms, defined, tolerance)
                assert bool((norms >= exact_norms(wanted, scales)).all())


def exact_norms(grads: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
    """Squared norms of gradients `(examples, out, kh, kw, in)`, centred and scaled if need be."""
    flat = grads.double().flatten(2)
    if scales is not None:
        flat = (flat - flat.mean(2, keepdim=True)) * scales.double().view(1, -1, 1)
    return flat.square().sum((1, 2))


def close(ours: torch.Tensor, wanted: torch.Tensor, tolerance: float) -> None:
    scale = float(wanted.abs().max())
    torch.testing.assert_close(ours.float(), wanted.float(), rtol=0, atol=tolerance * scale)


@pytest.mark.skipif(not AVAILABLE, reason="needs CUDA and Triton")
def test_kernels_on_the_device_equal_their_definitions() -> None:
    compare("cuda", torch.bfloat16, 1e-4)


def test_definition_is_the_gradient_of_each_example() -> None:
    for c, o, h, w, kernel, stride, padding, dilation, views, examples in CASES:
        at = Geometry(kernel, stride, padding, dilation, views)
        x = torch.randn(examples * views, c, h, w, dtype=torch.float64)
        weight = torch.randn(o, c, *kernel, dtype=torch.float64, requires_grad=True)
        y = torch.nn.functional.conv2d(x, weight, None, stride, padding, dilation)
        d = torch.randn_like(y)
        grads = definitions.conv_gradients(x, d, at)
        factors = torch.rand(o, dtype=torch.float64)
        norms = definitions.ghost_norms(x, d, None, at, unit=1e-9)
        centred = definitions.ghost_norms(x, d, factors, at, unit=1e-9)
        exact = exact_norms(grads, factors)
        torch.testing.assert_close(centred, exact, rtol=1e-3, atol=0)
        assert bool((centred >= exact).all())
        scales = torch.rand(examples, dtype=torch.float64)
        total = torch.zeros_like(grads[0])
        for b in range(examples):
            own = slice(b * views, (b + 1) * views)
            wanted = torch.autograd.grad(
                torch.nn.functional.conv2d(x[own], weight, None, stride, padding, dilation),
                weight,
                d[own],
            )[0].permute(0, 2, 3, 1)
            torch.testing.assert_close(grads[b], wanted)
            torch.testing.assert_close(norms[b], wanted.square().sum(), rtol=1e-3, atol=0)
            assert norms[b] >= wanted.square().sum()
            total += scales[b] * wanted
        torch.testing.assert_close(definitions.weighted_sum(x, d, scales, at), total)


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("channels", [64, 512])
@pytest.mark.parametrize("small", [2.0**-11, 2.0**-12.6, 2.0**-14])
def test_the_bound_covers_the_worst_order_of_a_float32_sum(
    channels: int, small: float, centred: bool
) -> None:
    """One large entry first: every smaller product is cut off, term by term."""
    torch.manual_seed(0)
    sign = torch.tensor([1.0, -1, 1, -1])
    x = (small * sign).unsqueeze(1).repeat(1, channels)
    x[:, 0] = 1
    if centred:
        x[:, 1::2] *= -1
        x[:, 1] = -1
    d = torch.randn(1, 32) * sign.unsqueeze(1)

    def product(rows: torch.Tensor) -> torch.Tensor:
        """In float32, one term after the other."""
        total = torch.zeros(4, 4)
        for column in rows.unbind(1):
            total = total + column.unsqueeze(0) * column.unsqueeze(1)
        return total

    a, b = product(x), product(d)
    most = float((a * b).diagonal().double().sqrt().sum().square())
    if centred:
        sums = sum(x.unbind(1), torch.zeros(4))
        a = a - sums.unsqueeze(0) * sums.unsqueeze(1) / channels
    found = max(0.0, float((a * b).sum()))
    gradient = (d.double().t() @ x.double()).view(1, 32, 1, 1, channels)
    exact = float(exact_norms(gradient, torch.ones(32) if centred else None))
    rounding = definitions.ghost_rounding(channels, 1, 32, 4, definitions.UNIT, centred=centred)
    assert found + rounding * most >= exact
    at = Geometry((1, 1), (1, 1), (0, 0), (1, 1), 1)
    xs, ds = x.t().reshape(1, channels, 2, 2), d.t().reshape(1, 32, 2, 2)
    scales = torch.ones(32) if centred else None
    assert float(definitions.ghost_norms(xs, ds, scales, at)) >= exact
