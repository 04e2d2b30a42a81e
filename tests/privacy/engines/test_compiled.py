"""The compiled pass against the one by operators, traced whole but run without code generation."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sfumato import models
from sfumato.nn.standardise import standardised
from sfumato.privacy import Flat, GaussianNoise, PoissonSampler
from sfumato.privacy.engines import compiled
from sfumato.privacy.engines.compiled import Compiled, NotCompiled
from sfumato.privacy.engines.operators import Operators
from sfumato.privacy.engines.storage_plan import Storage
from sfumato.privacy.engines.stored_gradients import Derived, Whole
from sfumato.privacy.mechanism import PrivateGradients
from sfumato.privacy.per_example import PerExample
from uncompiled import run_without_code


@pytest.fixture(autouse=True)
def _traced(monkeypatch: pytest.MonkeyPatch) -> None:
    run_without_code(monkeypatch)


CASES = [
    ("tanh-cnn", {"filters": 4}, 8, 1, None),
    ("tanh-cnn", {"filters": 4}, 8, 2, "ghost"),
    ("standardised", {}, 6, 2, "materialise"),
    ("standardised", {}, 6, 1, "norm-only"),
    ("standardised", {}, 6, 2, "ghost"),
    *(
        pytest.param(name, {}, 8, views, storage, marks=pytest.mark.slow)
        for name in ("scale-resnet9", "resnet20", "wrn-10-1", "eq-resnet9-c4", "smoothnet")
        for views in (1, 2)
        for storage in (None, "materialise", "norm-only", "ghost")
    ),
]


def network(name: str, size: int, **options: object) -> nn.Module:
    """A registered model, or a small one with standardised filters, for two channels."""
    if name != "standardised":
        return models.create(name, classes=5, channels=2, size=size, **options)
    return nn.Sequential(
        standardised(nn.Conv2d(2, 4, 3, padding=1)), nn.GroupNorm(2, 4), nn.Mish(),
        standardised(nn.Conv2d(4, 4, 3, bias=False)), nn.Mish(),
        nn.Flatten(), nn.Linear(4 * (size - 2) ** 2, 5),
    )  # fmt: skip


@pytest.mark.parametrize(("name", "options", "size", "views", "storage"), CASES)
def test_norms_and_sums_are_those_of_the_pass_by_operators(
    name: str, options: dict[str, object], size: int, views: int, storage: Storage | None
) -> None:
    torch.manual_seed(0)
    model = network(name, size, **options).double()
    engine = PerExample(model, views=views, check=False)
    x, y = torch.randn(3 * views, 2, size, size).double(), torch.randint(0, 5, (3,))
    ours = Compiled(engine.objective, x, 3, torch.float64, storage=storage).gradients(x, y)
    reference = Operators(engine.objective).gradients(x, y)
    norms, wanted = ours.squared_norms(), reference.squared_norms()
    assert ours.names == reference.names
    assert bool((norms >= wanted * (1 + 1e-4) - 1e-9).all())
    # Ghost norms of standardised filters keep the small part along the filter.
    rtol, atol = (0.3, 1e-3 * float(wanted.max())) if storage == "ghost" else (1e-3, 1e-7)
    torch.testing.assert_close(norms, wanted, rtol=rtol, atol=atol)
    weights = torch.rand(3, len(ours.names)).double()
    weights[1] = 0
    for a, b in zip(ours.weighted_sum(weights), reference.weighted_sum(weights), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-6)


def test_only_the_loss_has_a_gradient() -> None:
    # The compiler would write gradients of zeros for every other result, and add them.
    model = network("standardised", 6)
    x, y = torch.randn(2, 2, 6, 6), torch.tensor([0, 1])
    passes = Compiled(
        PerExample(model, check=False).objective, x, 2, torch.float32, storage="ghost"
    )
    passes.gradients(x, y)
    assert passes._forward is not None
    with torch.enable_grad():
        total, *others = passes._forward(x, y, *passes._tensors)
    assert total.requires_grad and len(others) > 2
    assert not any(t.requires_grad for t in others)


def test_values_follow_the_parameters() -> None:
    model = network("standardised", 6)
    engine = PerExample(model, check=False)
    x, y = torch.randn(2, 2, 6, 6), torch.tensor([0, 1])
    passes = Compiled(engine.objective, x, 2, torch.float32)
    before = passes.gradients(x, y).losses
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.5)
    after = passes.gradients(x, y).losses
    assert not torch.allclose(before, after)
    torch.testing.assert_close(
        after, Operators(engine.objective).gradients(x, y).losses, rtol=1e-4, atol=1e-5
    )


def test_a_nan_example_with_weight_zero_adds_nothing() -> None:
    model = models.create("tanh-cnn", classes=3, channels=1, size=8, filters=2)
    engine = PerExample(model, check=False)
    x, y = torch.randn(3, 1, 8, 8), torch.tensor([0, 1, 2])
    x[1] = float("nan")
    ours = Compiled(engine.objective, x, 3, torch.float32).gradients(x, y)
    weights = Flat(1.0).weights(ours.squared_norms())
    assert not bool(weights[1].any())
    assert all(bool(s.isfinite().all()) for s in ours.weighted_sum(weights))


class Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.temperature = nn.Parameter(torch.tensor(2.0))
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x * self.scale) / self.temperature


def _agree(model: nn.Module, x: Tensor, *, storage: Storage | None = None) -> Compiled:
    """Compile a pass and compare it with the one by operators."""
    y = torch.randint(0, 3, (len(x),))
    objective = PerExample(model, check=False).objective
    passes = Compiled(objective, x, len(x), torch.float32, storage=storage)
    ours, wanted = passes.gradients(x, y), Operators(objective).gradients(x, y)
    torch.testing.assert_close(
        ours.squared_norms(), wanted.squared_norms(), rtol=1e-3, atol=1e-8, check_dtype=False
    )
    weights = torch.rand(len(x), 1)
    for a, b in zip(ours.weighted_sum(weights), wanted.weighted_sum(weights), strict=True):
        torch.testing.assert_close(a, b.float(), rtol=1e-4, atol=1e-6)
    return passes


def test_parameters_outside_of_layers_are_compiled() -> None:
    _agree(Bare(), torch.randn(3, 4))
    _agree(nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))), torch.randn(3, 4))
    encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    words = nn.Sequential(encoder, nn.Flatten(), nn.Linear(40, 3))
    _agree(words, torch.randn(2, 5, 8), storage="norm-only")


class _Adapted(nn.Module):
    """A frozen matrix with an adapter of low rank, and a gain that is reshaped."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Parameter(torch.randn(6, 4), requires_grad=False)
        self.down, self.up = nn.Parameter(torch.randn(2, 4)), nn.Parameter(torch.randn(6, 2))
        self.gain, self.slope = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(6))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.linear(x, self.frozen + self.up @ self.down) * self.gain.reshape(1, -1)
        return self.head(y.tanh() * self.slope.abs().reshape(1, -1))


