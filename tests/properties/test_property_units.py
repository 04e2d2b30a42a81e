"""Units of any size, limits, views, splits and rules: the same update as one unit at a time."""

from __future__ import annotations

import math

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_property_methods import CLASSES, SIZE, family, rules
from torch import Tensor, nn

from sfumato.privacy import (
    ClippingRule,
    GaussianNoise,
    PoissonSampler,
    PrivateGradients,
    Randomness,
)
from sfumato.privacy.units.image_units import Units

BATCH = 4.0


def one_unit_at_a_time(
    network: nn.Module, rule: ClippingRule, x: Tensor, y: Tensor, units: Tensor, views: int
) -> tuple[list[Tensor], float]:
    """The clipped sum, and the largest norm that a unit adds, through autograd alone."""
    parameters = [p for p in network.parameters() if p.requires_grad]
    names = [n for n, p in network.named_parameters() if p.requires_grad]
    rule = rule.bind(names, [p.shape for p in parameters])
    total = [torch.zeros_like(p, dtype=torch.float64) for p in parameters]
    largest = 0.0
    for unit in units.unique().tolist():
        own = (units == unit).nonzero().flatten().tolist()
        mean = [torch.zeros_like(p, dtype=torch.float64) for p in parameters]
        for i in own:
            rows, label = x[i * views : (i + 1) * views], y[i : i + 1].repeat(views)
            loss = nn.functional.cross_entropy(network(rows), label)
            for part, grad in zip(mean, torch.autograd.grad(loss, parameters), strict=True):
                part += grad.double() / len(own)
        squared = torch.stack([part.square().sum() for part in mean]).unsqueeze(0)
        scales = rule.weights(squared)[0]
        scales = scales.expand(len(mean)) if len(scales) == 1 else scales
        added = [part * scale for part, scale in zip(mean, scales, strict=True)]
        largest = max(largest, math.sqrt(sum(float(part.square().sum()) for part in added)))
        total = [a + b for a, b in zip(total, added, strict=True)]
    return total, largest


@settings(
    max_examples=6, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
@given(
    name=st.sampled_from(["tanh-cnn", "papernot-1", "resnet20"]),
    sizes=st.lists(st.one_of(st.integers(1, 4), st.integers(1, 50)), min_size=1, max_size=4),
    per_unit=st.one_of(st.integers(1, 6), st.integers(1, 50)),
    images=st.integers(1, 12),
    views=st.integers(1, 3),
    at_once=st.integers(1, 80),
    rule=rules,
    seed=st.integers(0, 1000),
)
def test_any_units_add_their_clipped_means(
    name: str,
    sizes: list[int],
    per_unit: int,
    images: int,
    views: int,
    at_once: int,
    rule: ClippingRule,
    seed: int,
) -> None:
    network, generator = family(name), torch.Generator().manual_seed(seed)
    every = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    stream = Randomness.from_seed(seed).stream(1, "images")
    drawn, there = Units(every).images(
        torch.arange(len(sizes)), most=per_unit, slots=per_unit, stream=stream
    )
    taken = drawn[there]
    assert len(taken.unique()) == len(taken)
    units = every[taken]
    assert torch.bincount(units).tolist() == [min(size, per_unit) for size in sizes]
    x = torch.randn(len(units) * views, 1, SIZE, SIZE, generator=generator)
    y = torch.randint(CLASSES, (len(units),), generator=generator)
    private = PrivateGradients(
        network, sampler=PoissonSampler(9, BATCH), clipping=rule, noise=GaussianNoise(0.0),
        views=views, images=images, check=False,
    )  # fmt: skip
    for a in range(0, len(y), at_once):
        part = slice(a, a + at_once)
        private.accumulate(x[a * views : (a + at_once) * views], y[part], units=units[part])
    statistics = private.release()
    wanted, largest = one_unit_at_a_time(network, rule, x, y, units, views)
    assert statistics.examples == len(sizes)
    assert largest <= rule.sensitivity * (1 + 1e-9)
    for p, w in zip([p for p in network.parameters() if p.requires_grad], wanted, strict=True):
        assert p.grad is not None
        scale = max(float(w.abs().max()) / BATCH, rule.sensitivity * 1e-3)
        assert float((p.grad.double() - w / BATCH).abs().max()) <= 2e-4 * scale
