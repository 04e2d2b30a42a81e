"""Gradients of filters and matrices that are not written out, against the reference."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sfumato.kernels.definitions import Geometry
from sfumato.privacy import Flat
from sfumato.privacy.engines import book_keeping
from sfumato.privacy.engines.book_keeping import (
    DeferredFilters,
    DeferredProduct,
    conv_pays,
    product_pays,
)
from sfumato.privacy.engines.one_at_a_time import one_at_a_time
from sfumato.privacy.engines.operators import Operators
from sfumato.privacy.per_example import PerExample


def network(*, stride: int = 1, bias: bool = True, kernel: int = 3) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 96, 3, stride=2, padding=1), nn.GroupNorm(4, 96), nn.Tanh(),
        nn.Conv2d(96, 80, kernel, stride=stride, padding=kernel // 2, bias=bias), nn.Tanh(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(80, 5),
    )  # fmt: skip


def deferred(engine: PerExample, x: Tensor, y: Tensor) -> int:
    parts = Operators(engine.objective).gradients(x, y).parts
    return sum(isinstance(part, DeferredFilters | DeferredProduct) for part in parts)


def matrix(x: Tensor, d: Tensor, views: int) -> DeferredProduct:
    """The gradients of a linear layer, from vectors and the gradients of its outputs."""
    shape = d.shape[1], x.shape[1]
    return DeferredProduct(x.unsqueeze(1), d.unsqueeze(1), views, shape)


def compare(model: nn.Module, x: Tensor, y: Tensor, views: int) -> None:
    """Norms, gradients and sums against one example at a time; one part must be deferred."""
    engine = PerExample(model, views=views, check=False)
    assert deferred(engine, x, y) == 1
    ours = Operators(engine.objective).gradients(x, y)
    wanted = one_at_a_time(model, x, y, views=views)
    a, b = ours.squared_norms(), wanted.squared_norms()
    assert bool((a >= b * (1 - 1e-12)).all())
    torch.testing.assert_close(a, b, rtol=1e-4, atol=0)
    for u, v in zip(ours.tensors, wanted.tensors, strict=True):
        torch.testing.assert_close(u, v)
    for each in ([0.3, 1.0, 0.7], [0.0, 0.5, 0.0], [0.0, 0.0, 0.0]):
        weights = torch.tensor(each).double()
        sums = (g.weighted_sum(weights.unsqueeze(1)) for g in (ours, wanted))
        for u, v, one in zip(*sums, wanted.tensors, strict=True):
            torch.testing.assert_close(u, v)
            torch.testing.assert_close(v, torch.tensordot(weights, one, 1))
    for u, v in zip(ours.some([2, 0]).tensors, wanted.some([2, 0]).tensors, strict=True):
        torch.testing.assert_close(u, v)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    ("views", "stride", "size"), [(1, 1, 8), (1, 2, 15), (2, 2, 12), (4, 1, 4)]
)
def test_norms_and_sums_are_those_of_the_reference(
    views: int, stride: int, size: int, last: bool
) -> None:
    torch.manual_seed(0)
    model = network(stride=stride, bias=not last).double()
    x, y = torch.randn(3 * views, 3, size, size).double(), torch.randint(0, 5, (3,))
    if last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        x = x.contiguous(memory_format=torch.channels_last)
    compare(model, x, y, views)


@pytest.mark.parametrize("views", [1, 3])
@pytest.mark.parametrize("bias", [True, False])
def test_a_deferred_matrix_equals_the_materialised_one(views: int, bias: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(12, 60), nn.Tanh(), nn.Linear(60, 80, bias=bias), nn.Tanh(),
        nn.Linear(80, 5),
    ).double()  # fmt: skip
    x, y = torch.randn(3 * views, 3, 2, 2).double(), torch.randint(0, 5, (3,))
    compare(model, x, y, views)
    if views > 1:
        x[1::views] = x[::views]
        x[2::views] = -x[::views]
        compare(model, x, y, views)


def test_a_deferred_matrix_with_nan_or_cancelling_views_has_right_norms() -> None:
    torch.manual_seed(0)
    x, d = torch.randn(6, 40), torch.randn(6, 120)
    d[1], x[1] = -d[0], x[0]
    x[2] = float("nan")
    part = matrix(x, d, 2)
    first, second, third = part.squared_norms().tolist()
    assert 0 <= first < 1e-8 and math.isnan(second)
    assert third == pytest.approx(float(part.tensor()[2].double().square().sum()), rel=1e-6)
    weights = torch.tensor([1.0, 0.0, 0.5])
    torch.testing.assert_close(part.weighted_sum(weights).float(), part.tensor()[2] / 2)
    empty = matrix(x[:0], d[:0], 2)
    assert empty.squared_norms().shape == (0,)
    assert not empty.weighted_sum(weights[:0]).any()


class Narrow(nn.Module):
    """Computes in bfloat16, whatever it is given."""

    def __init__(self, trained: bool) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(48, 90), nn.Linear(90, 60)
        self.body.requires_grad_(trained)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.head(torch.tanh(self.body(x.flatten(1))))


@pytest.mark.parametrize("trained", [False, True])
def test_sums_are_in_float32_at_least_where_a_model_computes_in_less(trained: bool) -> None:
    torch.manual_seed(0)
    model, rule = Narrow(trained), Flat(0.1)
    x, y = torch.randn(4, 3, 4, 4), torch.randint(0, 60, (4,))
    engine = PerExample(model)
    for n in range(4):
        found = engine(x[n : n + 1], y[n : n + 1])
        sums = found.weighted_sum(rule.weights(found.squared_norms()))
        assert all(s.dtype in (torch.float32, torch.float64) for s in sums)
        assert sum(float(s.double().square().sum()) for s in sums) ** 0.5 <= 0.1
    assert engine.method == "operators", engine.passed_over


@pytest.mark.parametrize("cancel", [1e-2, 1e-4, 1e-6])
def test_views_that_cancel_stay_within_c(cancel: float) -> None:
    torch.manual_seed(0)
    for _ in range(20):
        x, d = torch.randn(2, 300), torch.randn(2, 20)
        x[1], d[1] = x[0] + cancel * torch.randn(300), -d[0] + cancel * torch.randn(20)
        part = matrix(x, d, 2)
        weights = 1e-3 / part.squared_norms().sqrt()
        assert float(part.weighted_sum(weights).double().norm()) <= 1e-3 * (1 + 1e-6)


def test_an_example_that_overflows_adds_nothing_to_a_deferred_sum() -> None:
    x, d = torch.full((2, 64), 1e-41), torch.full((2, 64), 3e38)
    x[1], d[1] = 1.0, 1.0
    part = matrix(x, d, 1)
    total = part.weighted_sum(torch.tensor([10.0, 1.0]))
    assert torch.equal(total, torch.ones(64, 64).double())


class Changing(nn.Module):
    """Changes a layer's input in place, if an image holds a certain number."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(48, 70), nn.Linear(70, 60)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x.flatten(1)))
        out: Tensor = self.second(h)
        if bool((x == 0.125).any()):
            h.clamp_(-0.1, 0.1)
        return out


