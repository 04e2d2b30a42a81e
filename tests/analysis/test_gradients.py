"""Norms, signal and noise of gradients against one example at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from random_images import images
from torch import Tensor, nn

from sfumato import models
from sfumato.analysis.gradients import LayerGradient, gradient_norms
from sfumato.errors import UserError
from sfumato.privacy import AdaptiveQuantile, Flat, GroupWise, PerExample, Unclipped, one_at_a_time


@pytest.mark.parametrize("rule", [Flat(0.5), GroupWise(0.5), Unclipped()], ids=str)
def test_gradient_norms_are_those_of_one_example_at_a_time(rule: object) -> None:
    torch.manual_seed(0)
    model = models.create("tanh-cnn", classes=3, channels=1, size=16, filters=2)
    x, y = images(7)
    found = gradient_norms(
        model, x, y, clipping=rule, noise_multiplier=1.5, expected_batch=20, batch=3
    )  # type: ignore[arg-type]
    loop = one_at_a_time(model, x, y)
    squared = loop.squared_norms()
    bound = rule.bind(loop.names, [p.shape for p in model.parameters()])  # type: ignore[attr-defined]
    weights = bound.weights(squared)
    assert found.examples == 7
    assert found.clipped == pytest.approx(float((weights < 1).any(1).double().mean()))
    means = [s / 7 for s in loop.weighted_sum(weights)]
    head = found.layers[-1]
    assert head.name == "head" and head.size == sum(p.numel() for p in model.head.parameters())
    expected = math.sqrt(sum(float(m.square().sum()) for m in means[-2:]))
    assert head.measured == pytest.approx(expected, rel=1e-4)
    norms = squared[:, -2:].sum(1).sqrt()
    assert head.norm == pytest.approx(float(norms.mean()), rel=1e-4)
    if isinstance(rule, Unclipped):
        assert found.clipped == 0
        return
    assert head.noise == pytest.approx(1.5 * 0.5 / 20 * math.sqrt(head.size), rel=1e-6)
    assert head.snr == pytest.approx(head.signal / head.noise)
    assert found.whole.noise == pytest.approx(math.hypot(*(w.noise for w in found.layers)))


def test_signal_has_no_bias() -> None:
    """Averaged over many small samples, the squared signal is that of all images together."""
    torch.manual_seed(0)
    model = models.create("tanh-cnn", classes=3, channels=1, size=8, filters=2)
    x, _ = images(240, size=8)
    y = torch.zeros(240, dtype=torch.long)
    engine = PerExample(model, check=False)

    def measured(x: Tensor, y: Tensor) -> LayerGradient:
        rule = Flat(1.0)
        return gradient_norms(model, x, y, clipping=rule, expected_batch=1, engine=engine).whole

    whole = measured(x, y)
    parts = [measured(x[k : k + 3], y[k : k + 3]) for k in range(0, 240, 3)]
    assert all(part.signal > 0 for part in parts), "none was cut off at zero"
    squared = np.mean([part.signal**2 for part in parts])
    assert squared == pytest.approx(whole.signal**2, rel=0.03)
    assert np.mean([part.measured**2 for part in parts]) > 1.1 * whole.signal**2


def test_adaptive_noise_and_refusals() -> None:
    model = models.create("tanh-cnn", classes=3, channels=1, size=16, filters=2)
    x, y = images(4)
    rule = AdaptiveQuantile(1.0, 5.0)
    found = gradient_norms(model, x, y, clipping=rule, noise_multiplier=1.0, expected_batch=10)
    more = 1 / math.sqrt(1 - 1 / 10**2)
    assert found.whole.noise == pytest.approx(more / 10 * math.sqrt(found.whole.size))
    with pytest.raises(UserError, match="at least 2 images"):
        gradient_norms(model, x[:1], y[:1], clipping=rule, expected_batch=10)
    batch_norm = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(256, 3))
    with pytest.raises(UserError, match="BatchNorm"):
        gradient_norms(batch_norm, x, y, clipping=rule, expected_batch=10)
