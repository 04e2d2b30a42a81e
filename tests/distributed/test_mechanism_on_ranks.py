"""One mechanism on several ranks: the same releases as in one process, with one noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
from processes import Failed, on_ranks
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sfumato.distributed.ranks import Ranks
from sfumato.privacy import (
    AdaptiveQuantile,
    Automatic,
    Flat,
    GaussianNoise,
    GroupWise,
    Normalised,
    PoissonSampler,
    PrivateGradients,
    Randomness,
    physical_batches,
)
from sfumato.privacy.clipping import ClippingRule
from sfumato.privacy.numerics.randomness import Keystream

EXAMPLES = 40
RULES: dict[str, ClippingRule] = {
    "flat": Flat(0.5),
    "normalised": Normalised(0.5),
    "automatic": Automatic(0.01),
    "group-wise": GroupWise(0.5),
    "adaptive": AdaptiveQuantile(0.5, count_noise=2.0),
    "adaptive by layer": AdaptiveQuantile(0.5, count_noise=4.0, by_layer=True),
}
CASES = [(rule, 1, 12.0) for rule in RULES] + [
    ("adaptive", 3, 12.0),
    ("flat", 4, 12.0),
    ("adaptive", 1, 1.0),  # Fewer examples than ranks, and empty draws.
    ("flat", 2, 0.05),  # Nearly all draws are empty, on all ranks.
]
"""Clipping rule, views and expected batch."""


def images() -> tuple[Tensor, Tensor]:
    """Inputs with one that is not finite, and targets."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(EXAMPLES, 6, generator=generator)
    x[7, 2] = float("nan")
    return x, torch.randint(0, 3, (EXAMPLES,), generator=generator)


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def mechanism(rule: str, views: int, batch: float, **more: Any) -> PrivateGradients:
    more = {"randomness": Randomness.from_seed(2), "noise": GaussianNoise(0.7)} | more
    return PrivateGradients(
        network(), sampler=PoissonSampler(EXAMPLES, batch), clipping=RULES[rule],
        views=views, precision=None, **more,
    )  # fmt: skip


def trained(rule: str, views: int, batch: float) -> dict[str, Any]:
    """Six steps of SGD on this rank's physical batches of two examples of every draw."""
    x, y = images()
    private = mechanism(rule, views, batch, check=(rule, views, batch) == CASES[0])
    model, ranks = private.per_example.model, Ranks.current()
    found: dict[str, Any] = {"numbers": [], "drawn": []}
    for step in range(1, 7):
        draw = private.sampler.whole_draw(private.randomness.stream(step, "sample"))
        share = draw[ranks.share(len(draw), 2)]
        for part in physical_batches(share, 2):
            rows = x[part.indices].repeat_interleave(views, 0)
            rows = rows + torch.arange(len(rows)).view(-1, 1) % views
            private.accumulate(rows, y[part.indices], part)
        statistics = private.release()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.3 * parameter.grad
        found["numbers"].append(statistics.numbers.tolist())
        found["drawn"].append(len(share))
    found["weights"] = torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
    found["clip"] = private.clipping.sensitivity
    found["history"] = [(s.q, s.noise_multiplier, s.count) for s in private.history]
    return found


def all_cases() -> list[dict[str, Any]]:
    return [trained(*case) for case in CASES]


@pytest.fixture(scope="module")
def by_size() -> dict[int, list[Any]]:
    """What all cases give on 1, 2 and 4 ranks."""
    return {size: on_ranks(size, all_cases) for size in (1, 2, 4)}


def test_any_number_of_ranks_takes_the_same_steps_bit_for_bit(
    by_size: dict[int, list[Any]],
) -> None:
    (alone,) = by_size[1]
    for size in (2, 4):
        for ours in by_size[size]:
            for case, one, other in zip(CASES, alone, ours, strict=True):
                assert one["weights"] == other["weights"], (size, case)
                assert one["clip"] == other["clip"], (size, case)
                assert one["history"] == other["history"], (size, case)
                for mine, theirs in zip(one["numbers"], other["numbers"], strict=True):
                    assert mine == pytest.approx(theirs, rel=1e-12), (size, case)