def test_an_input_that_is_changed_in_place_is_noticed() -> None:
    engine = PerExample(Changing())
    x, y = torch.randn(2, 3, 4, 4), torch.tensor([1, 2])
    engine(x, y)
    assert isinstance(engine.engine, Operators) and engine.engine.keeps_books(x)
    x[0, 0, 0, 0] = 0.125
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        engine(x, y)


class Again(nn.Module):
    """A layer whose forward pass is repeated in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(48, 96), nn.Linear(96, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = checkpoint(self.first, x.flatten(1), use_reentrant=False)
        return self.second(torch.tanh(h))


def test_a_layer_in_a_checkpoint_is_deferred() -> None:
    torch.manual_seed(0)
    compare(Again().double(), torch.randn(3, 3, 4, 4).double(), torch.randint(0, 5, (3,)), 1)


class Iterated(nn.Module):
    """Multiplies its state by the same matrix several times, and two vectors of it once more."""

    def __init__(self, transposed: bool = False) -> None:
        super().__init__()
        self.first, self.again, self.head = nn.Linear(24, 90), nn.Linear(90, 90), nn.Linear(90, 5)
        self.transposed = transposed

    def forward(self, x: Tensor) -> Tensor:
        z = self.first(x.flatten(2).flatten(1).unflatten(1, (2, -1)))
        h = torch.tanh(self.again(z)).sum(1)
        for _ in range(3):
            h = torch.tanh(self.again(h)) - z[:, 0]
        return self.head(F.linear(h, self.again.weight.t()) if self.transposed else h)


@pytest.mark.parametrize("views", [1, 3])
def test_a_matrix_that_is_used_several_times_is_deferred(views: int) -> None:
    torch.manual_seed(0)
    model = Iterated().double()
    x, y = torch.randn(3 * views, 3, 4, 4).double(), torch.randint(0, 5, (3,))
    if views > 1:
        x[1::views] = -x[::views]
    compare(model, x, y, views)
    part = Operators(PerExample(model, views=views).objective).gradients(x, y).parts[2]
    assert isinstance(part, DeferredProduct) and part.views == 5 * views


def test_norms_of_many_uses_need_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where products of all pairs of positions are more work than the gradients themselves."""
    torch.manual_seed(0)
    x, d = torch.randn(6 * 150, 70), torch.randn(6 * 150, 80)
    part = matrix(x, d, 150)
    exact = part.tensor().double().flatten(1).square().sum(1)
    shapes: list[torch.Size] = []
    own = torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda *a: shapes.append(own(*a).shape) or own(*a))
    monkeypatch.setattr(book_keeping, "_AT_ONCE", 1 << 16)
    torch.testing.assert_close(part.squared_norms(), exact, rtol=1e-3, atol=0)
    assert shapes and all(shape == (1, 80, 70) for shape in shapes)
    assert bool((part.squared_norms() >= exact).all())
    assert product_pays((1, 64, 64), 32, 32)
    assert not product_pays((1, 64, 64), 400 * 8, 400), "vectors of many uses fill the memory"


