"""Activations, residual sums, sparsity, gradients and cost against direct computations."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from sfumato import models
from sfumato.analysis import (
    LayerGradient,
    activations_of,
    cost_of,
    gradient_norms,
    l0_eps,
    sparsity_of,
)
from sfumato.analysis.activation_statistics import first_activation, layers
from sfumato.analysis.sparsity import mean_gradient
from sfumato.errors import UserError
from sfumato.privacy import (
    AdaptiveQuantile,
    Flat,
    GroupWise,
    PerExample,
    Unclipped,
    one_at_a_time,
)


def images(n: int = 9, channels: int = 1, size: int = 16, classes: int = 3) -> tuple:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, channels, size, size, generator=g)
    return x, torch.randint(0, classes, (n,), generator=g)


def scaled(**options: object) -> nn.Module:
    torch.manual_seed(1)
    return models.create(
        "scale-resnet9", classes=3, channels=1, size=16, layout=(4, 8, 8), groups=2, **options
    )


def test_moments_histogram_and_norm_are_numpys() -> None:
    model, (x, _) = models.create("tanh-cnn", classes=3, channels=1, size=16, filters=4), images()
    found = activations_of(model, x, batch=4, bins=20)
    assert [d.name for d in found.layers] == ["activation1", "activation2"]
    assert not found.residuals
    with torch.no_grad():
        values = torch.tanh(model.conv1(x)).double().numpy()
    first = first_activation(found)
    assert first is not None and first.name == "activation1" and first.count == values.size
    assert first.mean == pytest.approx(values.mean(), rel=1e-5)
    assert first.std == pytest.approx(values.std(), rel=1e-5)
    skewness = ((values - values.mean()) ** 3).mean() / values.std() ** 3
    assert first.skewness == pytest.approx(skewness, rel=1e-4, abs=1e-5)
    norms = np.sqrt((values.reshape(9, -1) ** 2).sum(1))
    assert first.norm == pytest.approx(norms.mean(), rel=1e-6)
    assert first.norm_std == pytest.approx(norms.std(), rel=1e-4)
    assert first.counts.sum() == values.size, "tanh never leaves five standard deviations"
    np.testing.assert_array_equal(first.counts, np.histogram(values, first.edges)[0])


def test_named_paths_of_scale_norm_are_those_of_the_block() -> None:
    model, (x, _) = scaled(), images()
    model.train()
    found = activations_of(model, x, batch=5)
    assert model.training
    assert list(found.residuals) == ["res1", "res2"]
    with torch.no_grad():
        skip = model.conv2(model.conv1(x))
        deep = model.res1.body(skip)
        expected = {"V_R": skip, "V_F": deep, "V_A": skip + deep}
        expected["V_A^S"] = model.res1.after(expected["V_A"])
    assert list(found.residuals["res1"]) == list(expected)
    for path, values in expected.items():
        d = found.residuals["res1"][path]
        assert d.mean == pytest.approx(float(values.mean()), abs=1e-5), path
        assert d.std == pytest.approx(float(values.std(correction=0)), rel=1e-4), path
    after = found.residuals["res1"]["V_A^S"]
    assert after.mean == pytest.approx(0, abs=1e-4) and after.std == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "options", "blocks", "paths"),
    [
        ("resnet9", {"layout": (2, 4, 4), "groups": 2}, 2, 3),
        ("wrn-10-1", {}, 3, 3),
        ("wrn-10-1", {"norm_order": "norm-activation"}, 3, 3),
        ("scale-wrn-10-1", {"norm_order": "norm-activation"}, 3, 4),
        ("resnet20", {"blocks": 1, "filters": 4}, 3, 3),
        ("smoothnet", {"width": 1, "depth": 3, "links": "residual"}, 6, 3),
        ("smoothnet", {"width": 1, "depth": 2}, 0, 0),
        ("eq-resnet9-c4", {"layout": (2, 2, 4)}, 2, 4),
    ],
)
def test_residual_blocks_of_the_zoo_are_found(
    name: str, options: dict, blocks: int, paths: int
) -> None:
    model = models.create(name, classes=3, channels=1, size=16, **options)
    found = activations_of(model, images(2)[0]).residuals
    assert len(found) == blocks
    assert all(len(block) == paths for block in found.values())


class Functional(nn.Module):
    """Nothing but convolutions as modules, an in-place sum, and a sum that is no skip."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1)
        self.shift = nn.Parameter(torch.ones(1, 2, 16, 16))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.a(x)) + self.shift
        y = F.relu(self.b(x), inplace=True)
        y += x
        return y.mean((2, 3))