class Mixed(nn.Module):
    """Parameters of two precisions, one of them in the memory format channels_last."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.conv = nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)
        self.linear = nn.Linear(3, 3, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(
            self.conv(x.view(-1, 2, 3, 1).expand(-1, -1, -1, 3)).mean((2, 3)).double()
        )


def noise_of_parts(model: Callable[[], nn.Module]) -> tuple[list[float], int]:
    """The gradients of a release, and how many normal numbers this rank drew for it."""
    drawn: list[int] = []
    normals = Keystream.normals

    def counted(self: Keystream, count: int, device: torch.device) -> Tensor:
        drawn.append(count)
        return normals(self, count, device)

    x, y = images()
    private = PrivateGradients(
        model(), sampler=PoissonSampler(EXAMPLES, 12.0), clipping=Flat(0.5), check=False,
        noise=GaussianNoise(0.7), randomness=Randomness.from_seed(2), precision=None,
    )  # fmt: skip
    with patch.object(Keystream, "normals", counted):
        share = Ranks.current().share(12)
        private.backward(x[share], y[share])
    parameters = private.per_example.trainable.values()
    assert all(p.grad.stride() == p.stride() for p in parameters)
    return torch.cat([p.grad.double().flatten() for p in parameters]).tolist(), sum(drawn)


@pytest.mark.parametrize("model", [network, Mixed])
def test_each_rank_draws_the_noise_of_its_part(model: Callable[[], nn.Module]) -> None:
    (alone, all_of_it), *_ = on_ranks(1, noise_of_parts, model)
    assert all_of_it == len(alone)
    for size in (2, 3):
        for gradients, drawn in on_ranks(size, noise_of_parts, model):
            assert gradients == alone
            assert drawn <= all_of_it / size + 8


def test_shares_partition_every_draw_and_may_be_empty(by_size: dict[int, list[Any]]) -> None:
    (alone,) = by_size[1]
    some = every = 0
    for ours in by_size[4]:
        assert not isinstance(ours, Failed), ours
    for number, one in enumerate(alone):
        shares = torch.tensor([ours[number]["drawn"] for ours in by_size[4]])
        assert shares.sum(0).tolist() == one["drawn"]
        assert (shares.amax(0) - shares.amin(0)).max() <= 2
        some += int(((shares == 0).any(0) & (shares > 0).any(0)).sum())
        every += int((shares == 0).all(0).sum())
    assert some > 3 and every > 3


def test_examples_that_are_not_finite_are_counted_over_ranks(
    by_size: dict[int, list[Any]],
) -> None:
    for size in (1, 2, 4):
        left_out = [sum(n[4] for n in case["numbers"]) for case in by_size[size][0]]
        assert left_out[0] > 0 and left_out == [
            sum(n[4] for n in case["numbers"]) for case in by_size[1][0]
        ]


def draws() -> list[list[int]]:
    """Inclusions of 8 examples in 1500 draws of this rank, as positions."""
    sampler = PoissonSampler(8, 2.0)
    return [sampler.draw().tolist() for _ in range(1500)]


def test_every_example_enters_at_rate_q_and_independently_of_all_others() -> None:
    """On three ranks that each draw from a key of the operating system."""
    table = torch.zeros(3, 1500, 8)
    for rank, found in enumerate(on_ranks(3, draws)):
        for step, indices in enumerate(found):
            table[rank, step, indices] = 1
    included = table.sum(0)
    assert included.max() == 1  # Never on two ranks.
    bound = 5 * (0.25 * 0.75 / 1500) ** 0.5
    assert (included.mean(0) - 0.25).abs().max() < bound
    together = (included.T @ included) / 1500 - torch.full((8, 8), 0.0625)
    together.fill_diagonal_(0)
    assert together.abs().max() < 5 * (0.0625 * 0.9375 / 1500) ** 0.5
    following = (included[:-1] * included[1:]).mean(0) - 0.0625
    assert following.abs().max() < 5 * (0.0625 * 0.9375 / 1500) ** 0.5


def noises() -> list[float]:
    """Released sums of draws without examples."""
    private = mechanism("flat", 1, 10.0, randomness=None, noise=GaussianNoise(3.0), check=False)
    found: list[float] = []
    for _ in range(60):
        private.release()
        for parameter in private.per_example.trainable.values():
            found += (parameter.grad * 10.0).flatten().tolist()  # type: ignore[operator]
    return found


def test_the_noise_of_the_sum_is_sigma_times_c_once_and_equal_on_all_ranks() -> None:
    first, *others = on_ranks(4, noises)
    assert len(first) == 60 * 53
    assert all(other == first for other in others)
    deviation = torch.tensor(first).std().item()
    assert deviation == pytest.approx(3.0 * 0.5, rel=0.06)


def own_loop() -> tuple[list[float], int]:
    """The loop of the documentation, with nothing about ranks in it."""
    x, y = images()
    private = mechanism("flat", 1, 12.0, randomness=None)
    loader = private.loader(DataLoader(TensorDataset(x, y), batch_size=4))
    optimizer = torch.optim.SGD(private.per_example.model.parameters(), lr=0.1)
    examples = 0
    for inputs, targets in loader:
        statistics = private.backward(inputs, targets, physical_batch=3)
        optimizer.step()
        examples += statistics.examples
    weights = [p.detach().flatten() for p in private.per_example.model.parameters()]
    return torch.cat(weights).tolist(), examples


def test_an_own_loop_needs_no_change() -> None:
    found = on_ranks(3, own_loop)
    assert found[0] == found[1] == found[2]
    assert 60 < found[0][1] < 180


def refusals(kind: str) -> None:
    """One release for which ranks are not alike."""
    x, y = images()
    rank = Ranks.current().rank
    if kind == "draw":
        PoissonSampler(8, 2.0).draw(Randomness.from_seed(rank).stream(1, "sample"))
    more: dict[str, Any] = {"randomness": Randomness.from_seed(0)}
    if kind == "key":
        more = {"randomness": Randomness(bytes([rank] * 32), False)}
    if kind == "noise":
        more |= {"noise": GaussianNoise(1.0 + rank)}
    private = mechanism("flat", 1, 12.0, **more)
    if kind == "step" and rank:
        private.released = 3
    if kind == "twice":
        clean = torch.ones(EXAMPLES, dtype=torch.bool)
        private.accumulate(x[clean], y[clean])
    if kind == "ledger":
        private.release(before=_full_disk if rank == 0 else None)
    private.release()


def _full_disk(_: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("draw", "Rank 1 of 2 has another key stream to draw from than rank 0"),
        ("key", "Rank 1 of 2 has another key for random numbers than rank 0"),
        ("noise", "Rank 1 of 2 has another noise multiplier than rank 0 (2.0 instead of 1.0)"),
        ("step", "Rank 1 of 2 has another step than rank 0 (4 instead of 1)"),
        ("twice", "80 examples were accumulated for one release, and the sampler has 40"),
    ],
)
def test_a_release_that_ranks_do_not_agree_on_is_refused_on_all(kind: str, sentence: str) -> None:
    for found in on_ranks(2, refusals, kind):
        assert isinstance(found, Failed) and found.startswith(f"UserError: {sentence}"), found


def test_no_rank_releases_what_rank_0_could_not_record() -> None:
    leader, other = on_ranks(2, refusals, "ledger")
    assert leader == "OSError: [Errno 28] No space left on device"
    assert other == "OtherRankError: OSError: [Errno 28] No space left on device"
