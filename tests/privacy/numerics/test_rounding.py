"""The sensitivity holds in floating point, whatever precision the user has switched on."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sfumato.privacy import Flat, GaussianNoise, Gradients, PoissonSampler, PrivateGradients
from sfumato.privacy.numerics.precision import full_precision


def gradients(tensor: Tensor) -> Gradients:
    return Gradients(("w",), (tensor.shape[1:],), [tensor], torch.zeros(len(tensor)), None)


def realised(tensor: Tensor, clip: float, j: int = 0) -> float:
    """Norm, in float64, of what example j alone adds to the sum."""
    g = gradients(tensor)
    weights = Flat(clip).weights(g.squared_norms())
    alone = torch.zeros_like(weights)
    alone[j] = weights[j]
    return float(torch.linalg.vector_norm(g.weighted_sum(alone)[0].double()))


HARD = {
    "one large, many small": torch.cat([torch.ones(1), torch.full((65535,), 2e-4)]),
    "constant": torch.full((65536,), 0.1),
    "falling": torch.logspace(0, -6, 100_003),
    "rising": torch.logspace(-6, 0, 100_003),
    "many small in the same lane": torch.where(torch.arange(65536) % 64 == 0, 1e-3, 0.0)
    + torch.nn.functional.one_hot(torch.tensor(0), 65536),
    "few": torch.tensor([3.0, 4.0]),
}


@pytest.mark.parametrize("name", HARD)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_realised_norm_at_most_c(name: str, dtype: torch.dtype) -> None:
    tensor = HARD[name].to(dtype).expand(3, -1)
    for clip in (0.37, 1.0, float(tensor[0].double().norm())):
        norm = realised(tensor, clip)
        assert norm <= clip
        assert norm >= min(clip, float(tensor[0].double().norm())) * (1 - 3e-5)


def test_a_plain_float32_norm_would_not_do() -> None:
    """The reason for summing in two stages: a long float32 sum loses what is small."""
    tensor = HARD["one large, many small"]
    plain = float(torch.linalg.vector_norm(tensor))
    assert plain < float(tensor.double().norm()) * (1 - 1e-5)


def private(model: nn.Module, clip: float = 1.0) -> PrivateGradients:
    return PrivateGradients(
        model, sampler=PoissonSampler(100, 10), clipping=Flat(clip), noise=GaussianNoise(0.0)
    )


def added(mechanism: PrivateGradients, x: Tensor, y: Tensor, j: int) -> float:
    weights = torch.zeros(len(y))
    weights[j] = 1
    mechanism.accumulate(x, y, weights)
    sums = [s.double() for s in (mechanism._sum.totals or {}).values()]
    mechanism.discard()
    return float(torch.cat([s.flatten() for s in sums]).norm())


@pytest.fixture
def cnn() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv2d(16, 8, 3),
        nn.Flatten(), nn.Linear(288, 4),
    )  # fmt: skip


X, Y = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(3)), torch.arange(6) % 4


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_lower_matmul_precision_does_not_reach_the_sum(cnn: nn.Module, precision: str) -> None:
    torch.set_float32_matmul_precision(precision)
    try:
        mechanism = private(cnn, 0.01)
        assert all(0.0099 < added(mechanism, X, Y, j) <= 0.01 for j in range(6))
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("size", [64.0, 64.2432])
def test_lower_matmul_precision_does_not_reach_norms_without_gradients(size: float) -> None:
    """The convolution's norms come from products of patches, which bfloat16 would round down."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(64, 256, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(256, 10),
    )  # fmt: skip
    torch.set_float32_matmul_precision("medium")
    try:
        x, y = torch.full((4, 64, 4, 4), size), torch.zeros(4, dtype=torch.long)
        assert 0.000999 < added(private(model, 1e-3), x, y, 0) <= 1e-3
    finally:
        torch.set_float32_matmul_precision("highest")


def test_autocast_does_not_reach_the_sum(cnn: nn.Module) -> None:
    mechanism = private(cnn, 0.01)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert all(0.0099 < added(mechanism, X, Y, j) <= 0.01 for j in range(6))
    assert mechanism.per_example.method == "operators"


def test_autocast_gradients_are_near_the_full_ones(cnn: nn.Module) -> None:
    engine = private(cnn).per_example
    full = engine(X, Y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = engine(X, Y)
    assert cast.outputs is not None and cast.outputs.dtype == torch.bfloat16
    for a, b in zip(full.tensors, cast.tensors, strict=True):
        assert a is not None and b is not None and b.dtype == torch.float32
        assert (a - b).norm() < 0.1 * a.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_clipping_holds_and_gradients_keep_the_models_precision(
    cnn: nn.Module, dtype: torch.dtype
) -> None:
    mechanism = private(cnn.to(dtype), 0.01)
    assert all(0.0099 < added(mechanism, X.to(dtype), Y, j) <= 0.01 for j in range(6))
    mechanism.accumulate(X.to(dtype), Y)
    mechanism.release()
    assert all(p.grad is not None and p.grad.dtype == dtype for p in cnn.parameters())


def test_full_precision_restores_all_settings() -> None:
    a, b = torch.randn(2, 64, 64, generator=torch.Generator().manual_seed(0))
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu"):
            with full_precision(torch.device("cpu")):
                assert torch.allclose((a @ b).double(), a.double() @ b.double(), atol=1e-4)
                assert torch.backends.mkldnn.matmul.fp32_precision == "ieee"
            assert (a @ b).dtype == torch.bfloat16
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_a_gradient_too_large_for_its_norm_counts_as_not_finite() -> None:
    tensor = torch.full((2, 4), 1.0)
    tensor[0] = 3e38
    g = gradients(tensor)
    weights = Flat(1.0).weights(g.squared_norms())
    assert weights[0] == 0
    assert torch.isfinite(g.weighted_sum(weights)[0]).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_zero_weights_silence_anything(bad: float) -> None:
    tensor = torch.ones(3, 5)
    tensor[1, 2] = bad
    g = gradients(tensor.clone())
    before = g.squared_norms()
    total = g.weighted_sum(torch.tensor([[1.0], [0.0], [1.0]]))[0]
    assert torch.equal(total, torch.full((5,), 2.0))
    assert torch.equal(g.squared_norms().isfinite(), before.isfinite())
    assert g.tensors[0] is not None and not g.tensors[0].isfinite().all()


def test_a_zero_weight_silences_one_parameter_alone() -> None:
    """Rules per layer give an example different weights: a zero there silences that layer alone."""
    a, b = torch.ones(2, 3), torch.ones(2, 3)
    a[0] = float("nan")
    g = Gradients(("a", "b"), (a.shape[1:], b.shape[1:]), [a, b], torch.zeros(2), None)
    sums = g.weighted_sum(torch.tensor([[0.0, 1.0], [1.0, 1.0]]))
    assert torch.equal(sums[0], torch.ones(3))
    assert torch.equal(sums[1], torch.full((3,), 2.0))
