"""Units of privacy with several images: averaged, clipped once, drawn as a whole."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sfumato.errors import UserError
from sfumato.privacy import (
    ClippingRule,
    Flat,
    GaussianNoise,
    GroupWise,
    Normalised,
    PoissonSampler,
    PrivateGradients,
    Randomness,
    Unclipped,
    physical_batches,
)
from sfumato.privacy.engines.results import Gradients
from sfumato.privacy.numerics.randomness import Keystream
from sfumato.privacy.units.image_units import Units

SIZES = [1, 5, 2, 1, 7, 3]
IDS = torch.repeat_interleave(torch.arange(len(SIZES)), torch.tensor(SIZES))
X = torch.randn(len(IDS), 3, 6, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(len(IDS)) * 7 % 4


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 5, 3), nn.Tanh(), nn.Flatten(), nn.Linear(80, 4))


def private(model: nn.Module, *, images: int = 3, **changes) -> PrivateGradients:
    settings = {
        "sampler": PoissonSampler(40, 8),
        "clipping": Flat(0.5),
        "noise": GaussianNoise(0.0),
    }
    return PrivateGradients(model, images=images, **(settings | changes))


def gradients(model: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def unit_gradient(model: nn.Module, unit: int, views: int = 1, x: Tensor = X) -> list[Tensor]:
    """The mean over the images of a unit, one image at a time through autograd."""
    own = (unit == IDS).nonzero().squeeze(1).tolist()
    found = [torch.zeros_like(p, dtype=torch.float64) for p in model.parameters()]
    for i in own:
        loss = nn.functional.cross_entropy(
            model(x[i * views : (i + 1) * views]), Y[i].repeat(views)
        )
        for total, grad in zip(found, torch.autograd.grad(loss, model.parameters()), strict=True):
            total += grad.double() / len(own)
    return found


def clipped(grads: list[Tensor], clip: float) -> Tensor:
    whole = torch.cat([g.flatten() for g in grads])
    return whole * min(1.0, clip / float(whole.norm()))


def wanted(model: nn.Module, units: range | list[int], clip: float = 0.5, views: int = 1) -> Tensor:
    x = X if views == 1 else views_of(X)
    return sum(clipped(unit_gradient(model, u, views, x), clip) for u in units) / 8  # type: ignore[return-value]


def views_of(x: Tensor) -> Tensor:
    noise = torch.randn(len(x) * 2, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    return x.repeat_interleave(2, 0) + 0.3 * noise


@pytest.mark.parametrize("images", [1, 2, 3, 7, 12])
@pytest.mark.parametrize("views", [1, 2])
def test_a_unit_adds_its_mean_gradient_clipped_once(
    model: nn.Module, images: int, views: int
) -> None:
    mechanism = private(model, images=images, views=views)
    mechanism.accumulate(X if views == 1 else views_of(X), Y, units=IDS)
    statistics = mechanism.release()
    expected = wanted(model, range(len(SIZES)), views=views)
    assert torch.allclose(gradients(model).double(), expected, rtol=1e-4, atol=1e-7)
    assert statistics.examples == len(SIZES)


@pytest.mark.parametrize(
    ("images", "at_once"),
    [
        (images, at_once)
        if (images, at_once) in ((1, 4), (3, 1), (4, 4))
        else pytest.param(images, at_once, marks=pytest.mark.slow)
        for images in (1, 3, 4)
        for at_once in (1, 2, 4, 6, 18)
    ],
)
def test_units_may_be_split_over_physical_batches(
    model: nn.Module, images: int, at_once: int
) -> None:
    mechanism = private(model, images=images)
    for a in range(0, len(Y), at_once):
        part = slice(a, a + at_once)
        mechanism.accumulate(X[part], Y[part], units=IDS[part])
    statistics = mechanism.release()
    expected = wanted(model, range(len(SIZES)))
    assert torch.allclose(gradients(model).double(), expected, rtol=1e-4, atol=1e-7)
    assert statistics.examples == len(SIZES)


@pytest.mark.parametrize("rule", [Flat(0.5), GroupWise(0.5, "uniform")], ids=["flat", "by layer"])
@pytest.mark.parametrize(("images", "units"), [(3, range(6)), (1, [1, 2, 4, 5])])
def test_sums_may_be_overwritten_by_the_next(
    model: nn.Module,
    rule: ClippingRule,
    images: int,
    units: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a captured graph does: sums of whole units stay clipped when one that goes on follows."""
    found, some = [], torch.isin(IDS, torch.tensor(list(units)))
    x, y, ids = X[some], Y[some], IDS[some]
    for overwritten in (False, True):
        if overwritten:
            monkeypatch.setattr(Gradients, "weighted_sum", overwriting(Gradients.weighted_sum))
        mechanism = private(model, clipping=rule, images=images)
        for part in (slice(9), slice(9, None)):
            mechanism.accumulate(x[part], y[part], units=ids[part])
        mechanism.release()
        found.append(gradients(model))
    assert torch.equal(*found)


