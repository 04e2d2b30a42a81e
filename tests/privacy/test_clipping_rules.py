"""Each clipping rule: its weights by hand, its sensitivity on realised norms, its mistakes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from sfumato.errors import UserError
from sfumato.nn.standardise import standardised
from sfumato.privacy import (
    AdaptiveQuantile,
    Automatic,
    ClippingRule,
    Flat,
    GaussianNoise,
    GroupWise,
    Normalised,
    PoissonSampler,
    PrivateGradients,
    Unclipped,
    one_at_a_time,
)
from sfumato.privacy.clipping import MARGIN
from sfumato.privacy.numerics.parameter_groups import group_parameters, layer_of

RULES: dict[str, ClippingRule] = {
    "flat": Flat(0.7),
    "normalised": Normalised(0.7),
    "automatic": Automatic(0.01),
    "automatic-tiny": Automatic(1e-9),
    "per-layer": GroupWise(0.7),
    "per-layer-dimension": GroupWise(0.7, split="dimension"),
    "groups": GroupWise(0.7, patterns=("0.*", "3.*")),
    "given": GroupWise(0.7, given=(1.0, 3.0)),
    "adaptive": AdaptiveQuantile(0.7, count_noise=5.0),
    "adaptive-per-layer": AdaptiveQuantile(0.7, count_noise=5.0, by_layer=True),
}
UNIFORM = {"flat", "normalised", "automatic", "automatic-tiny", "adaptive"}
SCALES = (0.0, 1e-30, 1e-6, 0.1, 1.0, 0.7, 30.0, 1e8, 1e15)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(48, 4))


def bound(rule: ClippingRule, network: nn.Module | None = None) -> ClippingRule:
    named = dict((network or model()).named_parameters())
    return rule.bind(list(named), [p.shape for p in named.values()])


@pytest.mark.parametrize("name", RULES)
def test_what_one_example_adds_is_within_the_sensitivity(name: str) -> None:
    rule = bound(RULES[name])
    shapes = [p.shape for p in model().parameters()]
    generator = torch.Generator().manual_seed(1)
    for scale in SCALES:
        parts = [torch.randn(s, generator=generator) * scale for s in shapes]
        squared = torch.stack([p.double().square().sum() for p in parts]).unsqueeze(0)
        weights = rule.weights(squared)
        assert weights.shape == squared.shape
        # The weight is cast to the gradient's own precision before it multiplies, as in the sum.
        added = [w.float() * p for w, p in zip(weights[0], parts, strict=True)]
        norm = math.sqrt(sum(float(a.double().square().sum()) for a in added))
        assert norm <= rule.sensitivity
        if scale >= 30 and name not in ("given",):
            assert norm > 0.99 * rule.sensitivity


@pytest.mark.parametrize("name", RULES)
def test_whole_examples_are_dropped_if_any_norm_is_not_finite(name: str) -> None:
    rule = bound(RULES[name])
    for bad in (math.inf, math.nan):
        squared = torch.ones(3, 4, dtype=torch.float64)
        squared[1, 2] = bad
        weights = rule.weights(squared)
        assert not weights[1].any()
        assert (weights[[0, 2]] > 0).all()
        assert torch.isfinite(weights).all()


@pytest.mark.parametrize("name", RULES)
def test_uniform_rules_have_one_weight_per_example(name: str) -> None:
    rule = bound(RULES[name])
    assert rule.uniform == (name in UNIFORM)
    squared = torch.rand(20, 4, dtype=torch.float64) * 4
    weights = rule.weights(squared)
    assert (weights == weights[:, :1]).all() == (name in UNIFORM)
    assert rule.weights(squared[:0]).shape == (0, 4)


def test_weights_equal_those_computed_by_hand() -> None:
    squared = torch.tensor([[9.0, 16.0, 0.0, 0.0], [0.01, 0.0, 0.0, 0.03]], dtype=torch.float64)
    near = {"rel": 2e-5}
    assert Flat(2.0).weights(squared)[:, 0].tolist() == pytest.approx([0.4, 1.0], **near)
    assert Normalised(2.0).weights(squared)[:, 0].tolist() == pytest.approx([0.2, 0.5], **near)
    assert Automatic(1.0).weights(squared)[:, 0].tolist() == pytest.approx([1 / 6, 1 / 1.2], **near)
    layers = bound(GroupWise(math.sqrt(2.0))).weights(squared)
    assert layers[0].tolist() == pytest.approx([0.2, 0.2, 1.0, 1.0], **near)
    assert layers[1].tolist() == [1.0, 1.0, 1.0, 1.0]


def test_normalised_updates_of_clipped_examples_do_not_depend_on_the_clip() -> None:
    squared = torch.tensor([[4.0, 5.0]], dtype=torch.float64)
    assert torch.equal(Normalised(0.1).weights(squared), Normalised(2.9).weights(squared))


@pytest.mark.parametrize("name", RULES)
def test_the_update_is_the_sum_one_example_at_a_time(name: str) -> None:
    network, rule = model(), RULES[name]
    x = torch.randn(7, 2, 6, 6, generator=torch.Generator().manual_seed(2)) * 3
    y = torch.arange(7) % 4
    x[3] = math.nan
    private = PrivateGradients(
        network, sampler=PoissonSampler(50, 5), clipping=rule, noise=GaussianNoise(0.0)
    )
    private.accumulate(x, y)
    statistics = private.release()
    assert statistics.not_finite == 1
    total: list[Tensor] = [torch.zeros_like(p) for p in network.parameters()]
    shortened = 0
    for i in range(7):
        alone = one_at_a_time(network, x[i : i + 1], y[i : i + 1])
        parts = [t[0] for t in alone.tensors if t is not None]
        if not all(bool(p.isfinite().all()) for p in parts):
            continue
        norms = [float(p.double().norm()) for p in parts]
        factors = by_hand(name, norms)
        shortened += any(f < 1 for f in factors) if "norm" not in name else math.hypot(*norms) > 0.7
        total = [t + f * p for t, f, p in zip(total, factors, parts, strict=True)]
    for parameter, expected in zip(network.parameters(), total, strict=True):
        assert parameter.grad is not None
        assert torch.allclose(parameter.grad, expected / 5, rtol=1e-4, atol=1e-6)
    assert statistics.clipped == shortened


def by_hand(name: str, norms: list[float]) -> list[float]:
    """The factors of the four parameters: weight and bias of two layers of 57 and 196 numbers."""
    whole = math.hypot(*norms)
    first, second = math.hypot(*norms[:2]), math.hypot(*norms[2:])
    share = {"per-layer-dimension": 57 / 253, "given": 0.1}.get(name, 0.5)
    c1, c2 = 0.7 * math.sqrt(share), 0.7 * math.sqrt(1 - share)
    if name.startswith("automatic"):
        return [1 / (whole + (0.01 if name == "automatic" else 1e-9))] * 4
    if name == "normalised":
        return [min(1, 0.7 / whole) / 0.7] * 4
    if name in ("flat", "adaptive"):
        return [min(1, 0.7 / whole)] * 4
    return [min(1, c1 / first)] * 2 + [min(1, c2 / second)] * 2


def test_groups_are_layers_or_patterns() -> None:
    layer = standardised(nn.Conv2d(2, 2, 3), form="plain", gain=True)
    network = nn.Sequential(layer, nn.GroupNorm(1, 2), nn.Flatten(), nn.Linear(8, 2))
    names = [n for n, _ in network.named_parameters()]
    assert {layer_of(n) for n in names} == {"0", "1", "3"}
    by_layer = dict(zip(names, group_parameters(names), strict=True))
    assert len({g for n, g in by_layer.items() if n.startswith("0.")}) == 1
    assert len(set(by_layer.values())) == 3
    assert layer_of("scale") == ""
    groups = group_parameters(["a.w", "b.w", "a.b", "c.w"], ["b.*", "a.*"])
    assert groups == (1, 0, 1, 2)
    rule = GroupWise(2.0, patterns=("3.*",)).bind(names, [p.shape for p in network.parameters()])
    assert len(rule.limits) == 2
    assert math.hypot(*rule.limits) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Flat(0.0), "positive"),
        (lambda: Normalised(math.inf), "positive"),
        (lambda: Automatic(0.0), "gamma"),
        (lambda: GroupWise(1.0, split="uniforn"), "Did you mean 'uniform'"),
        (lambda: GroupWise(1.0, given=(1.0, -1.0)), "positive"),
        (lambda: bound(GroupWise(1.0, given=(1.0,))), "one for each"),
        (lambda: bound(GroupWise(1.0, patterns=("nothing.*",))), "No trainable parameter matches"),
    ],
)
def test_mistakes_are_named(make, words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UserError, match=words):
        make()


def test_the_rule_cannot_change_while_a_sum_is_under_way() -> None:
    network = model()
    private = PrivateGradients(
        network, sampler=PoissonSampler(50, 5), clipping=Flat(5.0), noise=GaussianNoise(1.0)
    )
    private.accumulate(torch.randn(2, 2, 6, 6), torch.tensor([0, 1]))
    private.clipping = Flat(0.1)
    with pytest.raises(RuntimeError, match="changed between"):
        private.release()
    with pytest.raises(RuntimeError, match="changed between"):
        private.accumulate(torch.randn(2, 2, 6, 6), torch.tensor([0, 1]))
    private.discard()
    private.release()
    private.clipping = GroupWise(1.0)
    private.accumulate(torch.randn(2, 2, 6, 6), torch.tensor([0, 1]))
    private.release()


def test_freezing_a_layer_binds_the_rule_anew() -> None:
    network = model()
    private = PrivateGradients(
        network, sampler=PoissonSampler(50, 5), clipping=GroupWise(1.0), noise=GaussianNoise(0.0)
    )
    assert isinstance(private.clipping, GroupWise)
    assert len(private.clipping.limits) == 2
    network[0].requires_grad_(False)
    private.accumulate(100 * torch.randn(1, 2, 6, 6), torch.tensor([0]))
    assert private.clipping.limits == (1.0,)
    private.release()


def test_without_privacy_nothing_is_clipped() -> None:
    assert Unclipped().sensitivity == math.inf
    assert Unclipped().weights(torch.tensor([[1e9, 4.0], [math.nan, 0.0]])).tolist() == [
        [1, 1],
        [0, 0],
    ]


def test_flat_clips_those_of_weight_below_one() -> None:
    edge = 2.0 * (1 - MARGIN)
    norms = torch.tensor([0.0, 1.0, edge * (1 - 1e-12), edge * (1 + 1e-12), 2.0, 9.0, math.inf])
    squared = norms.double().square().unsqueeze(1) * torch.tensor([[0.25, 0.75]])
    rule = Flat(2.0)
    assert rule.clipped(squared).tolist() == (rule.weights(squared) < 1).any(1).tolist()