def test_a_model_of_functions_is_watched_all_the_same() -> None:
    model, (x, _) = Functional(), images(3)
    assert layers(model) == {"a": "convolution", "b": "convolution"}
    found = activations_of(model, x)
    assert [d.name for d in found.layers] == ["a", "b"]
    assert list(found.residuals) == ["(whole model)"]
    with torch.no_grad():
        skip = F.relu(model.a(x)) + model.shift
    paths = found.residuals["(whole model)"]
    assert paths["V_R"].mean == pytest.approx(float(skip.mean()), rel=1e-5)
    assert paths["V_A"].mean == pytest.approx(paths["V_R"].mean + paths["V_F"].mean, rel=1e-5)


def test_l0_eps_in_closed_form() -> None:
    t = torch.tensor([0.0, 1e-4, -1e-3, 0.5, float("nan")])
    assert l0_eps(t, eps=0) == 0.2
    assert l0_eps(t, eps=1e-4) == 0.4
    assert l0_eps([t, torch.zeros(5)], eps=2e-3) == 0.8
    uniform = torch.linspace(-1, 1, 20_001, dtype=torch.float64)
    assert l0_eps(uniform, eps=0.25) == pytest.approx(0.25, abs=1e-4)
    normal = torch.randn(200_000, generator=torch.Generator().manual_seed(0)) * 0.02
    inside = math.erf(0.01 / 0.02 / math.sqrt(2))
    assert l0_eps(normal, eps=0.01) == pytest.approx(inside, abs=0.005)
    with pytest.raises(UserError, match="at least 0"):
        l0_eps(t, eps=-1)
    with pytest.raises(UserError, match="no entries"):
        l0_eps([], eps=1)


def test_sparsity_of_parameters_and_gradient() -> None:
    model, (x, y) = scaled(), images()
    model.head.weight.requires_grad_(False)
    found = sparsity_of(model, x, y, thresholds=(1e-2, 1e-4), batch=4)
    trained = [p for p in model.parameters() if p.requires_grad]
    flat = torch.cat([p.detach().reshape(-1) for p in trained]).numpy()
    assert found.size == flat.size
    assert found.parameters[0] == pytest.approx((np.abs(flat) <= 1e-2).mean())
    model.eval()
    slopes = torch.autograd.grad(F.cross_entropy(model(x), y), trained)
    mine = mean_gradient(model, x, y, batch=4)
    for slope, own in zip(slopes, mine.values(), strict=True):
        torch.testing.assert_close(own, slope, rtol=1e-3, atol=1e-6)
    flat = torch.cat([s.reshape(-1) for s in slopes]).numpy()
    assert found.gradients[0] == pytest.approx((np.abs(flat) <= 1e-2).mean(), abs=1e-3)
    assert sum(size for size, _, _ in found.by_tensor.values()) == found.size


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


def test_cost_by_hand() -> None:
    """conv 3x3 1->4 at 8x8: 64*4*9; grouped 4->4 stride 2 at 4x4: 16*4*(2*9); linear 64->5: 320."""
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4),
        nn.Conv2d(4, 4, 3, padding=1, stride=2, groups=2, bias=False), nn.Flatten(),
        nn.Linear(64, 5),
    )  # fmt: skip
    found = cost_of(model, (1, 8, 8))
    macs = [layer.macs for layer in found.layers]
    assert macs == [2304, 0, 1152, 0, 320]
    assert [layer.parameters for layer in found.layers] == [40, 8, 72, 0, 325]
    assert (found.macs, found.parameters) == (3776, 445)
    assert (found.elsewhere, found.once) == (0, 0)


def test_cost_of_published_networks_and_of_what_is_not_a_layer() -> None:
    found = cost_of(models.create("papernot-1", classes=10, channels=1, size=28), (1, 28, 28))
    by_hand = 14 * 14 * 16 * 64 + 5 * 5 * 32 * 16 * 16 + 512 * 32 + 32 * 10
    assert (found.parameters, found.macs) == (26_010, by_hand)
    steerable = models.create("eq-resnet9-c4", classes=3, channels=1, size=16, layout=(2, 2, 4))
    own = cost_of(steerable, (1, 16, 16))
    assert own.once > 0 and own.elsewhere == 0, "filters are made once per batch"
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        steerable.eval()(torch.zeros(5, 1, 16, 16))
    assert counter.get_total_flops() // 2 == 5 * own.macs + own.once
