"""Attacks on the source of noise: known random numbers must not give away any others.

PyTorch's CPU generator is a Mersenne twister. Its outputs are linear over the field of two elements
in the 19 937 bits of its state, so an attacker who knows some of them solves for the state and then
knows all others.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sfumato.privacy import (
    Flat,
    GaussianNoise,
    PoissonSampler,
    PrivateGradients,
    Randomness,
    physical_batches,
)

_N, _M = 624, 397


def untempered(y: np.ndarray) -> np.ndarray:
    """The state words behind outputs of 32 bits."""
    y = y.astype(np.uint64)
    y ^= y >> np.uint64(18)
    y ^= (y << np.uint64(15)) & np.uint64(0xEFC60000)
    z = y.copy()
    for _ in range(5):
        z = y ^ ((z << np.uint64(7)) & np.uint64(0x9D2C5680))
    y = z & np.uint64(0xFFFFFFFF)
    z = y.copy()
    for _ in range(3):
        z = y ^ (z >> np.uint64(11))
    return z & np.uint64(0xFFFFFFFF)


def following(state: np.ndarray) -> np.ndarray:
    """The next 624 outputs of a twister with this state."""
    twister = np.random.MT19937()
    words = state.astype(np.uint32)
    twister.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": _N}}
    return twister.random_raw(_N).astype(np.uint32)


def foretold(seen: Tensor) -> Tensor:
    """The coin flips after 624 words that an attacker has seen, as a twister would make them."""
    words = seen.view(-1).to(torch.int64).numpy().astype(np.uint64) & np.uint64(0xFFFFFFFF)
    return torch.from_numpy(following(untempered(words)).astype(np.int64))


def words_of(stream_or_generator: object, count: int) -> Tensor:
    """Words of 32 bits, from a generator of PyTorch or from a key stream."""
    if isinstance(stream_or_generator, torch.Generator):
        both = torch.empty(count // 2, dtype=torch.int64)
        both.random_(-(2**63), None, generator=stream_or_generator)
        return torch.stack([both >> 32, both], 1).flatten() & 0xFFFFFFFF
    bits = stream_or_generator.trials(32 * count, 0.5).view(count, 32)  # type: ignore[attr-defined]
    return (bits.long() << torch.arange(32)).sum(1)


def test_the_attack_works_on_the_twister() -> None:
    drawn = words_of(torch.Generator().manual_seed(2**31 + 5), 2 * _N)
    assert torch.equal(foretold(drawn[:_N]), drawn[_N:])


def test_the_attack_fails_on_a_key_stream() -> None:
    drawn = words_of(Randomness.fresh().stream(1, "noise"), 2 * _N)
    assert int((foretold(drawn[:_N]) == drawn[_N:]).sum()) == 0


class Watched(nn.Module):
    """A classifier with weights that get no gradient, whose noise everybody can read."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(6, 3)
        self.unused = nn.Parameter(torch.zeros(4000))

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


def released(model: Watched, private: PrivateGradients, x: Tensor, y: Tensor) -> Tensor:
    for batch in physical_batches(torch.arange(len(y)), 8):
        private.accumulate(x[batch.indices], y[batch.indices], batch)
    private.release()
    assert model.unused.grad is not None
    return model.unused.grad.double()


def test_noise_of_an_own_loop_does_not_follow_from_the_global_state() -> None:
    """An attacker who knows the state of PyTorch's generator, as it follows from 3 000 initial
    weights, repeats the release from it: nothing of the noise agrees."""
    torch.manual_seed(11)
    model = Watched()
    private = PrivateGradients(
        model, sampler=PoissonSampler(8, 8), clipping=Flat(1.0), noise=GaussianNoise(1.0)
    )
    state = torch.get_rng_state()
    x, y = torch.randn(8, 6, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3
    noise = 8 * released(model, private, x, y)
    torch.set_rng_state(state)
    guess = torch.randn(len(noise), dtype=torch.float64)
    assert abs(float(torch.corrcoef(torch.stack([guess, noise]))[0, 1])) < 0.1


def test_draws_of_an_own_loop_do_not_follow_from_the_global_state() -> None:
    torch.manual_seed(11)
    state = torch.get_rng_state()
    drawn = PoissonSampler(4000, 2000).draw()
    torch.set_rng_state(state)
    guess = (torch.rand(4000, dtype=torch.float64) < 0.5).nonzero().squeeze(1)
    right = len(np.intersect1d(drawn.numpy(), guess.numpy()))
    assert right < 0.6 * len(drawn)


@pytest.mark.parametrize("known", [2000, 3900])
def test_known_noise_of_a_step_says_nothing_about_the_rest(known: int) -> None:
    """The noise of unused weights is public. Words are read off it as Box and Muller's transform of
    a twister would have it, and the state is solved for: the rest does not follow."""
    model = Watched()
    private = PrivateGradients(
        model, sampler=PoissonSampler(8, 8), clipping=Flat(1.0), noise=GaussianNoise(1.0)
    )
    noise = 8 * released(model, private, torch.zeros(8, 6), torch.zeros(8, dtype=torch.long))
    pairs = noise[: known // 2 * 2].view(-1, 2)
    uniform = torch.exp(-pairs.square().sum(1) / 2)
    words = (uniform * 2**32).long().clamp(0, 2**32 - 1)
    told = foretold(words[:_N]).double() / 2**32
    rest = uniform[_N : 2 * _N] if len(uniform) >= 2 * _N else uniform[-len(told) :]
    told = told[: len(rest)]
    assert abs(float(torch.corrcoef(torch.stack([told, rest]))[0, 1])) < 0.2
