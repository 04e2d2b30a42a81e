"""Curvature against exact Hessians, closed forms, and power iteration with deflation."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato import models
from sfumato.analysis import (
    Hessian,
    exact_spectrum,
    lanczos,
    spectrum_of,
    top_eigenvalues,
    trace_of,
)
from sfumato.analysis.curvature import rademacher
from sfumato.errors import UserError
from sfumato.nn import standardised


def small_net(*, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(3)
    net = nn.Sequential(
        standardised(nn.Conv2d(1, 3, 3, padding=1)), nn.GroupNorm(1, 3), nn.Mish(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.5), nn.Linear(12, 3),
    )  # fmt: skip
    return net.to(dtype)


def batch(n: int = 10, size: int = 6, classes: int = 3) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, 1, size, size, generator=g, dtype=torch.float64)
    return x, torch.randint(0, classes, (n,), generator=g)


def reference(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The whole Hessian by torch.func, in the order of parameters."""
    model = model.eval()
    names = [n for n, p in model.named_parameters() if p.requires_grad]
    sizes = [dict(model.named_parameters())[n].shape for n in names]

    def loss(flat: Tensor) -> Tensor:
        parts = torch.split(flat, [s.numel() for s in sizes])
        own = {n: p.view(s) for n, p, s in zip(names, parts, sizes, strict=True)}
        return F.cross_entropy(torch.func.functional_call(model, own, (x,)), y)

    flat = torch.cat([dict(model.named_parameters())[n].detach().reshape(-1) for n in names])
    return torch.func.hessian(loss)(flat)


@cache
def exact_hessian() -> Tensor:
    """That of the small network on its batch."""
    return reference(small_net(), *batch())


@pytest.mark.parametrize("rows", [3, 128])
def test_products_are_those_of_the_exact_hessian(rows: int) -> None:
    model, (x, y) = small_net(), batch()
    exact = exact_hessian()
    model.train()
    hessian = Hessian(model, x, y, physical_batch=rows)
    assert model.training, "the model is left as it was"
    torch.testing.assert_close(hessian.dense(), exact, rtol=1e-8, atol=1e-10)
    v = torch.randn(hessian.size, dtype=torch.float64)
    torch.testing.assert_close(hessian @ v, exact @ v, rtol=1e-8, atol=1e-10)
    narrow = Hessian(small_net(dtype=torch.float32), x, y, physical_batch=rows)
    assert narrow.dtype == torch.float32
    torch.testing.assert_close((narrow @ v).double(), exact @ v, rtol=1e-3, atol=1e-3)


