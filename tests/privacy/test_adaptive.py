"""Adaptive quantile clipping: convergence, cost, sampling, physical batches."""

from __future__ import annotations

import math
import statistics

import dp_accounting
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from torch import Tensor, nn

from sfumato.errors import UserError
from sfumato.privacy import (
    AdaptiveQuantile,
    GaussianNoise,
    PoissonSampler,
    PrivateGradients,
    Randomness,
    Step,
    epsilon,
    physical_batches,
)
from sfumato.privacy.accounting.accountants import joint_noise_multiplier
from thinning import with_slow


def stream_rule(**changes: float) -> AdaptiveQuantile:
    settings = {"clip": 0.1, "count_noise": 10.0, "quantile": 0.5, "rate": 0.2} | changes
    rule = AdaptiveQuantile(**settings)  # type: ignore[arg-type]
    return rule.bind(["w"], [torch.Size([1])])


@pytest.mark.parametrize(("quantile", "start"), [(0.5, 0.01), (0.8, 30.0), (0.2, 1.0)])
def test_converges_to_the_true_quantile_within_noise(quantile: float, start: float) -> None:
    """Log-normal norms, Poisson draws of 200 among 4000, noise of a twentieth of the batch."""
    normal = Randomness.from_seed(0).stream(0, "norms")
    norms = torch.exp(normal.normals(4000, torch.device("cpu")))
    true = float(norms.quantile(quantile))
    sampler, noise = PoissonSampler(4000, 200), GaussianNoise(10.0)
    rule, seen = stream_rule(clip=start, quantile=quantile), []
    for step in range(400):
        stream = Randomness.from_seed(0).stream(step, "sample")
        drawn = norms[sampler.draw(stream)]
        count = rule.observe(drawn.square().unsqueeze(1), torch.ones(len(drawn), dtype=torch.bool))
        rule = rule.after(noise.add(count, sensitivity=1.0, stream=stream), 200)
        seen.append(rule.limits[0])
    assert statistics.median(seen[-200:]) == pytest.approx(true, rel=0.1)
    assert max(seen[-200:]) < 1.6 * true
    assert min(seen[-200:]) > true / 1.6


def test_the_fraction_is_of_the_expected_batch_and_not_of_the_drawn_size() -> None:
    rule = stream_rule(clip=1.0)
    all_below = torch.full((50, 1), 0.25, dtype=torch.float64)
    count = rule.observe(all_below, torch.ones(50, dtype=torch.bool))
    assert count.tolist() == [25.0]
    moved = rule.after(count, 200)
    assert moved.limits[0] == pytest.approx(math.exp(-0.2 * (25 / 200 + 0.5 - 0.5)))
    nobody = rule.observe(all_below[:0], torch.ones(0, dtype=torch.bool))
    assert rule.after(nobody, 200).limits == rule.limits


def test_an_example_moves_each_count_by_at_most_a_half() -> None:
    rule = AdaptiveQuantile(1.0, count_noise=1.0, by_layer=True)
    rule = rule.bind(["a.w", "b.w", "c.w"], [torch.Size([4])] * 3)
    values = [0.0, 1e-9, 1 / 3, 0.5, 1e30, math.inf, math.nan]
    for a in values:
        for b in values:
            squared = torch.tensor([[a, b, 0.0]], dtype=torch.float64)
            count = rule.observe(squared, torch.tensor([True]))
            expected = 0.0 if not (math.isfinite(a) and math.isfinite(b)) else 0.5
            assert count.abs().tolist() == [expected] * 3
            assert rule.observe(squared, torch.tensor([False])).abs().max() == 0


def test_epsilon_is_that_of_the_joint_release_by_hand() -> None:
    """z_g = 1.5 on the gradients and sigma_b = 4 on the count: 1/z² = 1/2.25 + 1/64."""
    z = 1 / math.sqrt(1 / 2.25 + 1 / 64)
    rule = stream_rule(count_noise=4.0)
    assert rule.gradient_noise(z) == pytest.approx(1.5, rel=1e-12)
    network = nn.Linear(2, 2)
    private = PrivateGradients(
        network, sampler=PoissonSampler(1000, 50), clipping=rule, noise=GaussianNoise(z)
    )
    for _ in range(20):
        private.release()
    by_hand = PLDAccountant(value_discretization_interval=1e-4)
    event = dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(1.474308))
    assert z == pytest.approx(1.474308, abs=1e-6)
    by_hand.compose(event, 20)
    assert private.epsilon(delta=1e-5) == pytest.approx(by_hand.get_epsilon(1e-5), rel=1e-3)
    assert private.history == [Step(0.05, z, 20)]
    separately = [Step(0.05, 1.5, 20), Step(0.05, 8.0, 20)]
    assert private.epsilon(delta=1e-5) != pytest.approx(epsilon(separately, delta=1e-5), rel=1e-3)


