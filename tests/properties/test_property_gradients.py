"""Per-example gradients, clipped sums and realised norms against one example at a time.

Over layers and their settings, padding modes, memory formats, precisions, batch sizes from zero on,
views, and splits into physical batches.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from sfumato.nn.standardise import standardised
from sfumato.privacy import (
    Flat,
    GaussianNoise,
    Gradients,
    PerExample,
    PoissonSampler,
    PrivateGradients,
    one_at_a_time,
    physical_batches,
)
from sfumato.privacy.checks.agreement import errors

thorough = settings(
    max_examples=9, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")
CLASSES = 3
Made = tuple[nn.Module, tuple[int, ...]]


class Readout(nn.Module):
    """A fixed random projection to logits, so that nothing but the layer is trained."""

    def forward(self, x: Tensor) -> Tensor:
        flat = torch.tanh(x).flatten(1)
        generator = torch.Generator().manual_seed(flat.shape[1])
        weight = torch.randn(flat.shape[1], CLASSES, generator=generator, dtype=torch.float64)
        return flat @ weight.to(flat.dtype)


small = st.integers(1, 3)


@st.composite
def convolutions(draw: st.DrawFn, dims: int = 2) -> Made:
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    many = groups == 1 and dims == 2 and draw(st.booleans())
    inputs = 16 if many else groups * draw(small)
    outputs = groups * draw(small)
    kernel, dilation = (
        draw(st.tuples(*[st.integers(1, 4)] * dims)),
        draw(st.tuples(*[small] * dims)),
    )
    mode = draw(st.sampled_from(["zeros", "zeros", "circular", "reflect", "replicate"]))
    size = draw(st.tuples(*[st.integers(5, 9)] * dims))
    if draw(st.booleans()):
        stride, padding = (1,) * dims, draw(st.sampled_from(["same", "valid"]))
    else:
        stride, padding = (
            draw(st.tuples(*[small] * dims)),
            draw(st.tuples(*[st.integers(0, 3)] * dims)),
        )
    fits = (d * (k - 1) for k, d in zip(kernel, dilation, strict=True))
    assume(all(reach < s for reach, s in zip(fits, size, strict=True)))
    kind = nn.Conv2d if dims == 2 else nn.Conv1d
    layer = kind(
        inputs, outputs, kernel, stride, padding, dilation, groups, draw(st.booleans()), mode
    )
    return layer, (inputs, *size)


@st.composite
def transposed(draw: st.DrawFn) -> Made:
    groups = draw(st.sampled_from([1, 1, 2]))
    inputs, outputs = groups * draw(small), groups * draw(st.sampled_from([1, 2, 16]))
    kernel, stride = draw(st.tuples(small, small)), draw(st.tuples(small, small))
    dilation, padding = draw(st.tuples(small, small)), draw(st.tuples(*[st.integers(0, 2)] * 2))
    extra = tuple(
        draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True)
    )
    size = draw(st.tuples(st.integers(3, 5), st.integers(3, 5)))
    layer = nn.ConvTranspose2d(
        inputs, outputs, kernel, stride, padding, extra, groups, draw(st.booleans()), dilation
    )
    out = layer._output_padding(
        torch.zeros(1, inputs, *size), None, stride, padding, kernel, 2, dilation
    )
    sides = [
        (n - 1) * s - 2 * p + d * (k - 1) + e + 1
        for n, s, p, d, k, e in zip(size, stride, padding, dilation, kernel, out, strict=True)
    ]
    assume(min(sides) > 0)
    return layer, (inputs, *size)


@st.composite
def linears(draw: st.DrawFn) -> Made:
    inner = draw(st.lists(small, max_size=2))
    width = draw(st.integers(1, 5))
    return nn.Linear(width, draw(small), bias=draw(st.booleans())), (*inner, width)


@st.composite
def norms(draw: st.DrawFn) -> Made:
    shape = (4, *draw(st.lists(st.integers(2, 4), min_size=1, max_size=2)))
    trailing = list(shape[draw(st.integers(0, len(shape) - 1)) :])
    instance = {2: nn.InstanceNorm1d, 3: nn.InstanceNorm2d}[len(shape)]
    layer = draw(
        st.sampled_from(
            [
                nn.GroupNorm(2, 4),
                nn.GroupNorm(4, 4),
                nn.LayerNorm(trailing),
                nn.LayerNorm(trailing, bias=False),
                nn.RMSNorm(trailing, eps=1e-3),
                instance(4, affine=True),
            ]
        )
    )
    with torch.no_grad():
        for p in layer.parameters():
            p.add_(torch.rand_like(p))
    return layer, shape


@st.composite
def others(draw: st.DrawFn) -> Made:
    return draw(
        st.sampled_from(
            [
                (nn.Conv3d(2, 2, 2, padding=1), (2, 3, 3, 3)),
                (nn.ConvTranspose1d(2, 3, 3, stride=2), (2, 4)),
                (nn.PReLU(3), (3, 4, 4)),
                (nn.MultiheadAttention(4, 2, batch_first=True), (3, 4)),
            ]
        )
    )


@st.composite
def reparametrised(draw: st.DrawFn) -> Made:
    layer, shape = draw(st.one_of(convolutions(), transposed(), linears()))
    if isinstance(layer, nn.Conv2d) and layer.weight[0].numel() > 1 and draw(st.booleans()):
        return standardised(layer, form=draw(st.sampled_from(["de", "plain"]))), shape
    return parametrizations.weight_norm(layer), shape


LAYERS = {
    "convolution": (convolutions(), 50),
    "convolution in one dimension": (convolutions(dims=1), 20),
    "transposed convolution": (transposed(), 20),
    "linear": (linears(), 20),
    "norm": (norms(), 20),
    "by torch.func": (others(), 15),
    "reparametrised": (reparametrised(), 20),
}
any_layer = st.one_of(*(strategy for strategy, _ in LAYERS.values()))


class Case(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.readout = layer, Readout()

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.layer, nn.MultiheadAttention):
            return self.readout(self.layer(x, x, x)[0])
        return self.readout(self.layer(x))


@st.composite
def cases(
    draw: st.DrawFn, layers: st.SearchStrategy[Made] = any_layer
) -> tuple[nn.Module, Tensor, Tensor, int]:
    """A model, a batch that may be empty, and its number of views."""
    torch.manual_seed(draw(st.integers(0, 2**16)))
    layer, shape = draw(layers)
    model = Case(layer).to(draw(st.sampled_from([torch.float64, torch.float32])))
    dtype = next(model.parameters()).dtype
    views, examples = draw(st.integers(1, 3)), draw(st.sampled_from([0, 1, 2, 3, 5]))
    x = torch.randn(examples * views, *shape, dtype=dtype)
    if x.dim() == 4 and draw(st.booleans()):
        x = x.contiguous(memory_format=torch.channels_last)
        model = model.to(memory_format=torch.channels_last)
    try:
        model(torch.randn(1, *shape, dtype=dtype))
    except (RuntimeError, ValueError):  # such as reflecting more than there is
        assume(False)
    return model, x, torch.randint(CLASSES, (examples,)), views


def allowed(model: nn.Module) -> float:
    return 1e-9 if next(model.parameters()).dtype == torch.float64 else 2e-3


@pytest.mark.parametrize("kind", LAYERS)
def test_gradients_are_those_of_one_example_at_a_time(kind: str) -> None:
    layers, count = LAYERS[kind]

    @settings(thorough, max_examples=count)
    @given(cases(layers))
    def check(case) -> None:
        model, x, y, views = case
        engine = PerExample(model, views=views, check=False)
        ours = engine(x, y)
        reference = one_at_a_time(model, x, y, views=views)
        assert engine.method in (None, "operators"), engine.passed_over
        assert [None if t is None else t.shape for t in ours.tensors] == [
            t.shape for t in reference.tensors if t is not None
        ]
        assert max(errors(ours, reference).values()) <= allowed(model)

    check()


def mechanism(model: nn.Module, views: int, clip: float) -> PrivateGradients:
    return PrivateGradients(
        model,
        sampler=PoissonSampler(10, 1),
        clipping=Flat(clip),
        noise=GaussianNoise(0.0),
        views=views,
        check=False,
    )


@thorough
@given(cases(), st.integers(1, 6), st.floats(0.1, 3))
def test_clipped_sum_is_the_reference_s_however_it_is_split(case, size: int, factor: float) -> None:
    model, x, y, views = case
    reference = one_at_a_time(model, x, y, views=views)
    norms = reference.squared_norms().sum(1).sqrt()
    clip = factor * (float(norms.mean()) if len(y) else 1.0)
    assume(clip > 1e-12)
    private = mechanism(model, views, clip)
    rows = torch.arange(len(x)).view(len(y), views)
    for part in physical_batches(torch.arange(len(y)), size):
        private.accumulate(x[rows[part.indices].flatten()], y[part.indices], part.weights)
    assert private.release().examples == len(y)
    weights = (clip / norms).clamp(max=1)
    for parameter, tensor in zip(model.parameters(), reference.tensors, strict=True):
        assert parameter.grad is not None and tensor is not None
        wanted = torch.tensordot(weights.to(tensor.dtype), tensor, 1)
        error = float((parameter.grad - wanted).norm())
        assert error <= clip * len(y) * (3e-5 + allowed(model))
        parameter.grad = None


@thorough
@given(cases(), st.floats(-6, 6), st.floats(-3, 3))
def test_realised_norm_is_at_most_c(case, magnitude: float, size: float) -> None:
    model, x, y, views = case
    clip = 10**size
    private = mechanism(model, views, clip)
    inner = private.per_example.loss

    def scaled(out: Tensor, target: Tensor) -> Tensor:
        return 10**magnitude * inner(out, target)

    private.per_example.objective.loss = scaled
    for alone in torch.eye(len(y)):
        private.accumulate(x, y, alone)
        sums = [s.double().flatten() for s in (private._sum.totals or {}).values()]
        assert float(torch.cat(sums).norm()) <= clip
        private.discard()


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Gradients that are hard to add up: few or many, of very different sizes."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    length = draw(st.sampled_from([1, 3, 255, 256, 257, 1000, 70_001]))
    t = torch.randn(3, length, generator=generator, dtype=torch.float64)
    spread = draw(st.sampled_from([0.0, 1.0, 4.0]))
    t = t * 10 ** (spread * torch.randn(3, length, generator=generator, dtype=torch.float64))
    if draw(st.booleans()):
        t = torch.full_like(t, 0.1)
    if draw(st.booleans()):
        t[:, draw(st.integers(0, length - 1))] = 1e3
    t = t * 10.0 ** draw(st.integers(-6, 3))
    return t.to(draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float64])))


@settings(thorough, max_examples=60)
@given(tensors(), st.floats(-3, 3))
def test_realised_norm_of_hard_sums(tensor: Tensor, size: float) -> None:
    exact = tensor.double().norm(dim=1)
    assume(float(exact.max()) < 1e15)
    gradients = Gradients(("w",), (tensor.shape[1:],), [tensor], torch.zeros(3), None)
    for clip in (10**size, float(exact[0])):
        assume(0 < clip < float("inf"))
        weights = Flat(clip).weights(gradients.squared_norms())
        for j in range(3):
            only = torch.zeros_like(weights)
            only[j] = weights[j]
            norm = float(gradients.weighted_sum(only)[0].double().norm())
            assert norm <= clip
            assert norm >= min(clip, float(exact[j])) * (1 - 3e-5)