class _Crossed(nn.Module):
    """A parameter in an operator without a rule."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Parameter(torch.tensor([[1.0, 2.0, -1.0]]))

    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.cross(x, self.other)


class _Opaque(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.other = nn.Linear(4, 3), _Crossed()

    def forward(self, x: Tensor) -> Tensor:
        y = checkpoint(lambda t: self.first(t).tanh(), x, use_reentrant=False)
        return self.other(y)


class _Bounded(nn.Module):
    """Few numbers, whose absolute values and bounds look like the numbers themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(-torch.ones(3))
        self.gain = nn.Parameter(torch.tensor([5.0, -5.0, 1.0]))
        self.head = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((x - self.shift.abs()) * self.gain.clamp(-2, 2))


def test_what_is_not_a_parameter_in_another_shape_is_not_taken_for_one() -> None:
    torch.manual_seed(0)
    _agree(_Bounded(), torch.randn(4, 3))


def test_adapters_and_layers_without_a_rule_are_compiled() -> None:
    torch.manual_seed(0)
    passes = _agree(_Adapted(), torch.randn(3, 4))
    kinds = {name: type(slot) for slot in passes.slots.slots for name in slot.names}
    assert kinds["gain"] is Whole and kinds["slope"] is Derived and kinds["up"] is Derived
    passes = _agree(_Opaque(), torch.randn(3, 4))
    assert list(passes.slots.program.opaque) == ["other"]


