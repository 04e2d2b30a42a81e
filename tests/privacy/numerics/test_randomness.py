"""One key gives the random numbers of every step and purpose."""

from __future__ import annotations

import copy
import hashlib
import os
import pickle

import pytest
import torch
from torch import Tensor

from sfumato.errors import UserError
from sfumato.privacy import Keystream, PoissonSampler, Randomness

CPU = torch.device("cpu")


def numbers(randomness: Randomness, step: int = 1, purpose: str = "noise") -> Tensor:
    return randomness.stream(step, purpose).normals(1000, CPU)


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
def test_another_seed_step_or_purpose_gives_other_numbers(other) -> None:
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


@pytest.mark.parametrize("length", [0, 16, 31, 33])
def test_keys_of_other_lengths_are_refused(length: int) -> None:
    with pytest.raises(UserError, match="32 bytes"):
        Randomness(bytes(length), False)
    with pytest.raises(ValueError, match="32 bytes"):
        Keystream(bytes(length))


def test_the_global_generator_is_neither_used_nor_touched() -> None:
    torch.manual_seed(5)
    before, first = torch.get_rng_state(), numbers(Randomness.from_seed(0))
    Randomness.from_seed(0).generator(1, "augment")
    PoissonSampler(100, 10).draw()
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(6)
    assert torch.equal(first, numbers(Randomness.from_seed(0)))


def test_a_stream_never_gives_a_number_twice() -> None:
    """Calls go on from block to block, also after a call that used a part of one."""
    parts = Randomness.from_seed(0).stream(1, "noise")
    drawn = torch.cat([parts.normals(n, CPU) for n in (1, 8, 3, 20, 0, 9)])
    assert len(drawn.unique()) == len(drawn) == 41
    mixed = Randomness.from_seed(0).stream(1, "noise")
    first = mixed.trials(64, 0.5)
    assert not torch.equal(first, mixed.trials(64, 0.5))


def test_trials_have_their_probability_and_ends_are_exact() -> None:
    stream = Randomness.from_seed(1).stream(0, "sample")
    assert float(stream.trials(200_000, 0.3).double().mean()) == pytest.approx(0.3, abs=0.005)
    assert bool(stream.trials(1000, 1.0).all())
    assert not bool(stream.trials(1000, 2.0**-60).any())
    assert bool(stream.trials(1000, 1 - 2.0**-53).all())


def test_draws_take_no_generator_that_can_be_foretold() -> None:
    with pytest.raises(UserError, match="key stream"):
        PoissonSampler(10, 2).draw(torch.Generator())  # type: ignore[arg-type]


def test_draws_without_a_stream_differ() -> None:
    torch.manual_seed(0)
    first = PoissonSampler(1000, 500).draw()
    torch.manual_seed(0)
    assert not torch.equal(first, PoissonSampler(1000, 500).draw())


def test_going_over_batches_again_draws_anew() -> None:
    batches = PoissonSampler(1000, 500).batches(3, Randomness.from_seed(0))
    first, second = list(batches), list(batches)
    assert len(batches) == len(first) == 3
    assert len({tuple(draw) for draw in [*first, *second]}) == 6
    assert list(PoissonSampler(1000, 500).batches(3, Randomness.from_seed(0))) == first
    assert list(PoissonSampler(1000, 500).batches(3)) != first


def test_a_forked_process_does_not_draw_the_same_noise() -> None:
    """Folds in a pool: their releases would differ by the exact difference of their sums."""
    fresh, seeded = Randomness.fresh(), Randomness.from_seed(0)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        said = "nothing"
        try:
            numbers(seeded)
            numbers(fresh)
        except UserError as refused:
            said = str(refused)
        finally:
            os.write(write, said.encode())
            os._exit(0)
    os.waitpid(child, 0)
    assert "forked" in os.read(read, 1000).decode()
    numbers(fresh)
    assert Randomness(fresh.key, False) == fresh


@pytest.mark.parametrize("randomness", [None, Randomness.fresh()])
def test_copies_of_batches_draw_for_themselves(randomness: Randomness | None) -> None:
    batches = PoissonSampler(1000, 500).batches(2, randomness)
    others = [copy.deepcopy(batches), pickle.loads(pickle.dumps(batches))]
    draws = [tuple(draw) for one in (batches, *others) for draw in one]
    assert len(set(draws)) == 6


def test_a_key_is_not_shown() -> None:
    fresh = Randomness.fresh()
    assert repr(fresh.key) not in repr(fresh) and fresh.key.hex() not in repr(fresh)


def test_uniform_numbers_are_those_of_the_stream_and_fill_the_interval() -> None:
    stream = Randomness(bytes(32), False).stream(1, "number")
    first, others = stream.uniforms(1), stream.uniforms(4000)
    again = Randomness(bytes(32), False).stream(1, "number")
    assert again.uniforms(1) == first and again.uniforms(4000) == others, "the same, in order"
    assert first[0] not in others and len(set(others)) == 4000
    assert all(0 <= u < 1 and (u * 2**53).is_integer() for u in others)
    counts = [sum(k / 8 <= u < (k + 1) / 8 for u in others) for k in range(8)]
    assert all(abs(count - 500) < 100 for count in counts)
