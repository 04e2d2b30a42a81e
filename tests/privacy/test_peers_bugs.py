"""What goes wrong in other libraries, one test for each: none of it may go wrong here."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from sfumato.errors import UserError
from sfumato.privacy import (
    Flat,
    GaussianNoise,
    PerExample,
    PoissonSampler,
    PrivateGradients,
    Randomness,
    one_at_a_time,
)
from sfumato.privacy.checks.agreement import errors
from sfumato.privacy.numerics.model_state import Snapshot

N, CLASSES = 7, 4
X = torch.randn(N, 3, 10, 10, generator=torch.Generator().manual_seed(0))
Y = torch.arange(N) % CLASSES


def with_head(*layers: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(
        *layers, nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.LazyLinear(CLASSES)
    )
    net(X)
    return net


def private(model: nn.Module, clip: float = 1.0, sigma: float = 0.0) -> PrivateGradients:
    return PrivateGradients(
        model, sampler=PoissonSampler(100, 10), clipping=Flat(clip), noise=GaussianNoise(sigma)
    )


def assert_right(model: nn.Module, x: Tensor = X) -> PerExample:
    """Per-example gradients by layer rules, equal to one example at a time."""
    engine, state = PerExample(model), Snapshot(model)
    ours = engine(x, Y)
    state.restore()
    found = errors(ours, one_at_a_time(model, x, Y))
    assert max(found.values()) < 1e-4, found
    assert engine.method == "operators", engine.passed_over
    return engine


def realised_norms(model: nn.Module, x: Tensor, clip: float) -> list[float]:
    mechanism = private(model, clip)
    norms = []
    for weights in torch.eye(N):
        mechanism.accumulate(x, Y, weights)
        sums = [s.double().flatten() for s in (mechanism._sum.totals or {}).values()]
        norms.append(float(torch.cat(sums).norm()))
        mechanism.discard()
    return norms


@pytest.mark.parametrize("channels", [3, 16])
def test_channels_last_gives_silently_wrong_gradients(channels: int) -> None:
    net = with_head(nn.Conv2d(3, channels, 1), nn.Conv2d(channels, 8, 3, stride=2, padding=1))
    net = net.to(memory_format=torch.channels_last)
    assert_right(net, X.contiguous(memory_format=torch.channels_last))


@pytest.mark.parametrize("mode", ["circular", "reflect", "replicate"])
def test_padding_modes_give_silently_wrong_gradients(mode: str) -> None:
    assert_right(with_head(nn.Conv2d(3, 6, 3, padding=2, padding_mode=mode)))
    assert_right(with_head(nn.Conv2d(3, 6, 4, padding="same", padding_mode=mode)))


@pytest.mark.parametrize("clip", [1e-3, 1.0])
@pytest.mark.parametrize("mode", ["zeros", "circular", "reflect"])
@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_clipped_norm_exceeds_c(clip: float, mode: str, memory: torch.memory_format) -> None:
    net = with_head(nn.Conv2d(3, 6, 3, padding=1, padding_mode=mode)).to(memory_format=memory)
    norms = realised_norms(net, X.contiguous(memory_format=memory) * 20, clip)
    assert max(norms) <= clip
    assert max(norms) > 0.999 * clip


def test_in_place_operations_crash() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 1)

        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x)
            h += self.b(x)
            return nn.functional.relu_(h)

    assert_right(
        with_head(
            nn.Conv2d(3, 6, 3), nn.ReLU(inplace=True), Residual(), nn.GroupNorm(2, 6),
            nn.ELU(inplace=True), nn.Linear(8, 8), nn.LeakyReLU(inplace=True),
        )
    )  # fmt: skip


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(3, 4, 3),
        nn.Conv3d(1, 2, 1),
        nn.GroupNorm(1, 3),
        nn.MultiheadAttention(10, 2, batch_first=True),
    ],
)
def test_empty_batches_crash(layer: nn.Module) -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.out = layer, nn.LazyLinear(CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            if isinstance(self.layer, nn.Conv3d):
                x = self.layer(x.unsqueeze(1))
            elif isinstance(self.layer, nn.MultiheadAttention):
                x = x.flatten(1, 2)
                x = self.layer(x, x, x)[0]
            else:
                x = self.layer(x)
            return self.out(x.flatten(1))

    net = Wrapped()
    net(X)
    mechanism = private(net, sigma=1.0)
    mechanism.accumulate(X[:0], Y[:0])
    mechanism.accumulate(X, Y)
    mechanism.accumulate(X[:0], Y[:0], torch.ones(0))
    assert mechanism.release().examples == N
    mechanism.randomness = Randomness.from_seed(0)
    statistics = mechanism.release()
    assert statistics.examples == 0
    assert all(p.grad is not None and bool(p.grad.any()) for p in net.parameters())


def test_subtracted_batch_mean_passes_the_validator() -> None:
    class Centred(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(0, keepdim=True)

    with pytest.raises(UserError, match=r"layer '1' \(Centred\)"):
        PerExample(with_head(nn.Conv2d(3, 4, 3), Centred()))(X, Y)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_one_nan_example_makes_every_parameter_nan(bad: float) -> None:
    net = with_head(nn.Conv2d(3, 16, 3), nn.GroupNorm(2, 16), nn.Conv2d(16, 4, 3, padding=1))
    mechanism = private(net)
    mechanism.accumulate(X, Y, (torch.arange(N) != 2).float())
    mechanism.release()
    without = [p.grad.clone() for p in net.parameters()]
    x = X.clone()
    x[2, 0, 0, 0] = bad
    mechanism.accumulate(x, Y)
    statistics = mechanism.release()
    assert statistics.not_finite == 1 and statistics.examples == N
    assert math.isfinite(statistics.loss)
    assert all(torch.equal(p.grad, w) for p, w in zip(net.parameters(), without, strict=True))


def test_the_sampler_has_exactly_the_expected_batch() -> None:
    """Asked for 4096 of 50 000, rounding the number of steps per epoch gives 3846."""
    sampler = PoissonSampler(50_000, 4096)
    assert sampler.rate == 4096 / 50_000
    sizes = [
        len(sampler.draw(Randomness.from_seed(0).stream(step, "sample"))) for step in range(200)
    ]
    drawn = stats.binomtest(sum(sizes), 200 * 50_000, sampler.rate)
    assert drawn.pvalue > 1e-3
    assert stats.binomtest(sum(sizes), 200 * 50_000, 3846 / 50_000).pvalue < 1e-100


def test_grouped_convolutions_give_silently_wrong_gradients() -> None:
    assert_right(with_head(nn.Conv2d(3, 6, 3, groups=3), nn.Conv2d(6, 9, 3, groups=3, stride=2)))


def test_depthwise_convolutions_give_silently_wrong_gradients() -> None:
    assert_right(with_head(nn.Conv2d(3, 16, 1), nn.Conv2d(16, 32, 3, padding=1, groups=16)))


def test_reused_convolutions_give_silently_wrong_gradients() -> None:
    shared = nn.Conv2d(3, 3, 3, padding=1)
    engine = assert_right(with_head(shared, nn.Tanh(), shared, nn.Tanh(), shared))
    assert [p.kind for p in engine.paths()].count("Conv2d") == 1


def test_unknown_layers_are_frozen_with_a_print(capsys) -> None:
    class Unknown(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.angle = nn.Parameter(torch.linspace(0.1, 0.9, 3))

        def forward(self, x: Tensor) -> Tensor:
            return torch.sin(x * self.angle.view(-1, 1, 1))

    net = with_head(Unknown(), nn.PReLU(3))
    engine = assert_right(net)
    assert {p.kind: p.path for p in engine.paths()}["Unknown"] == "reparametrised"
    mechanism = private(net)
    mechanism.accumulate(X, Y)
    mechanism.release()
    assert all(p.requires_grad and bool(p.grad.any()) for p in net.parameters())
    assert capsys.readouterr() == ("", "")


def test_shuffles_but_accounts_as_poisson() -> None:
    """The size of a draw varies as a binomial does; a shuffled batch never varies."""
    sampler = PoissonSampler(1000, 100)
    stream = Randomness.from_seed(0).stream(0, "sample")
    sizes = [float(len(sampler.draw(stream))) for _ in range(500)]
    deviation = torch.tensor(sizes).std()
    assert 0.9 < float(deviation) / math.sqrt(1000 * 0.1 * 0.9) < 1.1


def test_spectral_norm_like_parametrisations_are_not_supported() -> None:
    from torch.nn.utils import parametrizations

    assert_right(with_head(parametrizations.spectral_norm(nn.Conv2d(3, 4, 3))))


def test_augmentation_multiplicity_is_missing() -> None:
    """K views cost the memory of one: gradients are taken of their mean, before clipping."""
    net = with_head(nn.Conv2d(3, 16, 1), nn.Conv2d(16, 8, 3, padding=1))
    engine = PerExample(net, views=4)
    views = X.repeat_interleave(4, 0) + 0.1 * torch.randn(4 * N, 3, 10, 10)
    ours, reference = engine(views, Y), one_at_a_time(net, views, Y, views=4)
    assert max(errors(ours, reference).values()) < 1e-4
    assert ours.tensors[0] is not None and len(ours.tensors[0]) == N