def overwriting(
    function: Callable[[Gradients, Tensor], list[Tensor]],
) -> Callable[[Gradients, Tensor], list[Tensor]]:
    """A function whose results are the same tensors in all calls."""
    kept: dict[torch.Size, list[Tensor]] = {}

    def run(self: Gradients, weights: Tensor) -> list[Tensor]:
        sums = function(self, weights)
        own = kept.setdefault(weights.shape, sums)
        for place, numbers in zip(own, sums, strict=True):
            place.copy_(numbers)
        return own

    return run


@pytest.mark.parametrize(
    "rule", [Flat(0.3), Normalised(0.3), GroupWise(0.3, "uniform")], ids=lambda r: type(r).__name__
)
def test_one_unit_moves_the_sum_by_at_most_the_sensitivity(
    model: nn.Module, rule: ClippingRule
) -> None:
    found = []
    for units in (range(len(SIZES)), [0, 1, 2, 3, 5]):
        mechanism = private(model, clipping=rule, images=4)
        some = torch.isin(IDS, torch.tensor(list(units)))
        large = torch.where((IDS == 4)[:, None, None, None], 100 * X, X)
        mechanism.accumulate(large[some], Y[some], units=IDS[some])
        mechanism.release()
        found.append(8 * gradients(model))
    assert float((found[0] - found[1]).norm()) <= rule.sensitivity * (1 + 1e-6)
    assert float((found[0] - found[1]).norm()) > 0.9 * rule.sensitivity


def test_units_of_one_image_are_examples(model: nn.Module) -> None:
    for images in (1, 3):
        plain, by_unit = private(model, images=1), private(model, images=images)
        plain.accumulate(X, Y)
        first = plain.release()
        expected = gradients(model)
        by_unit.accumulate(X, Y, units=torch.arange(len(Y)))
        assert by_unit.release().correct == first.correct
        assert torch.allclose(gradients(model), expected, rtol=1e-5, atol=1e-8)


def test_images_of_weight_zero_do_not_count(model: nn.Module) -> None:
    mechanism = private(model)
    weights = torch.ones(len(Y))
    weights[[2, 17]] = 0  # Of units 1 and 5.
    mechanism.accumulate(X, Y, weights, units=IDS)
    mechanism.release()
    kept = weights > 0
    other = private(model)
    found = gradients(model)
    other.accumulate(X[kept], Y[kept], units=IDS[kept])
    other.release()
    assert torch.equal(gradients(model), found)


def test_a_unit_that_comes_again_is_refused(model: nn.Module) -> None:
    mechanism = private(model)
    with pytest.raises(UserError, match="beside each other"):
        mechanism.accumulate(X[:4], Y[:4], units=torch.tensor([0, 1, 0, 0]))
    mechanism.accumulate(X[:4], Y[:4], units=torch.tensor([0, 0, 1, 1]))
    mechanism.accumulate(X[4:5], Y[4:5], units=torch.tensor([1]))
    with pytest.raises(UserError, match="twice"):
        mechanism.accumulate(X[5:6], Y[5:6], units=torch.tensor([0]))
    assert mechanism.release().examples == 2