def test_a_matrix_that_is_used_transposed_too_is_materialised() -> None:
    torch.manual_seed(0)
    model = Iterated(transposed=True).double()
    x, y = torch.randn(3, 3, 4, 4).double(), torch.randint(0, 5, (3,))
    engine = PerExample(model, check=False)
    assert deferred(engine, x, y) == 0
    ours = Operators(engine.objective).gradients(x, y).tensors
    for u, v in zip(ours, one_at_a_time(model, x, y).tensors, strict=True):
        torch.testing.assert_close(u, v)


def test_a_wrong_sum_is_found_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = DeferredProduct.weighted_sum
    monkeypatch.setattr(DeferredProduct, "weighted_sum", lambda *a: 2 * honest(*a))
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 96), nn.Tanh(), nn.Linear(96, 5))
    engine, x = PerExample(model), torch.randn(3, 3, 4, 4)
    engine(x, torch.randint(0, 5, (3,)))
    assert isinstance(engine.engine, Operators) and not engine.engine.keeps_books(x)


def test_float32_sums_are_right_to_a_hundred_thousandth() -> None:
    torch.manual_seed(0)
    model = network()
    x, y = torch.randn(8, 3, 8, 8), torch.randint(0, 5, (8,))
    engine, rule = PerExample(model, check=False), Flat(0.1)
    assert deferred(engine, x, y) == 1
    ours = Operators(engine.objective).gradients(x, y)
    exact = one_at_a_time(model.double(), x.double(), y)
    a = ours.weighted_sum(rule.weights(ours.squared_norms()))
    b = exact.weighted_sum(rule.weights(exact.squared_norms()))
    off = sum(float((u.double() - v).square().sum()) for u, v in zip(a, b, strict=True))
    assert (off / sum(float(v.square().sum()) for v in b)) ** 0.5 <= 1e-5