def test_frozen_and_unused_parameters_are_compiled() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3))
    model[0].weight.requires_grad_(False)
    model.register_parameter("unused", nn.Parameter(torch.ones(2)))
    model.register_buffer("mask", torch.ones(4))
    passes = _agree(model, torch.randn(3, 1, 4, 4))
    with torch.no_grad():
        model[0].weight.mul_(2)
    x, y = torch.randn(3, 1, 4, 4), torch.tensor([0, 1, 2])
    torch.testing.assert_close(
        passes.gradients(x, y).losses, nn.functional.cross_entropy(model(x), y, reduction="none")
    )


class _Branching(Bare):
    def forward(self, x: Tensor) -> Tensor:
        largest = float(self.head.weight.detach().abs().max())
        return super().forward(x if largest < 1e9 else x * 0)


class _Hidden(torch.autograd.Function):
    """The identity, which no mode sees."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> Tensor:
        return grads[0]


class _Unseen(Bare):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(x * _Hidden.apply(self.scale))


def test_a_part_that_cannot_be_traced_is_not_compiled() -> None:
    private = PrivateGradients(
        _Branching(), sampler=PoissonSampler(4, 2), clipping=Flat(1.0), noise=GaussianNoise(0.0)
    )
    private.per_example.precision = torch.float32
    private.accumulate(torch.randn(2, 4), torch.tensor([0, 1]))
    assert "compiled" in private.per_example.passed_over
    with pytest.raises(NotCompiled, match="not seen"):
        Compiled(PerExample(_Unseen(), check=False).objective, torch.randn(2, 4), 2, torch.float32)


class _Scaled(Bare):
    factor = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.factor = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.factor


def test_a_setting_that_changes_is_followed() -> None:
    model = _Scaled()
    engine = PerExample(model, check=False, precision=torch.float32)
    x, y = torch.randn(3, 4), torch.tensor([0, 1, 2])
    for k in range(6):
        model.factor = 1.0 + k
        found = engine(x, y)
        wanted = nn.functional.cross_entropy(model(x), y, reduction="none")
        torch.testing.assert_close(found.losses, wanted.detach())
        assert isinstance(found, compiled.Fused) == (k < 4)
    assert "too often" in engine.passed_over["compiled"]


def test_the_realised_norm_stays_within_c() -> None:
    torch.manual_seed(0)
    model = models.create("tanh-cnn", classes=5, channels=2, size=8)
    engine = PerExample(model, check=False)
    x, y = torch.randn(4, 2, 8, 8) * 10, torch.randint(0, 5, (4,))
    ours = Compiled(engine.objective, x, 4, torch.float32).gradients(x, y)
    weights = Flat(0.1).weights(ours.squared_norms())
    for i in range(4):
        alone = torch.zeros_like(weights)
        alone[i] = weights[i]
        total = sum(float(s.double().square().sum()) for s in ours.weighted_sum(alone))
        assert total**0.5 <= 0.1


def test_the_engine_takes_the_compiled_pass_when_asked() -> None:
    torch.manual_seed(0)
    model = models.create("tanh-cnn", classes=3, channels=1, size=8, filters=2)
    engine = PerExample(model, precision=torch.float32)
    x, y = torch.randn(3, 1, 8, 8), torch.tensor([0, 1, 2])
    ours = engine(x, y)
    assert isinstance(ours, compiled.Fused), engine.passed_over
    wanted = PerExample(model)(x, y).squared_norms()
    torch.testing.assert_close(ours.squared_norms(), wanted, rtol=1e-3, atol=1e-9)


def test_a_fault_behind_a_head_of_zeros_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = models.create("tanh-cnn", classes=3, channels=1, size=8, filters=2)
    model.head.weight.data.zero_()
    x, y = torch.randn(3, 1, 8, 8), torch.tensor([0, 1, 2])
    right = PerExample(model, precision=torch.float32)
    model.head.bias.data.zero_()
    first = right(x, y)
    assert isinstance(first, compiled.Fused), right.passed_over
    assert not bool(model.head.weight.any())
    torch.testing.assert_close(first.losses, torch.full((3,), math.log(3.0)))
    assert not bool(first.squared_norms()[:, :-2].any()), "zeros pass nothing back"
    monkeypatch.setattr(compiled.Fused, "weighted_sum", _longer(2.0))
    engine = PerExample(model, precision=torch.float32)
    assert not isinstance(engine(x, y), compiled.Fused)
    assert "adds" in engine.passed_over["compiled"]


def _longer(factor: float) -> Callable[[compiled.Fused, Tensor], list[Tensor]]:
    """Sums whose first parameter is too long."""
    honest = compiled.Fused.weighted_sum

    def wrong(self: compiled.Fused, weights: Tensor) -> list[Tensor]:
        first, *rest = honest(self, weights)
        return [factor * first, *rest]

    return wrong


def _taken(precision: torch.dtype) -> tuple[bool, str]:
    """Whether an engine takes the compiled pass as it is now, and if not, why."""
    torch.manual_seed(0)
    model = models.create("tanh-cnn", classes=3, channels=1, size=8, filters=2)
    engine = PerExample(model, precision=precision)
    found = engine(torch.randn(3, 1, 8, 8), torch.tensor([0, 1, 2]))
    return isinstance(found, compiled.Fused), engine.passed_over.get("compiled", "")


@pytest.mark.parametrize(
    ("factor", "precision"),
    [
        (0.9, torch.float32),
        (0.999, torch.bfloat16),
        (2.0, torch.float32),
        pytest.param(0.9, torch.bfloat16, marks=pytest.mark.slow),
        pytest.param(0.999, torch.float32, marks=pytest.mark.slow),
        pytest.param(2.0, torch.bfloat16, marks=pytest.mark.slow),
    ],
)
def test_norms_that_are_not_those_of_the_sums_are_found(
    monkeypatch: pytest.MonkeyPatch, precision: torch.dtype, factor: float
) -> None:
    honest = compiled.Fused.squared_norms
    monkeypatch.setattr(compiled.Fused, "squared_norms", lambda self: honest(self) * factor**2)
    taken, reason = _taken(precision)
    assert not taken and "of norm" in reason


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_gradients_of_the_wrong_example_are_found(
    monkeypatch: pytest.MonkeyPatch, precision: torch.dtype
) -> None:
    norms, sums = compiled.Fused.squared_norms, compiled.Fused.weighted_sum
    monkeypatch.setattr(compiled.Fused, "squared_norms", lambda self: norms(self).flip(0))
    monkeypatch.setattr(compiled.Fused, "weighted_sum", lambda self, w: sums(self, w.flip(0)))
    taken, reason = _taken(precision)
    assert not taken and "for one example by" in reason


def test_rounding_of_one_example_in_bfloat16_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """As networks that are sure of an example do: its gradient is off, its norm with it."""
    norms, sums = compiled.Fused.squared_norms, compiled.Fused.weighted_sum
    off = torch.tensor([[1.0], [1.0], [1.06]]).double()
    monkeypatch.setattr(compiled.Fused, "squared_norms", lambda self: norms(self) * off.square())
    monkeypatch.setattr(compiled.Fused, "weighted_sum", lambda self, w: sums(self, w * off))
    assert _taken(torch.bfloat16) == (True, "")
    taken, reason = _taken(torch.float32)
    assert not taken and "differs" in reason


@pytest.mark.slow
def test_one_process_may_train_more_models_than_the_compiler_likes() -> None:
    for filters in range(1, torch._dynamo.config.recompile_limit + 2):
        model = nn.Sequential(nn.Conv2d(2, filters, 3), nn.Flatten(), nn.Linear(filters * 4, 3))
        engine = PerExample(model, check=False)
        x, y = torch.randn(filters, 2, 4, 4), torch.randint(0, 3, (filters,))
        ours = Compiled(
            engine.objective, x, filters, torch.float32, storage="materialise"
        ).gradients(x, y)
        wanted = Operators(engine.objective).gradients(x, y)
        torch.testing.assert_close(ours.losses, wanted.losses)
        weights = torch.rand(filters, 1)
        for a, b in zip(ours.weighted_sum(weights), wanted.weighted_sum(weights), strict=True):
            torch.testing.assert_close(a, b.float(), rtol=1e-4, atol=1e-5)
