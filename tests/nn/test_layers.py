"""Weight standardisation, norms, activations and initialisations."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from sfumato import nn as layers
from sfumato.errors import UserError


def conv(**options: object) -> nn.Conv2d:
    torch.manual_seed(0)
    return layers.standardised(nn.Conv2d(5, 7, 3, padding=1), **options)  # type: ignore[arg-type]


def raw(module: nn.Module) -> torch.Tensor:
    return module.parametrizations["weight"].original  # type: ignore[index, union-attr]


def test_des_form_gives_filters_of_mean_zero_and_norm_gain() -> None:
    module = conv()
    gain = module.parametrizations["weight"][0].gain  # type: ignore[index, union-attr]
    with torch.no_grad():
        gain.copy_(torch.arange(1, 8))
        raw(module).add_(0.3)
    assert torch.allclose(module.weight.flatten(1).mean(1), torch.zeros(7), atol=1e-6)
    assert torch.allclose(module.weight.flatten(1).norm(dim=1), gain, rtol=1e-5)


def test_des_form_by_its_formula_also_under_the_floor() -> None:
    module = conv()
    with torch.no_grad():
        raw(module)[0].mul_(1e-3)
    w = raw(module).double().flatten(1)
    scale = (w.var(1, correction=0) * 45).clamp_min(1e-4).sqrt()
    expected = (w - w.mean(1, keepdim=True)) / scale[:, None]
    assert torch.allclose(module.weight.double().flatten(1), expected, atol=1e-6)
    assert module.weight[0].norm() < 0.5


def test_plain_form_by_its_formula() -> None:
    module = conv(form="plain", gain=False, eps=1e-2)
    w = raw(module).flatten(1)
    mean, std = w.mean(1, keepdim=True), w.std(1, correction=0, keepdim=True)
    assert torch.allclose(module.weight.flatten(1), (w - mean) / (std + 1e-2), atol=1e-5)
    assert [name for name, _ in module.named_parameters()] == [
        "bias",
        "parametrizations.weight.original",
    ]


@pytest.mark.parametrize("form", ["de", "plain"])
def test_raw_weights_start_at_the_scale_of_the_fan_in(form: str) -> None:
    torch.manual_seed(0)
    module = layers.standardised(nn.Conv2d(64, 64, 3), form=form)  # type: ignore[arg-type]
    assert raw(module).std().item() == pytest.approx((64 * 9) ** -0.5, rel=0.02)
    assert module.bias is not None and not module.bias.any()
    assert layers.is_standardised(module) and type(module).__mro__[1] is nn.Conv2d


@pytest.mark.parametrize("form", ["de", "plain"])
def test_a_constant_filter_has_a_finite_gradient(form: str) -> None:
    module = conv(form=form)
    with torch.no_grad():
        raw(module).fill_(0.5)
    module.weight.square().sum().backward()
    assert raw(module).grad is not None and raw(module).grad.isfinite().all()


@pytest.mark.parametrize("form", ["de", "plain"])
def test_standardisation_gradients_are_right(form: str) -> None:
    step = layers.WeightStandardisation(3, form=form, gain=True, eps=1e-5).double()  # type: ignore[arg-type]
    w = torch.randn(3, 2, 3, 3, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(step, (w,))


def test_standardising_a_single_entry_is_refused() -> None:
    with pytest.raises(UserError, match="single entry"):
        layers.standardised(nn.Conv2d(1, 4, 1))
    with pytest.raises(UserError, match="'de' or 'plain'"):
        layers.standardised(nn.Conv2d(2, 4, 1), form="dee")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "channels", "groups"),
    [("group", 64, 32), ("group", 40, 20), ("group", 7, 7), ("layer", 6, 1), ("instance", 6, 6)],
)
def test_norms_have_groups_that_divide_the_channels(kind: str, channels: int, groups: int) -> None:
    layer = layers.norm(kind, channels)  # type: ignore[arg-type]
    assert isinstance(layer, nn.GroupNorm) and layer.affine
    assert layer.num_groups == groups
    x = torch.randn(3, channels, 4, 4)
    assert torch.allclose(layer(x)[:1], layer(x[:1]), atol=1e-6)
    if kind == "instance":
        assert torch.allclose(layer(x), nn.InstanceNorm2d(channels)(x), atol=1e-5)


def test_other_norms() -> None:
    assert isinstance(layers.norm("none", 4), nn.Identity)
    assert isinstance(layers.norm("batch", 4), nn.BatchNorm2d)
    with pytest.raises(UserError, match="Did you mean 'group'"):
        layers.norm("grup", 4)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="at least 1 group"):
        layers.norm("group", 4, groups=0)


def test_the_order_of_norm_and_activation() -> None:
    assert list(layers.normalised("norm-activation", nn.Identity(), "relu")) == [
        "norm",
        "activation",
    ]
    assert list(layers.normalised("activation-norm", nn.Identity(), "relu")) == [
        "activation",
        "norm",
    ]


def test_activations_by_name() -> None:
    x = torch.linspace(-3, 3, 31)
    for name, function in {
        "relu": torch.relu,
        "tanh": torch.tanh,
        "selu": torch.selu,
        "elu": nn.functional.elu,
        "gelu": nn.functional.gelu,
        "sigmoid": torch.sigmoid,
    }.items():
        assert torch.equal(layers.activation(name)(x), function(x)), name
    assert set(layers.activation_names()) >= {"silu", "none", "tempered-sigmoid"}


def test_the_tempered_sigmoid_is_tanh_unless_told() -> None:
    x = torch.linspace(-3, 3, 31)
    assert torch.allclose(layers.activation("tempered-sigmoid")(x), torch.tanh(x), atol=1e-6)
    tempered = layers.activation("tempered-sigmoid:1.5,3,0.7")
    assert torch.allclose(tempered(x), 1.5 * torch.sigmoid(3 * x) - 0.7)


@pytest.mark.parametrize(
    "name", ["rellu", "relu:1,2,3", "tempered-sigmoid:1,2", "tempered-sigmoid:a,b,c"]
)
def test_bad_activations_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="activation"):
        layers.activation(name)


@pytest.mark.parametrize(("scheme", "gain"), [("he", 2.0), ("lecun", 1.0), ("xavier", None)])
def test_initialisations_have_their_variance(scheme: str, gain: float | None) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(32, 96, 3), nn.Flatten(), nn.Linear(300, 500))
    layers.initialise(net, scheme)  # type: ignore[arg-type]
    for layer, into, out in ((net[0], 32 * 9, 96 * 9), (net[2], 300, 500)):
        variance = 2 / (into + out) if gain is None else gain / into
        assert layer.weight.std().item() == pytest.approx(math.sqrt(variance), rel=0.03)
        assert not layer.bias.any()


def test_initialisation_leaves_parametrised_weights_and_torchs_own_alone() -> None:
    module = conv()
    before = raw(module).clone()
    layers.initialise(nn.Sequential(module), "he")
    assert torch.equal(raw(module), before)
    assert parametrize.is_parametrized(module)
    plain = nn.Linear(3, 3)
    weight, bias = plain.weight.clone(), plain.bias.clone()
    layers.initialise(plain, "torch")
    assert torch.equal(plain.weight, weight) and torch.equal(plain.bias, bias)
    with pytest.raises(UserError, match="Did you mean 'xavier'"):
        layers.initialise(plain, "xaver")  # type: ignore[arg-type]
