"""Canaries in the mechanism: what they add, where, and how they are seen."""

from __future__ import annotations

import math

import pytest
import torch
from canary_loop import DELTA, IMAGES, train
from torch import nn

from sfumato.errors import UserError
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
    Randomness,
    Step,
    Unclipped,
)
from sfumato.privacy.audit.canaries import Canaries
from sfumato.privacy.audit.result import AuditResult, judge

RULES: list[ClippingRule] = [
    Flat(0.3), Normalised(0.3), Automatic(), GroupWise(2.0), GroupWise(2.0, "dimension"),
    AdaptiveQuantile(0.3, 10.0), AdaptiveQuantile(0.3, 10.0, by_layer=True),
]  # fmt: skip


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 40))


def placed(
    rule: ClippingRule, *, count: int = 50, noise: float = 0.0
) -> tuple[PrivateGradients, Canaries]:
    private = PrivateGradients(
        network(), sampler=PoissonSampler(IMAGES + count, 10), clipping=rule,
        noise=GaussianNoise(noise), check=False, randomness=Randomness.from_seed(0),
    )  # fmt: skip
    canaries = Canaries.place(
        private.per_example.trainable, count=count, examples=IMAGES, clipping=private.clipping,
        randomness=Randomness.from_seed(1),
    )  # fmt: skip
    return private, canaries


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_canary_adds_the_sensitivity_in_its_own_coordinates(rule: ClippingRule) -> None:
    private, canaries = placed(rule)
    own = {}
    for number in canaries.included.nonzero().squeeze(1)[:4].tolist():
        sensitivity = private.clipping.sensitivity  # Of this step: a rule may adapt.
        private.accumulate_canaries(canaries, torch.tensor([3, IMAGES + number]))
        private.release()
        sums = {n: 10 * p.grad for n, p in private.per_example.trainable.items()}
        norm = math.sqrt(sum(float(s.double().square().sum()) for s in sums.values()))
        assert norm == pytest.approx(canaries.reach * sensitivity, rel=1e-4)
        assert norm <= sensitivity * (1 + 1e-6)
        # Weights of coordinates are those of the first step.
        assert canaries.read(sums)[number] == pytest.approx(norm, rel=0.1)
        own[number] = {(n, int(k)) for n, s in sums.items() for k in s.flatten().nonzero()}
    assert sum(map(len, own.values())) == len(set().union(*own.values()))


@pytest.mark.parametrize("rule", [rule for rule in RULES if "by_layer=True" not in str(rule)])
def test_canaries_reach_the_sensitivity_of_every_rule(rule: ClippingRule) -> None:
    assert placed(rule)[1].reach == pytest.approx(1, rel=1e-4)


def test_a_canary_that_is_out_adds_nothing_but_is_counted() -> None:
    private, canaries = placed(Flat(1.0))
    out = int((~canaries.included).nonzero()[0, 0])
    private.accumulate_canaries(canaries, torch.tensor([IMAGES + out]))
    private.release()
    assert all(not p.grad.any() for p in private.per_example.trainable.values())
    drawn = int(canaries.included.nonzero()[0, 0])
    private.accumulate_canaries(canaries, torch.tensor([IMAGES + drawn]))
    with pytest.raises(UserError, match="accumulated twice"):
        private.accumulate_canaries(canaries, torch.tensor([IMAGES + drawn]))


def test_canaries_and_examples_add_up_in_any_split() -> None:
    x, y = torch.randn(6, 20), torch.randint(40, (6,))
    draw = torch.tensor([0, 1, 2, 3, 4, 5, *range(IMAGES, IMAGES + 20)])
    found = []
    for parts in ([draw], [draw[:9], draw[9:]], [draw[10:], draw[:10]]):
        private, canaries = placed(Flat(0.4), noise=1.0)
        for part in parts:
            images = part[part < IMAGES]
            private.accumulate(x[images], y[images])
            private.accumulate_canaries(canaries, part)
        private.release()
        found.append([p.grad.clone() for p in private.per_example.trainable.values()])
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-6, atol=1e-9)


