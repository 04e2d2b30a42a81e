"""The sum moves by at most C when an example is taken away, whatever the others are."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from sfumato.errors import UserError
from sfumato.kernels.definitions import Geometry
from sfumato.privacy import (
    Flat,
    GaussianNoise,
    Gradients,
    Normalised,
    PhysicalBatch,
    PoissonSampler,
    PrivateGradients,
    physical_batches,
)
from sfumato.privacy.clipping import ClippingRule
from sfumato.privacy.engines.book_keeping import DeferredFilters, DeferredProduct
from sfumato.privacy.engines.stored_gradients import Matrix
from sfumato.privacy.numerics.rescaling import LARGEST, _within, rescaled


class Given(nn.Module):
    """A model whose per-example gradient is its input."""

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, numbers))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight)


def first_output(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs[:, 0]


def mechanism(numbers: int, rule: ClippingRule, examples: int = 10**6) -> PrivateGradients:
    return PrivateGradients(
        Given(numbers), sampler=PoissonSampler(examples, 10), clipping=rule,
        noise=GaussianNoise(0.0), loss=first_output, check=False,
    )  # fmt: skip


def summed(x: Tensor, rule: ClippingRule, size: int, *, first: int = 0) -> Tensor:
    """The sum of the clipped rows of x, as the mechanism has it, in physical batches of a size.

    The first rows are in batches of 4096.
    """
    private = mechanism(x.shape[1], rule)
    early, late = torch.arange(len(x)).tensor_split([first])
    for batch in (*physical_batches(early, 4096), *physical_batches(late, size)):
        own = x[batch.indices]
        found = Gradients(
            ("weight",), (torch.Size([1, x.shape[1]]),), [own.unsqueeze(1)],
            torch.zeros(len(own)), None,
        )  # fmt: skip
        private._add(found, torch.zeros(len(own), dtype=torch.long), batch.weights)
    assert private._sum.totals is not None
    return private._sum.totals["weight"].double().clone()


def orders(n: int) -> dict[str, Tensor]:
    """Examples whose sums in float32 round badly, in adversarial orders."""
    ones = torch.zeros(n, 2)
    ones[:, 0] = 1.0
    mixed = ones.clone()
    mixed[1::2, 0] = 0.7071067
    mixed[1::2, 1] = 0.7071067
    tiny = ones * 1e-4
    tiny[0] = torch.tensor([1.0, 0.0])
    falling = ones * torch.linspace(1, 1e-3, n).unsqueeze(1)
    return {
        "aligned": ones * 1.1,
        "two directions in turn": mixed,
        "one large, then small ones": tiny,
        "falling": falling,
        "rising": falling.flip(0),
        "a third": ones / 3,
    }


@pytest.mark.parametrize("name", list(orders(2)))
@pytest.mark.parametrize(
    ("n", "size"),
    [
        (100, 1),
        pytest.param(8464, 64, marks=pytest.mark.slow),
        (29757, 500),
        pytest.param(100_000, 4096, marks=pytest.mark.slow),
    ],
)
def test_taking_an_example_away_moves_the_sum_by_at_most_c(name: str, n: int, size: int) -> None:
    x, rule = orders(n)[name], Flat(1.0)
    whole = summed(x, rule, size)
    for j in (0, n // 2, n - 1):
        less = summed(torch.cat([x[:j], x[j + 1 :]]), rule, size)
        assert float((whole - less).norm()) <= 1.0


def four_in_turn(n: int, before: int) -> Tensor:
    """Examples of four lengths: two by two they are 0.6 of float32's step above what it holds near
    their sum, and so rounded up; without the first of them they are 0.3 and 0.9 above in turn.

    Others of equal lengths come before them, which make the sum large and its steps coarse.
    """
    step = 2.0 ** (math.floor(math.log2(0.75 * (before + n))) - 23)
    lengths = 0.75 + step * torch.tensor([0.5, 0.1, 0.2, 0.4], dtype=torch.float64)
    lengths = torch.cat([torch.full((before,), 0.75), lengths.float().repeat(n // 4)])
    return torch.stack([lengths, torch.zeros(before + n)], 1)


@pytest.mark.parametrize(
    ("n", "before"),
    [
        (400, 180_000),
        pytest.param(10_900, 0, marks=pytest.mark.slow),
        pytest.param(43_600, 0, marks=pytest.mark.slow),
    ],
)
def test_an_example_cannot_change_how_the_others_are_rounded(n: int, before: int) -> None:
    """With totals in float32 the sum would move by 2.3, by 1.2 and by 8 C."""
    x = four_in_turn(n, before)
    less = torch.cat([x[:before], x[before + 1 :]])
    moved = summed(x, Flat(1.0), 2, first=before) - summed(less, Flat(1.0), 2, first=before)
    assert float(moved.norm()) <= 1.0


@pytest.mark.parametrize("n", [5000, 20_000])
def test_totals_are_those_of_float64(n: int) -> None:
    x = torch.randn(n, 7, generator=torch.Generator().manual_seed(0))
    wanted = (x.double() / x.double().norm(dim=1, keepdim=True).clamp(min=1)).sum(0)
    found = summed(x, Flat(1.0), 128)[0]
    assert float((found / (1 - 2.0**-16) - wanted).abs().max()) < 1e-3 * wanted.abs().max()


def test_deferred_sums_do_not_change_how_the_others_are_rounded() -> None:
    """One example of norm C among 64 others of norm C, and 64 that are half of float32's step near
    their sum: added one after the other in float32, the sum moves by more than C."""
    many = 64
    step = 2.0 ** (math.log2(many) - 1 - 23)
    sizes = torch.cat([torch.ones(many), torch.full((many,), step * (1 + 2**-8))])
    for part in (
        lambda own: deferred(torch.ones(len(own), 8), own.unsqueeze(1).expand(-1, 8))[0],
        lambda own: deferred(torch.ones(len(own), 8), own.unsqueeze(1).expand(-1, 8))[1],
    ):
        whole = part(sizes).weighted_sum(torch.ones(len(sizes)))
        less = part(sizes[1:]).weighted_sum(torch.ones(len(sizes) - 1))
        assert whole.dtype == torch.float64
        assert float((whole - less).norm()) <= 8 * (1 + 1e-12)


HUGE = [1e18, 1e30, 1e36, 1e37, 1e38]


@pytest.mark.parametrize("size", HUGE)
@pytest.mark.parametrize("clip", [1e-12, 1e-7, 1e-3, 1.0])
def test_clip_weights_too_small_for_float32_are_zero(size: float, clip: float) -> None:
    """A weight of 1.4e-45, rounded up from 0.71e-45, would add 1.96 C."""
    for rule in (Flat(clip), Normalised(clip)):
        for factor in (1.0, 1.3, 1.7, 2.1, 2.9):
            x = torch.tensor([[size * min(factor, 3e38 / size), 0.0]])
            assert float(summed(x, rule, 1).norm()) <= rule.sensitivity


def deferred(x: Tensor, d: Tensor) -> list[DeferredProduct | DeferredFilters]:
    one = Geometry((1, 1), (1, 1), (0, 0), (1, 1), 1)
    filters = DeferredFilters(
        x[:, :, None, None], d[:, :, None, None], torch.zeros(d.shape[1], x.shape[1], 1, 1), one
    )
    shape = d.shape[1], x.shape[1]
    return [DeferredProduct(x.unsqueeze(1), d.unsqueeze(1), 1, shape), filters]


EXTREMES = [
    (3e38, 1e-30), (1e-30, 3e38), (3e38, 3e-45), (1e30, 1e30), (1e-44, 1e38), (1e20, 1e-20),
    (1e16, 1e-3), (2.0, 3e38), (1.0, 1.0), (1e-20, 1e-20),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b"), EXTREMES)
@pytest.mark.parametrize("clip", [1e-12, 2.1e-7, 1.0, 1e6])
def test_deferred_forms_never_add_more_than_c_nor_infinity(a: float, b: float, clip: float) -> None:
    for factor in (1.0, 1.3, 1.9):
        x = torch.tensor([[a / factor, a / 3, 0.0], [1.0, 2.0, 3.0]])
        d = torch.tensor([[b / factor, b / 7], [0.1, 0.2]])
        for part in deferred(x, d):
            squared = part.squared_norms().unsqueeze(1)
            for rule in (Flat(clip), Normalised(clip)):
                weights = rule.weights(squared)[:, 0]
                weights = torch.where(weights < 1e-37, 0.0, weights)
                for j in range(2):
                    own = torch.where(torch.arange(2) == j, weights, 0.0)
                    total = part.weighted_sum(own).double()
                    assert bool(torch.isfinite(total).all())
                    assert float(total.norm()) <= rule.sensitivity


def test_what_is_out_of_range_adds_exactly_nothing() -> None:
    x = torch.tensor([[1.0], [2 * LARGEST], [1.0], [float("nan")], [1.0], [1.0]])
    d = torch.tensor([[1.0], [1.0], [2 * LARGEST], [1.0], [float("inf")], [1.0]])
    weights = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    safe, scaled = rescaled(x, d, weights, 1)
    assert safe.flatten().tolist() == scaled.flatten().tolist() == [1.0, 0, 0, 0, 0, 0]
    both = rescaled(x, d, torch.tensor([1.0, 1.0, 1.0]), 2)
    assert not bool(torch.cat(both).any(1).view(2, 3, 2)[:, 1:].any()), "a view spoils its example"


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan, 1e16, -1e16])
def test_examples_out_of_range_are_found_among_complex_numbers_and_no_numbers(bad: float) -> None:
    real = torch.ones(3, 4)
    real[1, 2] = bad
    assert _within(real, 1).tolist() == [True, False, True]
    assert _within(torch.complex(torch.ones(3, 4), real), 1).tolist() == [True, False, True]
    assert _within(torch.zeros(4, 0), 2).tolist() == [True, True]
    assert _within(real[[0, 0, 1, 2]], 2).tolist() == [True, False]


def test_the_compiled_pass_has_the_same_guard() -> None:
    slot = Matrix(("w",), lambda: torch.zeros(1, 1), torch.zeros(1, 1), torch.zeros(2, 1), 1)
    found = [torch.tensor([[3e38], [1.0]])]
    (total,) = slot.summed(found, torch.tensor([[3e38], [1.0]]), torch.ones(2, 1))
    assert total.tolist() == [[1.0]]


# --- what is accumulated -------------------------------------------------------------------------


def own_loop(examples: int = 20) -> tuple[PrivateGradients, Tensor, Tensor]:
    private = PrivateGradients(
        nn.Linear(3, 2), sampler=PoissonSampler(examples, 4), clipping=Flat(1.0),
        noise=GaussianNoise(1.0),
    )  # fmt: skip
    return private, torch.randn(examples, 3), torch.arange(examples) % 2


def test_all_examples_three_times_are_refused() -> None:
    private, x, y = own_loop()
    private.accumulate(x, y)
    for weights in (None, torch.ones(20)):
        with pytest.raises(UserError, match="40 examples were accumulated"):
            private.accumulate(x, y, weights)
    assert private.release().examples == 20
    private.accumulate(x, y)


def test_an_index_twice_is_refused_and_not_added() -> None:
    private, x, y = own_loop()
    batches = list(physical_batches(torch.tensor([1, 4, 7]), 2))
    for batch in batches:
        private.accumulate(x[batch.indices], y[batch.indices], batch)
    with pytest.raises(UserError, match="accumulated twice"):
        private.accumulate(x[batches[0].indices], y[batches[0].indices], batches[0])
    assert private.release().examples == 3
    again = next(physical_batches(torch.tensor([2, 2]), 2))
    with pytest.raises(UserError, match="accumulated twice"):
        private.accumulate(x[again.indices], y[again.indices], again)
    outside = next(physical_batches(torch.tensor([3, 20]), 2))
    with pytest.raises(UserError, match="outside"):
        private.accumulate(x[:2], y[:2], outside)


def test_padding_does_not_count_when_the_batch_is_handed_over() -> None:
    private, x, y = own_loop(4)
    batch = next(physical_batches(torch.tensor([0, 1, 3]), 8))
    private.accumulate(x[batch.indices], y[batch.indices], batch)
    assert private.release().examples == 3


def test_a_batch_that_raises_does_not_count() -> None:
    private, x, y = own_loop()
    batch = next(physical_batches(torch.tensor([1, 4]), 2))
    with pytest.raises(UserError, match="rows"):
        private.accumulate(x[:1], y[batch.indices], batch)
    private.accumulate(x[batch.indices], y[batch.indices], batch)


class Late(nn.Module):
    """A model that gets another parameter after the mechanism was made."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 2)
        self.phase = nn.Parameter(torch.ones(2, dtype=torch.complex64), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) * self.phase.abs()


