"""Random numbers that belong to rows: fair, independent, and the same for any split."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.privacy import Flat, GaussianNoise, PoissonSampler
from sfumato.privacy.checks import spot_check
from sfumato.privacy.engines.compiled import Compiled, Fused
from sfumato.privacy.engines.keyed_draws import DRAWINGS, KeyedDraws, RowSeeds
from sfumato.privacy.engines.leaves import Leaves
from sfumato.privacy.engines.objective import Objective
from sfumato.privacy.engines.operators import ContactMode, Operators
from sfumato.privacy.mechanism import PrivateGradients
from sfumato.privacy.numerics.randomness import Randomness
from sfumato.privacy.per_example import PerExample
from sfumato.privacy.sampling import PhysicalBatch
from uncompiled import run_without_code


@pytest.fixture(autouse=True)
def _traced(monkeypatch: pytest.MonkeyPatch) -> None:
    run_without_code(monkeypatch)


def keys(rows: int, seed: int = 7, first: int = 0, views: int = 1) -> Tensor:
    return RowSeeds(seed, first=first).keys(rows, views, torch.device("cpu"))


class DropPath(nn.Module):
    """Stochastic depth as libraries write it."""

    def forward(self, x: Tensor) -> Tensor:
        kept = x.new_empty((x.shape[0],) + (1,) * (x.dim() - 1)).bernoulli_(0.7)
        return x * kept.div_(0.7)


class OldDropPath(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        drawn = 0.7 + torch.rand((x.shape[0], 1), dtype=x.dtype, device=x.device)
        return x / 0.7 * drawn.floor_()


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(6, 18)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x.view(-1, 2, 1, 6)).transpose(1, 2).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.3).flatten(1)


class Drawing(nn.Module):
    """A layer that draws by a function."""

    def __init__(self, draw: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.draw = draw

    def forward(self, x: Tensor) -> Tensor:
        return self.draw(x)


def encoded(x: Tensor) -> Tensor:
    """A sample of a normal distribution, as variational autoencoders draw it."""
    mean, deviation = x.chunk(2, 1)
    return (mean + torch.randn_like(mean) * deviation.exp()).repeat(1, 2)


DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "encoder": encoded,
    "rand_like": lambda x: x * torch.rand_like(x),
    "randn": lambda x: x + torch.randn(len(x), 12, dtype=x.dtype),
    "randn by size": lambda x: x + torch.randn(size=(len(x), 12), dtype=x.dtype),
    "normal by size": lambda x: x + torch.normal(0.5, 2.0, size=(len(x), 12)),
    "normal_": lambda x: x + x.new_empty(x.shape).normal_(0.5, std=2),
    "uniform_": lambda x: x + x.new_empty(len(x), 1).uniform_(-1, 2),
    "exponential_": lambda x: x + torch.empty_like(x).exponential_(lambd=3),
    "normal": lambda x: x + torch.normal(x.detach(), 0.3),
    "gumbel": lambda x: x * F.gumbel_softmax(x, tau=0.7),
    "hard gumbel": lambda x: x + F.gumbel_softmax(x.view(-1, 3, 4), hard=True, dim=1).flatten(1),
    "feature alpha dropout": lambda x: F.feature_alpha_dropout(x.view(-1, 3, 4), 0.4, True).flatten(
        1
    ),
    "rrelu in place": lambda x: F.rrelu(x * 2, 0.1, 0.9, True, inplace=True),
    "alpha dropout in place": lambda x: F.alpha_dropout(x * 2, 0.3, True, inplace=True),
}

LAYERS = {
    **{kind: (lambda draw=draw: Drawing(draw)) for kind, draw in DRAWS.items()},
    "rrelu": nn.RReLU,
    "alpha dropout": lambda: nn.AlphaDropout(0.4),
    "dropout": lambda: nn.Dropout(0.4),
    "in place": lambda: nn.Sequential(nn.Linear(12, 12), nn.Dropout(0.4, inplace=True)),
    "channels": lambda: nn.Sequential(nn.Unflatten(1, (3, 2, 2)), nn.Dropout2d(0.4), nn.Flatten()),
    "drop path": DropPath,
    "old drop path": OldDropPath,
    "attention": Attention,
}


def network(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(8, 12), nn.Tanh(), LAYERS[kind](), nn.Linear(12, 3)
    ).double()


def test_uniform_numbers_are_fair_and_independent() -> None:
    drawn = KeyedDraws(keys(400)).uniform((400, 500))
    assert drawn is not None and float(drawn.min()) >= 0 and float(drawn.max()) < 1
    assert abs(float(drawn.mean()) - 0.5) < 4 * (1 / 12 / drawn.numel()) ** 0.5
    counts = torch.histc(drawn, 64, 0, 1)
    expected = drawn.numel() / 64
    assert float(((counts - expected) ** 2 / expected).sum()) < 63 + 5 * (2 * 63) ** 0.5
    centred = drawn - 0.5
    for shifted in (centred.roll(1, 0), centred.roll(1, 1)):
        assert abs(float((centred * shifted).mean()) * 12) < 5 / drawn.numel() ** 0.5
    other = KeyedDraws(keys(400, seed=8)).uniform((400, 500))
    assert other is not None and abs(float((centred * (other - 0.5)).mean()) * 12) < 0.02


def moments(x: Tensor) -> Tensor:
    return torch.stack([x.mean(), x.var(), (x - x.mean()).pow(3).mean(), x.min(), x.max()])


@pytest.mark.parametrize(
    ("draw", "tolerance"),
    [
        (lambda x: torch.randn_like(x), 0.05),
        (lambda x: torch.empty_like(x).normal_(2.0, 0.5), 0.05),
        (lambda x: torch.normal(x, 0.5), 0.05),
        (lambda x: torch.empty_like(x).uniform_(-1, 3), 0.03),
        (lambda x: torch.empty_like(x).exponential_(4.0), 0.02),
        (lambda x: F.rrelu(x - 2, 0.1, 0.6, True), 0.01),
        (lambda x: F.alpha_dropout(x, 0.3, True), 0.03),
        (lambda x: F.gumbel_softmax(x.view(-1, 4))[:, 0], 0.02),
        (lambda x: F.gumbel_softmax(x.view(-1, 4), hard=True)[:, 0], 0.02),
    ],
)
def test_drawn_numbers_have_the_distribution_of_pytorch(
    draw: Callable[[Tensor], Tensor], tolerance: float
) -> None:
    torch.manual_seed(0)
    x = torch.ones(400, 500)
    leaves = Leaves(400, 1, {}, KeyedDraws(keys(400)))
    with ContactMode({}, leaves, {}):
        found = moments(draw(x))
    state = torch.get_rng_state()
    wanted = moments(draw(x))
    assert not torch.equal(state, torch.get_rng_state())
    torch.testing.assert_close(found[:3], wanted[:3], atol=tolerance, rtol=0.02)
    torch.testing.assert_close(found[3:], wanted[3:], atol=1.5, rtol=0.5)


def test_a_generator_of_the_model_is_its_own() -> None:
    draws = Leaves(4, 1, {}, KeyedDraws(keys(4)))
    drawn = []
    for _ in range(2):
        generator = torch.Generator().manual_seed(3)
        with ContactMode({}, draws, {}):
            drawn.append(torch.empty(4, 2).normal_(generator=generator))
    assert torch.equal(*drawn)


@pytest.mark.parametrize("kind", ["rrelu", "encoder", "alpha dropout", "gumbel"])
def test_models_with_noise_pass_the_checks_and_are_compiled(kind: str) -> None:
    model = network(kind).float().train()
    engine = PerExample(model, precision=torch.float32)
    engine.seeds = RowSeeds(3)
    assert isinstance(engine(torch.randn(5, 8), torch.tensor([0, 1, 2, 0, 1])), Fused)
    assert not engine.passed_over


@pytest.mark.parametrize("views", [1, 2])
def test_slopes_that_are_drawn_for_negative_numbers_alone_mix_no_examples(views: int) -> None:
    engine = PerExample(network("rrelu").float().train(), views=views)
    for _ in range(2):
        engine(torch.randn(5 * views, 8), torch.tensor([0, 1, 2, 0, 1]))
    assert engine.method == "operators" and not engine.passed_over


class RowByRow(nn.Module):
    """Runs rows one at a time, which no engine follows but the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.slope, self.last = nn.Linear(8, 8), nn.RReLU(), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = [self.slope(self.first(row.unsqueeze(0)))[0] for row in x]
        out: Tensor = self.last(torch.stack(rows))
        return out


