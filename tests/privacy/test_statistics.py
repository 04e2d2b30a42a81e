"""The noise has the stated scale, and the sampler the stated marginals and independence.

All seeds are fixed, so a test that passes once passes always; each one is also shown a wrong
sampler or wrong noise, which it must tell apart.
"""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from sfumato.privacy import (
    Flat,
    GaussianNoise,
    Keystream,
    PoissonSampler,
    PrivateGradients,
    Randomness,
)
from sfumato.privacy.noise import GRID_BITS
from sfumato.privacy.sampling import physical_batches

P = 1e-3
"""A p-value below this is a failure."""

SIGMA, CLIP, BATCH = 1.7, 0.8, 50.0


def released(
    steps: int, *, sigma: float = SIGMA, key: int = 11, accumulate: bool = False
) -> Tensor:
    """What `release` puts into `.grad`, one row per step, as multiples of the stated scale."""
    torch.manual_seed(0)
    model = nn.Linear(40, 25)
    mechanism = PrivateGradients(
        model,
        sampler=PoissonSampler(1000, BATCH),
        clipping=Flat(CLIP),
        noise=GaussianNoise(sigma),
        randomness=Randomness.from_seed(key),
    )
    x, y = torch.ones(4, 40), torch.zeros(4, dtype=torch.int64)
    rows = []
    for _ in range(steps):
        if accumulate:
            mechanism.accumulate(x, y)
        mechanism.release()
        rows.append(torch.cat([p.grad.flatten() for p in model.parameters()]).double())
    return torch.stack(rows) * BATCH / (SIGMA * CLIP)


def is_standard_normal(sample: Tensor) -> bool:
    """Mean, variance, and the whole distribution (Kolmogorov-Smirnov)."""
    flat = sample.flatten().double().numpy()
    n = len(flat)
    mean_p = 2 * stats.norm.sf(abs(flat.mean()) * math.sqrt(n))
    energy = float((flat**2).sum())
    variance_p = 2 * min(stats.chi2.sf(energy, n), stats.chi2.cdf(energy, n))
    return min(mean_p, variance_p, stats.kstest(flat, "norm").pvalue) > P


def correlated(a: Tensor, b: Tensor) -> bool:
    return bool(stats.pearsonr(a.flatten().numpy(), b.flatten().numpy()).pvalue < P)


def test_noise_has_the_stated_scale() -> None:
    assert is_standard_normal(released(40))


def test_wrong_scales_are_told_apart() -> None:
    assert not is_standard_normal(released(40, sigma=SIGMA * 1.02))
    assert not is_standard_normal(released(40, sigma=SIGMA / 1.02))
    noise = released(40)
    assert not is_standard_normal(noise + 0.02)
    assert not is_standard_normal(torch.sign(noise))
    assert not is_standard_normal((torch.rand_like(noise) - 0.5) * math.sqrt(12))


def test_noise_is_added_to_the_clipped_sum() -> None:
    """With four equal examples the mean is the clipped gradient: noise and sum are separate."""
    with_sum = released(40, accumulate=True)
    without = released(40)
    shift = (with_sum - without).mean(0)
    assert torch.allclose(with_sum - without, shift.expand_as(without), atol=1.01 * 2**-GRID_BITS)
    assert float(shift.norm()) * SIGMA * CLIP == pytest.approx(4 * CLIP, rel=1e-3)
    assert is_standard_normal(with_sum - shift)


def test_steps_and_coordinates_are_independent() -> None:
    noise = released(60)
    assert not correlated(noise[:-1], noise[1:])
    assert not correlated(noise[:, :-1], noise[:, 1:])
    assert not correlated(noise[:, :1000], noise[:, 1000:].repeat(1, 40))
    assert not correlated(noise[:-1] ** 2, noise[1:] ** 2)


def test_correlated_noise_is_detected() -> None:
    noise = released(60)
    stale = torch.cat([noise[:1], 0.95 * noise[1:] + 0.05 * noise[:-1]])
    assert correlated(stale[:-1], stale[1:])
    assert correlated(released(60, key=11), noise)


def test_no_noise_where_none_is_asked() -> None:
    assert not released(2, sigma=0.0).any()


def test_noise_on_every_coordinate_of_a_frozen_model() -> None:
    model = nn.Sequential(nn.Linear(30, 30), nn.Linear(30, 30))
    model[0].requires_grad_(False)
    mechanism = PrivateGradients(
        model, sampler=PoissonSampler(10, 1), clipping=Flat(1.0), noise=GaussianNoise(1.0)
    )
    mechanism.randomness = Randomness.from_seed(1)
    mechanism.release()
    assert model[0].weight.grad is None
    assert is_standard_normal(torch.cat([model[1].weight.grad.flatten(), model[1].bias.grad]))


class Shuffled:
    """What some libraries do: a batch of one fixed size, accounted as Poisson."""

    def __init__(self, examples: int, batch: int) -> None:
        self.examples, self.batch = examples, batch

    def draw(self, stream: Keystream) -> Tensor:
        order = stream.normals(self.examples, torch.device("cpu")).argsort()
        return order[: self.batch].sort().values


