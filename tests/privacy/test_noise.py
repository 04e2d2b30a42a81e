"""Gaussian noise: its grid, its tails, and the bits of what is released."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from sfumato.errors import UserError
from sfumato.privacy import GaussianNoise, Randomness
from sfumato.privacy.noise import GRID_BITS, grid, shaped_like


def stream(step: int = 0):
    return Randomness.from_seed(0).stream(step, "noise")


@pytest.mark.parametrize(
    "shape", [(), (0,), (7,), (3, 4), (2, 3, 4, 5), (6, 5, 1, 1), (1, 4, 3, 3), (4, 1, 3, 3)]
)
@pytest.mark.parametrize("last", [True, False])
def test_every_coordinate_gets_a_number_of_its_own(shape: tuple[int, ...], last: bool) -> None:
    like = torch.zeros(shape)
    if last and like.dim() == 4:
        like = like.contiguous(memory_format=torch.channels_last)
    count = like.numel()
    numbers = torch.arange(count + 3.0)[3:]
    found = shaped_like(numbers, like)
    assert found.shape == like.shape
    assert sorted(found.flatten().tolist()) == numbers.tolist()
    if like.dim() == 4:
        assert found.stride() == like.stride()


@pytest.mark.parametrize("deviation", [1e-12, 3e-5, 0.99, 1.0, 1.01, 7.0, 1e9])
def test_the_grid_is_a_power_of_two_just_below(deviation: float) -> None:
    step = grid(deviation)
    assert math.frexp(step)[0] == 0.5
    assert deviation / 2 < step * 2**GRID_BITS <= deviation


def test_noise_that_float64_cannot_hold_is_refused() -> None:
    with pytest.raises(UserError, match="cannot be drawn"):
        GaussianNoise(1.0).add(torch.zeros(3), sensitivity=1e-310, stream=stream())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noisy_sums_lie_on_the_grid(dtype: torch.dtype) -> None:
    total = torch.randn(5000, generator=torch.Generator().manual_seed(0)).to(dtype) * 100
    noisy = GaussianNoise(2.0).add(total, sensitivity=0.7, stream=stream())
    assert noisy.dtype == torch.float64
    places = noisy / grid(1.4)
    assert torch.equal(places, places.round())
    assert stats.kstest(((noisy - total.double()) / 1.4).numpy(), "norm").pvalue > 1e-3


def low_bits(total: float, releases: int) -> set[int]:
    """The last eight bits of float32 releases of a sum, that is, their support as seen there."""
    sums = torch.full((releases,), total, dtype=torch.float64)
    noisy = GaussianNoise(1.0).add(sums, sensitivity=1.0, stream=stream(int(1000 * total)))
    return set((noisy.float().view(torch.int32) & 0xFF).unique().tolist())


def test_low_bits_do_not_tell_an_example_apart() -> None:
    """Released as the plain float32 sum of a sum and noise, some patterns of low bits occur with an
    example and never without it (Mironov, 2012). On the grid both have the same patterns."""
    with_it, without = low_bits(1.0 / 3, 200_000), low_bits(4.0 / 3, 200_000)
    assert with_it == without


def test_without_the_grid_supports_differ() -> None:
    """The attack itself, on sums without a grid: of 1 + noise no float64 below 2^-53 is left."""
    noise = stream().normals(200_000, torch.device("cpu")) * 1e-3
    near = (1.0 + noise - 1.0).abs()
    small = noise[noise.abs() < 2.0**-20]
    assert torch.equal(near / 2.0**-53, (near / 2.0**-53).round())
    assert not torch.equal(small / 2.0**-53, (small / 2.0**-53).round())


def test_supports_are_equal_with_and_without_an_example() -> None:
    """Every place of the grid near the middle is reached from both sums."""
    step, draws = grid(1.0), 1 << 22
    found = []
    for total in (0.0, 0.123456789):
        noisy = GaussianNoise(1.0).add(
            torch.full((draws,), total), sensitivity=1.0, stream=stream(int(1e9 * total) % 97)
        )
        places = (noisy / step).long()
        found.append(set(places[places.abs() < 2**GRID_BITS // 8].unique().tolist()))
    assert found[0] == found[1]
    assert len(found[0]) == 2 * (2**GRID_BITS // 8) - 1


def test_no_noise_leaves_sums_alone() -> None:
    total = torch.tensor([0.1, 0.2])
    assert GaussianNoise(0.0).add(total, sensitivity=1.0, stream=stream()) is total
    assert GaussianNoise(1.0).add(total[:0], sensitivity=1.0, stream=stream()).shape == (0,)


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_parts_of_a_sum_have_the_noise_of_the_whole(parts: int) -> None:
    total = torch.linspace(-1, 1, 56 * 4, dtype=torch.float64)
    whole = GaussianNoise(1.0).add(total, sensitivity=1.0, stream=stream())
    assert len(whole.unique()) > 200
    size = -(-len(total) // (8 * parts)) * 8
    found = []
    for start in range(0, len(total), size):
        own = stream()
        own.skip(start)
        part = total[start : start + size]
        found.append(GaussianNoise(1.0).add(part, sensitivity=1.0, stream=own))
    assert torch.equal(torch.cat(found), whole)


@pytest.mark.parametrize("multiplier", [0.0, 1.3])
@pytest.mark.parametrize("count", [0, 5, 64, 1000, 1003])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_means_are_noisy_sums_over_the_batch_in_any_parts(
    multiplier: float, count: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = torch.randn(count, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    before, noise = total.clone(), GaussianNoise(multiplier)
    wanted = noise.add(total, sensitivity=0.7, stream=stream()) / 3.0
    for at_once in (1 << 20, 500, 100, 1):
        monkeypatch.setattr("sfumato.privacy.noise._AT_ONCE", {"cpu": at_once})
        found = noise.means(total, 3.0, sensitivity=0.7, stream=stream(), dtype=dtype)
        assert found.dtype == dtype and torch.equal(found, wanted.to(dtype))
    assert torch.equal(total, before)  # The sum itself is left as it was.
