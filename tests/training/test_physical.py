"""How many examples of a draw are processed at once."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sfumato.privacy.sampling import PoissonSampler
from sfumato.training.physical import least_work


def work(sampler: PoissonSampler, size: int, overhead: float = 0.0) -> float:
    """The mean over draws of what is processed, padding included."""
    counts = np.arange(sampler.examples + 1)
    likely = stats.binom.pmf(counts, sampler.examples, sampler.rate)
    return float((likely * np.ceil(counts / size) * (size + overhead)).sum())


@given(
    examples=st.integers(1, 60_000),
    share=st.floats(1e-4, 1.0),
    largest=st.integers(1, 4096),
    overhead=st.floats(0, 128),
)
def test_the_physical_batch_size_is_within_its_bounds(
    examples: int, share: float, largest: int, overhead: float
) -> None:
    sampler = PoissonSampler(examples=examples, batch=examples * share)
    assert 1 <= least_work(sampler, largest, overhead=overhead) <= min(largest, examples)


@pytest.mark.parametrize(
    ("batch", "largest", "views"),
    [
        (256, 512, 4),
        (1024, 256, 8),
        (1024, 128, 16),
        (4096, 2048, 1),
        (4096, 512, 4),
        (2000, 64, 1),
    ],
)
def test_little_is_spent_on_padding(batch: int, largest: int, views: int) -> None:
    """Less than with parts that hold the mean and four standard deviations, or the mean alone."""
    sampler = PoissonSampler(examples=50_000, batch=batch)
    overhead = 128 / views
    chosen = work(sampler, least_work(sampler, largest, overhead=overhead), overhead)
    likely = batch + 4 * math.sqrt(batch * (1 - sampler.rate)) + 1
    for whole in (likely, batch):
        other = math.ceil(whole / math.ceil(whole / largest))
        assert chosen <= 1.002 * work(sampler, other, overhead)
    assert chosen < 1.21 * (batch + overhead * batch / largest)


def test_where_everybody_is_drawn_nothing_is_padded() -> None:
    sampler = PoissonSampler(examples=1200, batch=1200)
    size = least_work(sampler, 500, overhead=8.0)
    assert size == 400
    assert work(sampler, size) == 1200