def test_images_with_and_without_units_do_not_mix(model: nn.Module) -> None:
    mechanism = private(model)
    mechanism.accumulate(X[:4], Y[:4], units=IDS[:4])
    with pytest.raises(UserError, match="units"):
        mechanism.accumulate(X[4:], Y[4:])


def test_bad_units_are_refused(model: nn.Module) -> None:
    mechanism = private(model)
    for units, sentence in (
        (IDS[:3], "one unit for each"),
        (IDS.float(), "whole numbers"),
        (IDS + 35, "outside the sampler's 40"),
    ):
        with pytest.raises(UserError, match=sentence):
            mechanism.accumulate(X, Y, units=units)
    assert mechanism.release().examples == 0


def test_an_open_unit_is_dropped_with_the_rest(model: nn.Module) -> None:
    mechanism = private(model)
    mechanism.accumulate(X[:2], Y[:2], units=IDS[:2])
    mechanism.discard()
    mechanism.release()
    assert not gradients(model).any()


def test_a_unit_that_is_not_finite_adds_nothing(model: nn.Module) -> None:
    expected = wanted(model, [0, 2, 3, 4, 5])
    for at_once in (4, 18):
        broken = X.clone()
        broken[3] = math.nan
        mechanism = private(model)
        for a in range(0, len(Y), at_once):
            part = slice(a, a + at_once)
            mechanism.accumulate(broken[part], Y[part], units=IDS[part])
        statistics = mechanism.release()
        assert statistics.not_finite == 1 and statistics.examples == len(SIZES)
        assert torch.allclose(gradients(model).double(), expected, rtol=1e-4, atol=1e-7)


def test_without_clipping_the_mean_over_units_is_left(model: nn.Module) -> None:
    mechanism = private(model, clipping=Unclipped())
    mechanism.accumulate(X, Y, units=IDS)
    mechanism.release()
    assert torch.allclose(
        gradients(model).double(), wanted(model, range(len(SIZES)), math.inf), rtol=1e-4, atol=1e-7
    )


def test_dense_batches_are_the_same(model: nn.Module) -> None:
    """Targets (units, images) and their mask, with the physical batches of a draw of units."""
    expected = wanted(model, range(len(SIZES)))
    units = Units(IDS)
    for size in (1, 4, 8):
        mechanism = private(model, images=7)
        for batch in physical_batches(torch.arange(len(SIZES)), size):
            picked, there = units.images(batch.indices, most=7, slots=7)
            mechanism.accumulate(X[picked.flatten()], Y[picked], batch, there=there)
        statistics = mechanism.release()
        assert statistics.examples == len(SIZES)
        assert torch.allclose(gradients(model).double(), expected, rtol=1e-4, atol=1e-7)


def test_at_most_so_many_images_are_drawn_evenly_without_replacement() -> None:
    units, drawn = Units(IDS), torch.tensor([1, 3, 4])
    counts = torch.zeros(len(IDS))
    steps, key = 1000, Randomness.from_seed(0)
    for step in range(steps):
        picked, there = units.images(drawn, most=3, slots=3, stream=key.stream(step, "images"))
        assert picked.shape == there.shape == (3, 3)
        for unit, own, mask in zip(drawn.tolist(), picked, there, strict=True):
            assert (own[~mask] == own[0]).all() and (mask.int().diff() <= 0).all()
            own = own[mask]
            assert len(own) == min(3, SIZES[unit]) == len(own.unique())
            assert (IDS[own] == unit).all() and (own.diff() > 0).all()
            counts[own] += 1
    for unit in drawn.tolist():
        rate = min(3, SIZES[unit]) / SIZES[unit]
        error = math.sqrt(rate * (1 - rate) / steps)
        assert ((counts[unit == IDS] / steps - rate).abs() <= 5 * error).all()


