"""Loaders of Poisson draws, and a loop of one line for each step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from sfumato.errors import UserError
from sfumato.privacy import (
    Flat,
    GaussianNoise,
    PoissonSampler,
    PrivateGradients,
    epsilon,
    noise_multiplier_for,
)
from sfumato.privacy.engines.one_at_a_time import one_at_a_time
from sfumato.privacy.loader import poisson_loader

N = 40


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(N, 5, generator=generator), torch.arange(N) % 3)


def budgeted(model: nn.Module, **more: Any) -> PrivateGradients:
    given = {"examples": N, "batch": 10, "epsilon": 3.0, "delta": 1e-5, "steps": 20} | more
    return PrivateGradients.for_budget(model, **given)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_the_noise_is_the_least_that_fits_the_budget(accountant: Any) -> None:
    private = budgeted(nn.Linear(5, 3), accountant=accountant)
    sigma = noise_multiplier_for(epsilon=3, delta=1e-5, q=0.25, steps=20, accountant=accountant)
    assert private.noise.multiplier == sigma
    assert private.sampler == PoissonSampler(N, 10)
    private.released = 20
    assert 2.99 < private.epsilon(delta=1e-5, accountant=accountant) <= 3
    assert private.epsilon(delta=1e-5) == epsilon(private.history, delta=1e-5)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"epsilon": -1.0}, "epsilon"),
        ({"delta": 0.5}, "delta"),
        ({"batch": 100}, "expected batch"),
        ({"steps": 0}, "steps"),
        ({"clipping": 1.0}, "clipping must be something like"),
    ],
)
def test_bad_budgets_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        budgeted(nn.Linear(5, 3), **given)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_whole_draws(workers: int) -> None:
    loader = budgeted(nn.Linear(5, 3)).loader(
        DataLoader(data(), batch_size=10, shuffle=True, num_workers=workers), steps=30
    )
    sizes = [len(y) for _, y in loader]
    assert len(loader) == len(sizes) == 30
    assert len(set(sizes)) > 3, "draws differ in size"
    assert 5 < sum(sizes) / 30 < 15


def test_empty_draws_are_batches_of_no_examples() -> None:
    loader = poisson_loader(DataLoader(data()), PoissonSampler(N, 0.01), steps=20)
    batches = list(loader)
    assert len(batches) == 20
    assert any(x.shape == (0, 5) and y.shape == (0,) and y.dtype == torch.int64 for x, y in batches)


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([])


class Longer(Dataset[Any]):
    def __len__(self) -> int:
        return N + 1

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(5), 0


@pytest.mark.parametrize(
    ("dataset", "words"), [(Endless(), "drawn by their index"), (Longer(), "41 examples")]
)
def test_other_data_sets_are_refused(dataset: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        poisson_loader(DataLoader(dataset), PoissonSampler(N, 10))


def mechanism(model: nn.Module) -> PrivateGradients:
    return PrivateGradients(
        model, sampler=PoissonSampler(N, 10), clipping=Flat(0.5), noise=GaussianNoise(0.0)
    )


def clipped_mean(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    found = one_at_a_time(model, x, y)
    return [s / 10 for s in found.weighted_sum(Flat(0.5).weights(found.squared_norms()))]


@pytest.mark.parametrize("size", [None, 1, 3, 100])
@pytest.mark.parametrize("rows", [0, 1, 7])
def test_backward_gives_the_clipped_mean_of_a_draw(rows: int, size: int | None) -> None:
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    private = mechanism(model)
    x, y = data()[:rows]
    statistics = private.backward(x, y, physical_batch=size)
    assert statistics.examples == rows and private.released == 1
    wanted = clipped_mean(model, x, y) if rows else [torch.zeros(3, 5), torch.zeros(3)]
    for p, mean in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(p.grad, mean.float(), atol=1e-6, rtol=1e-4)


def test_backward_takes_nothing_over_from_before() -> None:
    private, (x, y) = mechanism(nn.Linear(5, 3)), data()[:7]
    private.accumulate(x, y)
    with pytest.raises(UserError, match="accumulated before"):
        private.backward(x, y)
    private.discard()
    with pytest.raises(UserError, match="rows"):
        private.backward(x[:5], y, physical_batch=4)
    assert private.released == 0 and private._sum.totals is None


def test_a_data_set_in_the_place_of_a_loader_is_refused() -> None:
    data: Any = TensorDataset(torch.zeros(4, 1))
    with pytest.raises(UserError, match="DataLoader, not TensorDataset"):
        poisson_loader(data, PoissonSampler(4, 2))