def test_a_model_with_random_slopes_in_the_loop_is_not_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The numbers drawn for one example do not depend on the signs in another."""
    monkeypatch.setattr(spot_check, "EVERY", 1)
    torch.manual_seed(0)
    private = PrivateGradients(
        RowByRow(), sampler=PoissonSampler(20, 10), clipping=Flat(1.0), noise=GaussianNoise(0.0)
    )
    with pytest.warns(UserWarning, match="one at a time"):
        for _ in range(8):
            private.accumulate(torch.randn(6, 8), torch.arange(6) % 3)
            private.discard()
    assert private.per_example.method == "loop"


def test_a_buffer_is_filled_by_pytorch() -> None:
    draws, given = KeyedDraws(keys(4)), {"out": torch.empty(4, 2)}
    assert DRAWINGS[torch.randn](draws, torch.randn, ((4, 2),), given) is None


def test_calls_differ_and_rows_in_other_places_are_left_alone() -> None:
    draws = KeyedDraws(keys(4))
    first, second = draws.uniform((4, 5)), draws.uniform((4, 5))
    assert first is not None and second is not None and not torch.equal(first, second)
    assert draws.uniform((3, 4)) is None and draws.uniform(()) is None
    merged = draws.uniform((8, 2))
    assert merged is not None and merged.shape == (8, 2)


@pytest.mark.parametrize("kind", sorted(LAYERS))
def test_an_example_has_the_same_numbers_for_any_split(kind: str) -> None:
    engine = Operators(Objective(network(kind).train(), views=2))
    x, y = torch.randn(8, 8).double(), torch.tensor([0, 1, 2, 0])
    whole = engine.gradients(x, y, keys(8, views=2))
    parts = [
        engine.gradients(x[:2], y[:1], keys(2, views=2)),
        engine.gradients(x[2:], y[1:], keys(6, first=1, views=2)),
    ]
    torch.testing.assert_close(whole.losses, torch.cat([part.losses for part in parts]))
    norms = torch.cat([part.squared_norms() for part in parts])
    torch.testing.assert_close(whole.squared_norms(), norms)
    other = engine.gradients(x, y, keys(8, seed=9))
    assert not torch.allclose(whole.losses, other.losses)


@pytest.mark.parametrize("kind", sorted(LAYERS))
def test_the_compiled_pass_draws_the_same_numbers(kind: str) -> None:
    objective = Objective(network(kind).train(), views=2)
    x, y = torch.randn(6, 8).double(), torch.tensor([0, 1, 2])
    passes = Compiled(objective, x, 3, torch.float64, random=True)
    losses = []
    for seed in (1, 2):
        ours = passes.gradients(x, y, keys(6, seed=seed))
        wanted = Operators(objective).gradients(x, y, keys(6, seed=seed))
        torch.testing.assert_close(ours.losses, wanted.losses)
        torch.testing.assert_close(
            ours.squared_norms(), wanted.squared_norms(), rtol=1e-3, atol=1e-9
        )
        losses.append(ours.losses.clone())
    assert not torch.equal(*losses)


def test_a_model_with_dropout_takes_the_compiled_pass() -> None:
    model = network("dropout").float().train()
    engine = PerExample(model, precision=torch.float32)
    x, y = torch.randn(5, 8), torch.tensor([0, 1, 2, 0, 1])
    engine.seeds = RowSeeds(3)
    found = engine(x, y)
    assert isinstance(found, Fused), engine.passed_over
    other = PerExample(model)
    other.seeds = RowSeeds(3)
    torch.testing.assert_close(found.losses, other(x, y).losses)
    first = found.losses.clone()
    engine.seeds = RowSeeds(4)
    assert not torch.equal(first, engine(x, y).losses)
    engine.seeds = None
    assert not torch.equal(first, engine(x, y).losses)


def test_indices_of_examples_are_their_numbers() -> None:
    cpu = torch.device("cpu")
    every = RowSeeds(5).keys(12, 2, cpu)
    some = RowSeeds(5, torch.tensor([4, 1])).keys(4, 2, cpu)
    assert torch.equal(some, every.view(6, 2)[[4, 1]].flatten())
    padded = RowSeeds(5, torch.tensor([4, 1])).keys(8, 2, cpu)
    assert torch.equal(padded[:4], some)
    assert not set(padded[4:].tolist()) & set(every.tolist()) and len(set(padded.tolist())) == 8
    assert len(set(RowSeeds(5).keys(1000, 4, cpu).tolist())) == 1000


@pytest.mark.parametrize("known", [True, False])
def test_releases_with_dropout_do_not_depend_on_the_split(known: bool) -> None:
    found = []
    for sizes in ((6,), (1, 5), (2, 2, 2)):
        sampler = PoissonSampler(20, 10)
        private = PrivateGradients(
            network("dropout").train(), sampler=sampler, clipping=Flat(1.0),
            noise=GaussianNoise(0.0), randomness=Randomness.from_seed(3),
        )  # fmt: skip
        torch.manual_seed(len(sizes))
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(6, 8, generator=generator, dtype=torch.float64)
        y, start = torch.tensor([0, 1, 2, 0, 1, 2]), 0
        for size in sizes:
            rows = slice(start, start + size)
            indices = torch.tensor([3, 5, 8, 9, 12, 19])[rows]
            batch = PhysicalBatch(indices, torch.ones(size), start, size) if known else None
            private.accumulate(x[rows], y[rows], batch)
            start += size
        private.release()
        found.append([p.grad for p in private.per_example.trainable.values()])
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            torch.testing.assert_close(a, b)