def test_units_are_drawn_independently_whatever_their_sizes() -> None:
    """Counts of draws with both of two units, either or none are binomial, as their bounds are.

    A fixed key makes the counts the same in every run. Bounds are exact quantiles, of 10^-6 each.
    """
    sizes, per_unit, steps = [1, 50, 3, 2], 4, 2000
    units = Units(torch.repeat_interleave(torch.arange(4), torch.tensor(sizes)))
    sampler = PoissonSampler(4, 1.6)
    draws = sampler.batches(
        steps, Randomness.from_seed(11),
        images=lambda drawn, stream: _taken(units, drawn, per_unit, stream),
    )  # fmt: skip
    inside = torch.zeros(steps, 4, dtype=torch.bool)
    for step, images in enumerate(draws):
        counts = torch.bincount(units.of[images], minlength=4).tolist()
        assert all(c in (0, min(s, per_unit)) for c, s in zip(counts, sizes, strict=True))
        inside[step] = torch.tensor(counts) > 0
    q = sampler.rate
    for a, b in itertools.combinations(range(4), 2):
        for first, second in itertools.product((True, False), repeat=2):
            found = int(((inside[:, a] == first) & (inside[:, b] == second)).sum())
            chance = (q if first else 1 - q) * (q if second else 1 - q)
            low, high = stats.binom.ppf([1e-6, 1 - 1e-6], steps, chance)
            assert low <= found <= high, (a, b, first, second, found)
    pairs = inside.view(-1, 2, 4)  # Steps that follow each other, each step in one pair.
    low, high = stats.binom.ppf([1e-6, 1 - 1e-6], steps // 2, q**2)
    for a, b in itertools.product(range(4), repeat=2):
        assert low <= int((pairs[:, 0, a] & pairs[:, 1, b]).sum()) <= high, (a, b)


def _taken(units: Units, drawn: Tensor, most: int, stream: Keystream) -> Tensor:
    found, there = units.images(drawn, most=most, slots=most, stream=stream)
    return found[there]


def test_units_are_numbered_by_their_first_image() -> None:
    units = Units(torch.tensor([9, 9, 4, 9, 7, 4]))
    assert units.count == 3 and units.sizes.tolist() == [3, 2, 1]
    picked, there = units.images(torch.tensor([0, 2]), most=3, slots=3)
    assert picked.tolist() == [[0, 1, 3], [4, 4, 4]]
    assert there.tolist() == [[True, True, True], [True, False, False]]
    assert units.of.tolist() == [0, 0, 1, 0, 2, 1]


def test_a_loader_draws_units(model: nn.Module) -> None:
    ids = torch.tensor([5, 5, 5, 8, 8, 2, 2, 2, 2, 2])
    data = TensorDataset(X[:10], Y[:10], torch.arange(10))
    mechanism = private(model, sampler=PoissonSampler(3, 2.0), images=2)
    loader = mechanism.loader(DataLoader(data, batch_size=5), steps=400, units=ids, per_unit=2)
    seen: list[int] = []
    for x, _, which, units in loader:
        assert torch.equal(x, X[which])
        expected = Units(ids).of[which]
        assert torch.equal(units, expected)
        numbers, counts = torch.unique_consecutive(units, return_counts=True)
        assert counts.tolist() == [2] * len(numbers)
        seen += numbers.tolist()
    for unit in range(3):
        assert abs(seen.count(unit) / 400 - 2 / 3) < 5 * math.sqrt(2 / 9 / 400)
    pairs = [(a, b) for a, b in itertools.pairwise(seen) if a == b]
    assert pairs  # A unit may come in consecutive steps.
    x, y, _, units = next(iter(loader))
    mechanism.backward(x, y, units=units)


def test_the_statement_names_the_unit(model: nn.Module) -> None:
    mechanism = private(model, noise=GaussianNoise(2.0))
    mechanism.accumulate(X, Y, units=IDS)
    mechanism.release()
    found = mechanism.guarantee(delta=1e-5, data="scans", unit="patient")
    assert found.unit == "patient" and "training patient" in found.relation
    assert mechanism.guarantee(delta=1e-5, data="scans").unit == "unit"