def test_complex_parameters_are_refused_at_every_release() -> None:
    model = Late()
    private = PrivateGradients(
        model, sampler=PoissonSampler(20, 5), clipping=Flat(1.0), noise=GaussianNoise(1.0)
    )
    private.accumulate(torch.randn(4, 3), torch.arange(4) % 2)
    private.release()
    model.phase.requires_grad_()
    with pytest.raises(UserError, match="'phase' is of type"):
        private.release()
    with pytest.raises(UserError, match="'phase' is of type"):
        private.accumulate(torch.randn(4, 3), torch.arange(4) % 2)


def test_a_parameter_created_later_gets_noise_or_a_refusal() -> None:
    private, x, y = own_loop()
    private.accumulate(x[:4], y[:4])
    model = private.per_example.model
    model.register_parameter("extra", nn.Parameter(torch.zeros(50)))
    with pytest.raises(RuntimeError, match="between accumulate and release"):
        private.release()
    private.discard()
    private.release()
    assert model.extra.grad is not None and bool((model.extra.grad != 0).float().mean() > 0.9)
    assert math.isfinite(float(model.extra.grad.sum()))


def test_a_batch_that_lies_about_its_padding_is_counted_by_its_weights() -> None:
    private, x, y = own_loop()
    lie = PhysicalBatch(torch.tensor([3, 3, 3, 3]), torch.ones(4), 0, 1)
    with pytest.raises(UserError, match="accumulated twice"):
        private.accumulate(x[lie.indices], y[lie.indices], lie)


class Changing(Flat):
    """A clipping rule that can be changed in place."""

    @property
    def sensitivity(self) -> float:
        return LIMIT[0]


LIMIT = [1.0]


def test_a_rule_whose_sensitivity_changes_under_way_is_refused() -> None:
    private, x, y = own_loop()
    private.clipping = Changing(1.0)
    private.accumulate(x, y)
    LIMIT[0] = 0.001
    try:
        with pytest.raises(RuntimeError, match="clipping rule was changed"):
            private.release()
    finally:
        LIMIT[0] = 1.0


def test_a_release_that_could_not_be_recorded_leaves_no_sum_behind() -> None:
    private, x, y = own_loop()
    private.accumulate(x, y)

    def full(event: object) -> None:
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        private.release(before=full)
    assert private.released == 0
    assert private.release().examples == 0