def test_an_example_of_weight_zero_adds_nothing_even_if_it_is_nan() -> None:
    torch.manual_seed(0)
    model = network()
    x, y = torch.randn(3, 3, 8, 8), torch.randint(0, 5, (3,))
    x[1] = float("nan")
    engine = PerExample(model, check=False)
    assert deferred(engine, x, y) == 1
    gradients = Operators(engine.objective).gradients(x, y)
    weights = Flat(1.0).weights(gradients.squared_norms()).clone()
    assert not bool(weights[1].any())
    with_nan = gradients.weighted_sum(weights)
    x[1] = 0
    weights[1] = 0
    without = Operators(engine.objective).gradients(x, y).weighted_sum(weights)
    for u, v in zip(with_nan, without, strict=True):
        torch.testing.assert_close(u, v)


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.conv = nn.Conv2d(3, 96, 3, padding=1), nn.Conv2d(96, 96, 3, padding=1)
        self.head = nn.Linear(96, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(torch.tanh(self.conv(torch.tanh(self.first(x)))))
        return self.head(x.mean((2, 3)))


def test_gradients_are_materialised_where_deferring_does_not_pay() -> None:
    x, y = torch.randn(2, 3, 4, 4), torch.randint(0, 5, (2,))
    assert deferred(PerExample(Shared(), check=False), x, y) == 0
    plain = nn.Conv2d(128, 128, 3, padding=1)
    assert conv_pays(plain.weight, 16)
    assert not conv_pays(plain.weight, 32 * 32)
    assert not conv_pays(plain.weight, 16 * 16)
    matrices = {n: (1, 10, n) for n in (64, 4000)} | {512: (1, 32, 512)}
    assert product_pays(matrices[4000], 1) and product_pays(matrices[512], 4)
    assert not product_pays(matrices[64], 1) and not product_pays(matrices[4000], 16)
    words = nn.Sequential(nn.Linear(64, 80), nn.Flatten(), nn.Linear(720, 5))
    assert deferred(PerExample(words, check=False), torch.randn(2, 9, 64), y) == 0, "nine vectors"
    frozen = nn.Sequential(nn.Flatten(), nn.Linear(48, 96), nn.Linear(96, 5))
    frozen[1].weight.requires_grad_(False)
    assert deferred(PerExample(frozen, check=False), x, y) == 0


def hidden(channels: int, small: float, last: bool) -> tuple[Tensor, Tensor]:
    """A large channel that cancels over places, and small ones, which are all that is left.

    In float32 the small ones' squares vanish beside the large one's.
    """
    torch.manual_seed(0)
    sign = torch.tensor([1.0, -1, 1, -1]).view(2, 2)
    x = 1000 * small * sign.expand(1, channels, 2, 2)
    x = x.clone()
    x[:, -1 if last else 0] = 1000
    return x, torch.randn(1, 512, 1, 1) * sign


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("bits", [11.0, 12.4, 12.6, 13.0, 14.0, 20.0])
@pytest.mark.parametrize("channels", [128, 1024])
def test_norms_count_small_terms_beside_cancelling_ones(
    channels: int, bits: float, last: bool
) -> None:
    x, d = hidden(channels, 2.0**-bits, last)
    weight = torch.empty(512, channels, 1, 1)
    part = DeferredFilters(x, d, weight, Geometry((1, 1), (1, 1), (0, 0), (1, 1), 1))
    exact = DeferredFilters(x.double(), d.double(), weight.double(), part.at).tensor().norm()
    added = part.weighted_sum(torch.ones(1, dtype=torch.float64)).double().norm()
    measured = float(part.squared_norms().sqrt())
    assert max(float(exact), float(added)) <= measured
    assert measured <= float(exact) + 1e-6 * float(x.norm() * d.norm())


def test_a_clipped_example_with_small_entries_beside_large_ones_adds_no_more_than_c() -> None:
    x, _ = hidden(256, 2.0**-12.6, False)
    model = nn.Sequential(nn.Conv2d(256, 512, 1, bias=False), nn.Flatten(), nn.Linear(2048, 2))
    with torch.no_grad():
        model[0].weight.mul_(1e-3)
        sign = torch.tensor([1.0, -1, 1, -1])
        model[2].weight.copy_((torch.randn(2, 512, 1) * sign).reshape(2, -1) * 0.3)
    engine, y = PerExample(model, check=False), torch.tensor([0])
    assert deferred(engine, x, y) >= 1
    found = Operators(engine.objective).gradients(x, y)
    clip = float(found.squared_norms().sum().sqrt())
    total = found.weighted_sum(Flat(clip).weights(found.squared_norms()))
    assert math.sqrt(sum(float(t.double().square().sum()) for t in total)) <= clip
    alone = one_at_a_time(model.double(), x.double(), y)
    assert float(alone.squared_norms().sum().sqrt()) <= clip