class Truncated(PoissonSampler):
    """A Poisson sampler that never draws more than fits into one physical batch."""

    def draw(self, stream: Keystream | None = None) -> Tensor:
        return super().draw(stream)[: int(self.batch)]


N, B, DRAWS = 200, 30, 4000


def table(sampler, draws: int = DRAWS, examples: int = N) -> Tensor:
    """Which example was in which draw."""
    rows = torch.zeros(draws, examples)
    randomness = Randomness.from_seed(5)
    for i in range(draws):
        rows[i, sampler.draw(randomness.stream(i, "sample"))] = 1
    return rows


def p_of_marginals(rows: Tensor, q: float) -> float:
    """Chi-square of how often each example was drawn."""
    counts = rows.sum(0).double()
    expected, variance = len(rows) * q, len(rows) * q * (1 - q)
    statistic = float(((counts - expected) ** 2 / variance).sum())
    return float(
        2 * min(stats.chi2.sf(statistic, len(counts)), stats.chi2.cdf(statistic, len(counts)))
    )


def p_of_sizes(rows: Tensor, q: float) -> float:
    """Chi-square of the sizes of the draws against the binomial distribution."""
    examples = rows.shape[1]
    sizes = rows.sum(1).long()
    law = stats.binom(examples, q)
    edges = [int(law.ppf(p)) for p in (0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95)]
    bins = torch.bucketize(sizes, torch.tensor(edges))
    observed = torch.bincount(bins, minlength=len(edges) + 1).numpy()
    bounds = [0.0, *law.cdf(edges), 1.0]
    expected = [(b - a) * len(rows) for a, b in pairwise(bounds)]
    return float(stats.chisquare(observed, expected).pvalue)


def p_of_pairs(rows: Tensor, q: float) -> float:
    """Whether pairs of examples are drawn together as often as independence says.

    The pair correlations are asymptotically independent standard normals, up to sqrt(draws).
    """
    centred = (rows - q).double()
    correlation = centred.T @ centred / (len(rows) * q * (1 - q))
    upper = correlation[torch.triu_indices(N, N, 1).unbind()] * math.sqrt(len(rows))
    mean_p = 2 * stats.norm.sf(abs(float(upper.mean())) * math.sqrt(upper.numel()))
    return float(min(mean_p, stats.kstest(upper.numpy(), "norm").pvalue))


def test_draws_of_the_sampler_are_independent_bernoulli_trials() -> None:
    sampler = PoissonSampler(N, B)
    rows = table(sampler)
    assert p_of_marginals(rows, sampler.rate) > P
    assert p_of_sizes(rows, sampler.rate) > P
    assert p_of_pairs(rows, sampler.rate) > P
    assert not correlated(rows[:-1], rows[1:])


def test_other_samplers_are_told_apart() -> None:
    q = B / N
    shuffled = table(Shuffled(N, B))
    assert p_of_sizes(shuffled, q) < P and p_of_pairs(shuffled, q) < P
    truncated = table(Truncated(N, B))
    assert p_of_marginals(truncated, q) < P and p_of_sizes(truncated, q) < P
    assert p_of_marginals(table(PoissonSampler(N, B * 1.04)), q) < P
    repeated = table(PoissonSampler(N, B))
    repeated[1:] = torch.where(torch.rand(DRAWS - 1, 1) < 0.05, repeated[:-1], repeated[1:])
    assert correlated(repeated[:-1], repeated[1:])


def test_full_batch_draws_everything() -> None:
    sampler = PoissonSampler(500, 500)
    assert sampler.rate == 1
    assert torch.equal(sampler.draw(), torch.arange(500))


def test_empty_draws_happen_as_often_as_they_should() -> None:
    sampler = PoissonSampler(100, 0.5)
    draws = 4000
    rows = table(sampler, draws, 100)
    empty = int((rows.sum(1) == 0).sum())
    assert stats.binomtest(empty, draws, (1 - sampler.rate) ** 100).pvalue > P
    assert stats.binomtest(empty, draws, (1 - sampler.rate) ** 90).pvalue < P
    assert list(physical_batches(torch.arange(0), 8)) == []


def test_draws_are_ordered_and_without_repetition() -> None:
    draw = PoissonSampler(1000, 300).draw(Randomness.from_seed(1).stream(0, "sample"))
    assert torch.equal(draw, draw.unique())
    assert draw.dtype == torch.int64


def test_numbers_of_a_step_are_read_when_they_are_asked_for() -> None:
    from sfumato.privacy.statistics import BatchStatistics

    total = BatchStatistics()
    assert (total.examples, total.loss) == (0, 0.0)
    total += BatchStatistics(torch.tensor([3.0, 1.5, 2.0, 1.0, 0.0]))
    total += BatchStatistics()
    total += BatchStatistics(torch.tensor([1.0, 0.5, 0.0, 1.0, 1.0]))
    assert (total.examples, total.loss, total.correct) == (4, 2.0, 2)
    assert (total.clipped, total.not_finite) == (2, 1)
    assert "examples=4" in repr(total)