def test_gradient_is_autograds_and_frozen_parameters_do_not_count() -> None:
    model, (x, y) = small_net(), batch()
    model[6].weight.requires_grad_(False)
    hessian = Hessian(model, x, y, physical_batch=4)
    trained = [p for p in model.parameters() if p.requires_grad]
    assert hessian.size == sum(p.numel() for p in trained)
    loss = F.cross_entropy(model.eval()(x), y)
    slopes = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, trained)])
    torch.testing.assert_close(hessian.gradient(), slopes, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(hessian.dense(), reference(model, x, y), rtol=1e-7, atol=1e-9)


def test_a_quadratic_has_the_curvature_it_was_given() -> None:
    """Linear regression: the Hessian of the mean of (w.x - y)^2 is 2 X'X / n."""
    torch.manual_seed(0)
    x, y = torch.randn(50, 6, dtype=torch.float64), torch.randn(50, 1, dtype=torch.float64)
    model = nn.Linear(6, 1, bias=False).double()
    hessian = Hessian(model, x, y, loss=lambda out, t: (out - t).square().mean(), physical_batch=7)
    torch.testing.assert_close(hessian.dense(), 2 * x.T @ x / 50, rtol=1e-9, atol=1e-12)
    found = exact_spectrum(hessian)
    values = np.linalg.eigvalsh((2 * x.T @ x / 50).numpy())
    assert found.negative_found == 0
    assert found.condition == pytest.approx(values[-1] / values[0], rel=1e-9)


def test_hutchinson_agrees_with_the_trace_within_its_error() -> None:
    model, (x, y) = small_net(), batch()
    exact = float(exact_hessian().trace())
    found = trace_of(Hessian(model, x, y), probes=200, tolerance=0, seed=1)
    assert found.probes == 200
    assert abs(found.value - exact) < 4 * found.error
    off = exact_hessian()
    off = off - torch.diag(off.diag())
    spread = math.sqrt(2 * float(off.square().sum()) / 200)
    assert found.error == pytest.approx(spread, rel=0.25)
    early = trace_of(Hessian(model, x, y), probes=400, tolerance=0.5)
    assert early.probes == 10


def power_iteration(matrix: Tensor, count: int, steps: int = 20_000) -> np.ndarray:
    """The largest eigenvalues in size, one at a time, earlier ones projected out."""
    torch.manual_seed(0)
    vectors: list[Tensor] = []
    values = []
    for _ in range(count):
        v = torch.randn(len(matrix), dtype=matrix.dtype)
        for _ in range(steps):
            for u in vectors:
                v = v - (u @ v) * u
            v = v / v.norm()
            w = matrix @ v
            value = float(v @ w)
            if (w - value * v).norm() < 1e-9 * abs(value):
                break
            v = w
        vectors.append(v / v.norm())
        values.append(value)
    return np.array(values)


def test_lanczos_agrees_with_power_iteration_and_the_exact_eigenvalues() -> None:
    model, (x, y) = small_net(), batch()
    hessian = Hessian(model, x, y)
    exact = np.linalg.eigvalsh(exact_hessian().numpy())
    exact = exact[np.argsort(-np.abs(exact))]
    values, errors = top_eigenvalues(hessian, count=4, iterations=hessian.size, tolerance=1e-9)
    np.testing.assert_allclose(values, exact[:4], rtol=1e-7)
    assert (np.abs(values - exact[:4]) <= errors + 1e-9).all()
    np.testing.assert_allclose(power_iteration(hessian.dense(), 3), exact[:3], rtol=1e-5)
    few, bounds = top_eigenvalues(hessian, count=3, iterations=8, tolerance=0)
    gaps = np.abs(few[:, None] - exact[None]).min(1)
    assert (gaps <= bounds + 1e-9).all(), "the error bound holds before convergence too"


class Diagonal:
    device, dtype = torch.device("cpu"), torch.float64

    def __init__(self, values: np.ndarray) -> None:
        self.values = torch.tensor(values, dtype=torch.float64)
        self.size = len(values)

    def __matmul__(self, v: Tensor) -> Tensor:
        return self.values * v


def test_lanczos_keeps_its_vectors_orthogonal() -> None:
    """Without reorthogonalisation the large eigenvalues would come back as ghosts."""
    values = np.concatenate([np.linspace(0, 1, 180), [50.0, 80.0, -60.0]])
    matrix = Diagonal(values)
    ritz = lanczos(matrix, torch.ones(183, dtype=torch.float64), iterations=183)
    np.testing.assert_allclose(ritz.values[-2:], [50, 80], rtol=1e-10)
    assert (np.abs(ritz.values) > 2).sum() == 3
    np.testing.assert_allclose(ritz.values, np.sort(values), atol=1e-8)
    assert ritz.weights.sum() == pytest.approx(1)
    np.testing.assert_allclose(ritz.weights, 1 / 183, atol=1e-8)


def test_lanczos_stops_at_an_invariant_subspace() -> None:
    matrix = Diagonal(np.array([1.0, 1.0, 5.0, 5.0, 5.0]))
    ritz = lanczos(matrix, torch.ones(5, dtype=torch.float64), iterations=5)
    np.testing.assert_allclose(ritz.values, [1, 5])
    np.testing.assert_allclose(ritz.weights, [0.4, 0.6])
    np.testing.assert_allclose(ritz.errors, 0, atol=1e-12)


def test_density_counts_negative_eigenvalues_and_moments() -> None:
    model, (x, y) = small_net(), batch()
    hessian = Hessian(model, x, y)
    exact = spectrum_of(hessian)
    assert exact.exact and exact.found == hessian.size
    true = np.linalg.eigvalsh(exact_hessian().numpy())
    assert exact.negative_found == (true < -exact.tolerance).sum() > 0
    np.testing.assert_allclose(exact.values, true, atol=1e-9)
    found = spectrum_of(hessian, exact=0, probes=12, iterations=25, seed=2)
    assert not found.exact and found.weights.sum() == pytest.approx(1)
    # The quadrature is exact for polynomials: v'Hv and v'HHv of the very same random vectors.
    draws = torch.Generator().manual_seed(2)
    signs = torch.stack([rademacher(hessian.size, draws, hessian) for _ in range(12)])
    products = signs @ exact_hessian()
    first = found.size * (found.values * found.weights).sum()
    assert first == pytest.approx(float((signs * products).sum(1).mean()), rel=1e-8)
    second = found.size * (found.values**2 * found.weights).sum()
    assert second == pytest.approx(float(products.square().sum(1).mean()), rel=1e-8)
    assert found.resolution == pytest.approx(1e-3 * abs(true).max(), rel=1e-6)
    clearly = (true < -found.resolution).mean()
    assert 0 < clearly < 1 and found.negative_mass == pytest.approx(clearly, abs=0.1)
    close = (abs(true) <= found.resolution).mean()
    assert found.zero_mass == pytest.approx(close, abs=0.1)
    np.testing.assert_allclose(found.top[:3], exact.top[:3], rtol=1e-6)
    grid = np.linspace(true.min() - 1, true.max() + 1, 4000)
    assert np.trapezoid(found.density(grid, width=0.05), grid) == pytest.approx(1, abs=1e-3)


ZOO = [
    ("tanh-cnn", {"filters": 2}),
    ("papernot-1", {"filters": 2}),
    ("resnet9", {"layout": (2, 4, 4), "groups": 2}),
    ("scale-resnet9", {"layout": (2, 4, 4), "groups": 2}),
    ("wrn-10-1", {}),
    ("scale-wrn-10-1", {}),
    ("resnet20", {"blocks": 1, "filters": 4}),
    ("smoothnet", {"width": 1, "depth": 1}),
    ("eq-resnet9-c4", {"layout": (2, 2, 4)}),
    ("eq-resnet9-so2-1", {"layout": (2, 2, 4)}),
    ("eq-wrn-10-1", {}),
]


@pytest.mark.parametrize(("name", "options"), ZOO, ids=[name for name, _ in ZOO])
def test_products_for_the_zoo_match_finite_differences(name: str, options: dict) -> None:
    torch.manual_seed(0)
    model = models.create(name, classes=3, channels=1, size=16, **options)
    x, y = batch(2, size=16)
    hessian = Hessian(model, x, y, dtype=torch.float64)
    assert next(model.parameters()).dtype == torch.float32, "the model itself is not touched"
    # Along a direction in which the loss is smooth: ReLU and max-pooling have kinks elsewhere.
    v = hessian.gradient()
    v = v / v.norm()
    product, parameters, h = hessian @ v, hessian.parameters, 1e-6
    slopes = []
    for sign in (1, -1):
        start = 0
        with torch.no_grad():
            for p in parameters:
                p += sign * h * (1 if sign == 1 else 2) * v[start : start + p.numel()].view_as(p)
                start += p.numel()
        slopes.append(Hessian(hessian.model, x, y).gradient())
    difference = (slopes[0] - slopes[1]) / (2 * h)
    assert float((product - difference).norm() / product.norm()) < 1e-3
    wide = float(v @ product)
    narrow = Hessian(model, x, y)
    assert narrow.dtype == torch.float32
    assert float(v.float() @ (narrow @ v)) == pytest.approx(wide, rel=1e-2)


def test_mish_of_large_values_has_a_second_derivative() -> None:
    """PyTorch's own is NaN in float32 where exp overflows."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Mish(), nn.Linear(5, 3))
    x, y = 300 * torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    assert float(model[0](x).max()) > 100
    narrow, wide = Hessian(model, x, y), Hessian(model, x, y, dtype=torch.float64)
    v = torch.randn(narrow.size)
    torch.testing.assert_close((narrow @ v).double(), wide @ v, rtol=1e-3, atol=1e-2)
    torch.testing.assert_close(wide.dense(), reference(model.double(), x.double(), y))


def test_what_has_no_curvature_is_refused() -> None:
    model, (x, y) = small_net(), batch()
    with pytest.raises(UserError, match="no images"):
        Hessian(model, x[:0], y[:0])
    with torch.no_grad():
        model[6].weight.fill_(math.nan)
    hessian = Hessian(model, x, y)
    with pytest.raises(UserError, match="not finite"):
        hessian @ torch.ones(hessian.size, dtype=torch.float64)
    model.requires_grad_(False)
    with pytest.raises(UserError, match="no trainable"):
        Hessian(model, x, y)
