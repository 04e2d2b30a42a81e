"""One key gives the random numbers of every step and purpose."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

from sfumato.errors import UserError
from sfumato.privacy import GaussianNoise, Randomness
from sfumato.privacy.noise import fill_twister, shaped_like


def numbers(randomness: Randomness, step: int = 1, purpose: str = "noise") -> torch.Tensor:
    return torch.randn(1000, generator=randomness.generator(step, purpose))


def test_same_key_same_numbers() -> None:
    assert torch.equal(numbers(Randomness.from_seed(3)), numbers(Randomness.from_seed(3)))


@pytest.mark.parametrize(
    "other",
    [
        lambda: numbers(Randomness.from_seed(4)),
        lambda: numbers(Randomness.from_seed(3), step=2),
        lambda: numbers(Randomness.from_seed(3), purpose="sample"),
        lambda: numbers(Randomness.from_seed(-3)),
        lambda: numbers(Randomness.fresh()),
    ],
)
def test_anything_else_other_numbers(other) -> None:
    first, second = numbers(Randomness.from_seed(3)), other()
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 0.15
    assert not torch.equal(first, second)


def test_step_and_purpose_cannot_be_confused() -> None:
    r = Randomness.from_seed(0)
    assert not torch.equal(numbers(r, 1, "1|noise"), numbers(r, 11, "noise"))


def test_fresh_keys_differ_and_say_so() -> None:
    a, b = Randomness.fresh(), Randomness.fresh()
    assert a.key != b.key and len(a.key) == 32
    assert not a.seeded and Randomness.from_seed(1).seeded


def test_seed_is_the_documented_hash() -> None:
    assert Randomness.from_seed(7).key == hashlib.sha256(b"sfumato seed 7").digest()
    after = Randomness.from_seed(7, after="ab12")
    assert after.seeded and after.key == hashlib.sha256(b"sfumato seed 7 after ab12").digest()


def test_short_key_is_refused() -> None:
    with pytest.raises(UserError, match="16 bytes"):
        Randomness(b"short", False)


def test_generator_does_not_touch_the_global_one() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    numbers(Randomness.fresh())
    assert torch.equal(before, torch.get_rng_state())


def test_plain_seeds_of_the_cpu_have_32_bits() -> None:
    """Why `generator` does not stop at `manual_seed`: noise could be found by trying them all."""
    a, b = torch.Generator().manual_seed(5), torch.Generator().manual_seed(5 + 2**32)
    assert torch.equal(torch.rand(10, generator=a), torch.rand(10, generator=b))


def test_whole_state_is_filled() -> None:
    """All 624 words come from the key, and the generator is the twister with that state."""
    words = np.random.default_rng(0).integers(0, 2**32, 624, dtype=np.uint32)
    generator = torch.Generator()
    generator.manual_seed(2**40 + 9)
    fill_twister(generator, words.astype("<u4").tobytes())
    theirs = np.random.MT19937()
    theirs.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": 624}}
    drawn = torch.randint(0, 2**20, (2000,), generator=generator)
    assert np.array_equal(drawn.numpy(), theirs.random_raw(2000) % 2**20)


def words_of(generator: torch.Generator) -> np.ndarray:
    return generator.get_state().numpy()[24 : 24 + 8 * 624].view("<u8")


def test_generators_have_a_state_of_their_own() -> None:
    """Not the one that PyTorch grows from the seed, and no word in common between two steps."""
    one, two = (Randomness.from_seed(0).generator(step, "noise") for step in (1, 2))
    grown = torch.Generator()
    grown.manual_seed(one.initial_seed())
    assert (words_of(one) != words_of(grown)).sum() > 620
    assert len(np.intersect1d(words_of(one), words_of(two))) <= 1
    assert words_of(one).max() < 2**32 and len(np.unique(words_of(one))) > 620


def test_unknown_layout_is_an_error(monkeypatch) -> None:
    generator = torch.Generator()
    monkeypatch.setattr("sfumato.privacy.noise._BYTES", 100)
    with pytest.raises(RuntimeError, match="form unknown"):
        fill_twister(generator, bytes(4 * 624))


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


def test_noise_has_tails() -> None:
    """Float32 numbers are made of 24 random bits and end at 5.77, where a Gaussian does not: what
    lies beyond could come from an image only. In float64 they end at 8.57."""
    total = torch.zeros(20, dtype=torch.float32)
    noisy = GaussianNoise(2.0).add(
        total, sensitivity=1.5, generator=Randomness.from_seed(0).generator(1, "noise")
    )
    wide = torch.randn(
        20, generator=Randomness.from_seed(0).generator(1, "noise"), dtype=torch.float64
    )
    assert noisy.dtype == torch.float32
    assert torch.equal(noisy, (3 * wide).float())