@pytest.mark.parametrize("layers", [1, 3, 20])
@pytest.mark.parametrize("z", [0.3, 1.0, 7.77, 40.0])
def test_the_parts_never_cost_more_than_the_whole(layers: int, z: float) -> None:
    rule = AdaptiveQuantile(1.0, count_noise=200.0, by_layer=True)
    rule = rule.bind([f"l{i}.w" for i in range(layers)], [torch.Size([4])] * layers)
    z_g = rule.gradient_noise(z)
    counts = [rule.observation_noise / 0.5] * layers
    assert rule.observation_noise == pytest.approx(200 * math.sqrt(layers))
    assert joint_noise_multiplier(z_g, rule.count_multiplier) >= z
    assert joint_noise_multiplier(z_g, *counts) == pytest.approx(z, rel=1e-12)
    assert z_g > z


def test_too_little_noise_on_the_count_is_refused() -> None:
    rule = stream_rule(count_noise=0.5)
    with pytest.raises(UserError, match=r"count_noise above 1\.5"):
        rule.gradient_noise(3.0)
    with pytest.raises(UserError, match="count_noise"):
        PrivateGradients(
            nn.Linear(2, 2), sampler=PoissonSampler(9, 3), clipping=rule, noise=GaussianNoise(3.0)
        )


def run(size: int, *, by_layer: bool, steps: int = 3) -> tuple[list[Tensor], tuple[float, ...]]:
    """A few noisy steps, each draw in padded physical batches of `size`."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    x = torch.randn(40, 3)
    y = torch.arange(40) % 2
    x[5] = math.nan
    private = PrivateGradients(
        network,
        sampler=PoissonSampler(40, 12),
        clipping=AdaptiveQuantile(0.5, count_noise=3.0, by_layer=by_layer),
        noise=GaussianNoise(1.0),
        randomness=Randomness.from_seed(100),
    )
    for step in range(steps):
        stream = Randomness.from_seed(0).stream(step, "sample")
        for part in physical_batches(private.sampler.draw(stream), size):
            private.accumulate(x[part.indices], y[part.indices], part)
        private.release()
    assert isinstance(private.clipping, AdaptiveQuantile)
    return [p.grad.clone() for p in network.parameters()], private.clipping.limits  # type: ignore[union-attr]


@pytest.mark.parametrize("by_layer", with_slow([False, True], False))
def test_physical_batches_change_neither_the_update_nor_the_threshold(by_layer: bool) -> None:
    whole, limits = run(40, by_layer=by_layer)
    assert limits != run(40, by_layer=by_layer, steps=2)[1]
    for size in (1, 5, 7):
        parts, same = run(size, by_layer=by_layer)
        assert same == pytest.approx(limits, rel=1e-12)
        for a, b in zip(whole, parts, strict=True):
            assert torch.allclose(a, b, atol=1e-6)


def test_noise_on_the_gradients_has_the_size_that_was_accounted() -> None:
    network = nn.Linear(200, 100, bias=False)
    rule = AdaptiveQuantile(2.0, count_noise=1.0)
    private = PrivateGradients(
        network, sampler=PoissonSampler(10, 1), clipping=rule, noise=GaussianNoise(1.2),
        randomness=Randomness.from_seed(0),
    )  # fmt: skip
    private.release()
    z_g = 1 / math.sqrt(1 / 1.44 - 1 / 4)
    assert network.weight.grad is not None
    assert float(network.weight.grad.std()) == pytest.approx(z_g * 2.0, rel=0.02)
    noisy_count = -math.log(private.clipping.sensitivity / 2.0) / 0.2
    assert noisy_count != 0
    assert abs(noisy_count) < 5


def test_the_state_is_plain_numbers_and_comes_back_exactly() -> None:
    rule = stream_rule(clip=math.pi)
    moved = rule.after(torch.tensor([1.2345]), 7)
    assert rule.restored(moved.state()) == moved
    assert moved.bind(["w"], [torch.Size([1])]) == moved


def test_no_chain_of_noise_makes_the_threshold_useless() -> None:
    rule = stream_rule(clip=1.0, rate=5.0)
    for _ in range(100):
        rule = rule.after(torch.tensor([1e9]), 1)
    assert rule.limits == (1e-6,)
    for _ in range(100):
        rule = rule.after(torch.tensor([-1e9]), 1)
    assert rule.limits == (1e6,)