def test_coins_and_places_follow_from_the_key_and_are_distinct() -> None:
    one, same = placed(Flat(1.0), count=1500)[1], placed(Flat(1.0), count=1500)[1]
    assert torch.equal(one.included, same.included)
    assert all(torch.equal(one.places[name], same.places[name]) for name in one.places)
    assert set(one.places) == {"0.weight", "2.weight"}  # 600 and 1200 coordinates.
    taken = torch.cat([p[p >= 0] + 10_000 * k for k, p in enumerate(one.places.values())])
    assert len(taken) == len(taken.unique()) == 1500
    assert 0.4 < one.included.float().mean() < 0.6
    assert set(placed(Flat(1.0), count=50)[1].places) == {"2.weight"}


def test_the_privacy_loss_is_the_logarithm_of_the_ratio_of_densities() -> None:
    _, canaries = placed(Flat(0.5))
    gradients = {name: torch.randn(shape) for name, shape in canaries.shapes.items()}
    step = Step(0.2, 1.3)
    others = torch.randn(50, dtype=torch.float64)
    found = canaries.losses(gradients, others, step=step, clipping=Flat(0.5), batch=10.0)
    x = (canaries.read(gradients) * 10 - others) / 0.5
    normal = torch.distributions.Normal
    drawn, missed = (normal(shift, 1.3).log_prob(x).exp() for shift in (1.0, 0.0))
    torch.testing.assert_close(found, (0.8 + 0.2 * drawn / missed).log(), rtol=1e-4, atol=1e-4)


def test_bad_places_are_refused() -> None:
    parameters = dict(network().named_parameters())
    given = {"examples": IMAGES, "randomness": Randomness.from_seed(0)}
    with pytest.raises(UserError, match="1870 trained parameters"):
        Canaries.place(parameters, count=2000, clipping=Flat(1.0), **given)
    with pytest.raises(UserError, match="needs a clipping rule"):
        Canaries.place(parameters, count=20, clipping=Unclipped(), **given)
    private, canaries = placed(Flat(1.0))
    private.per_example.model[0].weight.requires_grad_(False)
    with pytest.raises(UserError, match="other parameters"):
        private.accumulate_canaries(canaries, torch.tensor([IMAGES]))


@pytest.mark.parametrize("rule", [GroupWise(1.0), AdaptiveQuantile(0.3, 10.0)], ids=str)
def test_honest_loops_with_other_rules_are_not_accused(rule: ClippingRule) -> None:
    trained = train(seed=5, rule=rule, count=300, steps=60, rate=0.1)
    result = trained.judged()
    assert 0 < result.epsilon < result.claim


def test_a_result_survives_json_and_refuses_other_content() -> None:
    result = train(seed=5, count=60, steps=5, rate=0.2).judged()
    assert AuditResult.from_dict(result.to_dict()) == result
    for wrong in ({}, [], result.to_dict() | {"epsilon": "3"}, result.to_dict() | {"more": 1}):
        with pytest.raises(UserError, match="damaged"):
            AuditResult.from_dict(wrong)


def test_nothing_to_judge_is_refused() -> None:
    steps = [Step(0.1, 1.0, 5)]
    with pytest.raises(UserError, match="at least 10 canaries"):
        judge([1.0] * 5, [True] * 5, steps, delta=DELTA)
    with pytest.raises(UserError, match="no claim"):
        judge([1.0] * 50, [True] * 50, [], delta=DELTA)
    with pytest.raises(UserError, match="no claim"):
        judge([1.0] * 50, [True] * 50, [Step(0.1, 0.0)], delta=DELTA)


def test_the_sums_of_other_examples_are_those_accumulated_before() -> None:
    private, canaries = placed(Flat(0.4))
    draw = torch.arange(IMAGES, IMAGES + 50)
    assert not private.accumulate_canaries(canaries, draw).any()
    private.discard()
    private.accumulate(torch.randn(6, 20), torch.randint(40, (6,)))
    others = private.accumulate_canaries(canaries, draw)
    private.release()
    sums = {n: 10 * p.grad for n, p in private.per_example.trainable.items()}
    left = canaries.read(sums) - others
    torch.testing.assert_close(left, 0.4 * canaries.included.double(), rtol=1e-4, atol=1e-6)
