"""Any clipping rule, views, physical batches and model family: the same update as the slow way."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sfumato import models
from sfumato.data import Augment, Views
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
    one_at_a_time,
    physical_batches,
)

SIZE, CLASSES, EXAMPLES, BATCH = 16, 3, 5, 4.0

FAMILIES: dict[str, dict[str, object]] = {
    "tanh-cnn": {"filters": 2},
    "papernot-1": {"filters": 2, "units": 4},
    "resnet20": {"filters": 4, "blocks": 1, "group_size": 2},
    "smoothnet": {"width": 2, "depth": 1},
}
_MADE: dict[str, nn.Module] = {}


def family(name: str) -> nn.Module:
    if name not in _MADE:
        torch.manual_seed(0)
        _MADE[name] = models.create(name, classes=CLASSES, channels=1, size=SIZE, **FAMILIES[name])
    return _MADE[name]


clips = st.floats(1e-3, 10)
splits = st.sampled_from(["uniform", "dimension"])
rules: st.SearchStrategy[ClippingRule] = st.one_of(
    st.builds(Flat, clips),
    st.builds(Normalised, clips),
    st.builds(Automatic, st.floats(1e-6, 1)),
    st.builds(GroupWise, clips, splits),
    st.builds(GroupWise, clips, splits, st.just(("*weight*",))),
    st.builds(
        AdaptiveQuantile, clips, count_noise=st.floats(1, 50), by_layer=st.booleans(), split=splits
    ),
)


def slowly(
    network: nn.Module, rule: ClippingRule, x: Tensor, y: Tensor, views: int
) -> tuple[list[Tensor], float]:
    """The update one example at a time, and the largest norm of what an example added."""
    named = {n: p for n, p in network.named_parameters() if p.requires_grad}
    bound = rule.bind(list(named), [p.shape for p in named.values()])
    total = [torch.zeros_like(p, dtype=torch.float64) for p in named.values()]
    largest = 0.0
    for i in range(len(y)):
        part = slice(i * views, (i + 1) * views)
        alone = one_at_a_time(network, x[part], y[i : i + 1], views=views)
        grads = [
            torch.zeros_like(p) if t is None else t[0]
            for t, p in zip(alone.tensors, named.values(), strict=True)
        ]
        squared = torch.stack([g.double().square().sum() for g in grads]).unsqueeze(0)
        added = [
            float(w) * g.double() for w, g in zip(bound.weights(squared)[0], grads, strict=True)
        ]
        largest = max(largest, float(torch.stack([a.square().sum() for a in added]).sum().sqrt()))
        total = [t + a for t, a in zip(total, added, strict=True)]
    assert largest <= bound.sensitivity
    return [t / BATCH for t in total], bound.sensitivity


@settings(max_examples=5, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    name=st.sampled_from(sorted(FAMILIES)),
    rule=rules,
    count=st.integers(1, 3),
    clean=st.booleans(),
    mixtures=st.integers(0, 2),
    size=st.integers(1, 7),
    seed=st.integers(0, 3),
)
def test_the_update_is_that_of_one_example_at_a_time(
    name: str, rule: ClippingRule, count: int, clean: bool, mixtures: int, size: int, seed: int
) -> None:
    network = family(name)
    views = Views(
        augment=Augment(crop=2, flip=True),
        count=count,
        clean=clean and count > 1,
        mixtures=mixtures if count > 1 else 0,
    )
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(EXAMPLES, 1, SIZE, SIZE, generator=generator)
    y = torch.randint(CLASSES, (EXAMPLES,), generator=generator)
    parameters = views.draw(EXAMPLES, generator)
    x = views.apply(images, parameters)
    private = PrivateGradients(
        network,
        sampler=PoissonSampler(20, BATCH),
        clipping=rule,
        noise=GaussianNoise(0.0),
        views=views.total,
        check=False,
    )
    for part in physical_batches(torch.arange(EXAMPLES), size):
        rows = torch.arange(part.start, part.start + size).clamp(max=EXAMPLES - 1)
        piece = views.apply(images[part.indices], parameters.take(rows))
        private.accumulate(piece, y[part.indices], part.weights)
    statistics = private.release()
    assert statistics.examples == EXAMPLES
    expected, sensitivity = slowly(network, rule, x, y, views.total)
    for parameter, slow in zip(network.parameters(), expected, strict=True):
        assert parameter.grad is not None
        close = torch.allclose(parameter.grad.double(), slow, rtol=1e-3, atol=1e-4 * sensitivity)
        assert close
