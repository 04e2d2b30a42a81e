"""Every model: parameters to the digit, any size, no example sees another."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from sfumato import nn as layers
from sfumato.errors import UserError
from sfumato.models import create, info, names, summary, summary_of
from thinning import one_in

OURS = [name for name in names() if not name.startswith("eq-")]
COUNTS = {
    "resnet9": 2_447_946,
    "scale-resnet9": 2_448_714,
    "wrn-16-4": 2_752_506,
    "scale-wrn-16-4": 2_752_506 + 4 * (64 + 128 + 256),
    "smoothnet": 3_391_853,
    "papernot-1": 26_010,
    "papernot-2": 2_395_434,
    "papernot-6": 2_334_730,
}
ROUNDED = {
    "wrn-40-4": 8.96,
    "resnet18": 11.2,
    "resnet34": 21.3,
    "resnet50": 23.5,
    "densenet121": 7.0,
    "efficientnet-b0": 4.0,
}


def parameters(name: str, **options: object) -> int:
    channels, height, width = info(name).input
    return summary_of(name, channels=channels, size=(height, width), options=options).parameters


@pytest.mark.parametrize("name", COUNTS)
def test_parameters_to_the_digit(name: str) -> None:
    assert parameters(name) == COUNTS[name]
    published = info(name).parameters
    assert not isinstance(published, int) or published == COUNTS[name]


@pytest.mark.parametrize("name", ROUNDED)
def test_parameters_of_the_rounded_counts(name: str) -> None:
    for size in (32, 224):
        count = summary_of(name, size=(size, size)).parameters / 1e6
        assert round(count, 2 if name == "wrn-40-4" else 1) == ROUNDED[name]


def test_parameters_of_the_smoothnet_study() -> None:
    assert parameters("smoothnet", width=4) == 1_009_149
    assert parameters("smoothnet", width=1, depth=1) == 101_017
    plain = parameters("smoothnet", links="plain")
    assert parameters("smoothnet", links="residual") == plain + 3 * 64 + 32 * 128
    assert plain < parameters("smoothnet")
    assert parameters("smoothnet", norm="none") == parameters("smoothnet") - 2 * 5 * (64 + 128)


def test_parameters_of_scale_resnet50_and_of_capacities() -> None:
    scaled = 2 * 256 * (3 * 1 + 4 * 2 + 6 * 4 + 3 * 8)
    assert parameters("scale-resnet50") == parameters("resnet50") + scaled
    k = 15
    first, second = 64 * k + k, 16 * k * k + k
    assert parameters("papernot-1", filters=k) == first + second + 16 * k * 32 + 32 + 330


@pytest.mark.parametrize(
    ("name", "millions"), [("resnet9", 284.9), ("wrn-16-4", 392.6), ("wrn-40-4", 1298.6)]
)
def test_multiply_accumulates(name: str, millions: float) -> None:
    counted = summary_of(name)
    convolutions = sum(row.macs for row in counted.layers if row.kind == "Conv2d")
    assert round(convolutions / 1e6, 1) == millions
    assert counted.macs == sum(row.macs for row in counted.layers)


def test_counting_shapes_agrees_with_counting_for_real() -> None:
    for name in ("wrn-10-1", "efficientnet-b0", "papernot-1", "smoothnet"):
        minimum = max(16, info(name).minimum)
        model = create(name, size=minimum)
        assert summary(model, (3, minimum, minimum)) == summary_of(name, size=(minimum, minimum))


def test_counting_leaves_the_model_as_it_was() -> None:
    model = create("tanh-cnn", channels=1, size=8)
    model[0].eval()
    before = copy.deepcopy(model.state_dict())
    counted = summary(model, (1, 8, 8))
    assert model.training and not model[0].training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())
    assert [row.output for row in counted.layers][-1] == (10,)
    assert counted.parameters == sum(row.parameters for row in counted.layers)


def test_a_layer_called_twice_counts_its_parameters_once() -> None:
    shared = nn.Linear(4, 4)
    counted = summary(nn.Sequential(nn.Flatten(), shared, nn.Tanh(), shared), (1, 2, 2))
    assert (counted.parameters, counted.macs) == (20, 32)
    assert sum(row.parameters for row in counted.layers) == 20


def test_grouped_convolutions_count_their_own_channels_only() -> None:
    counted = summary(nn.Sequential(nn.Conv2d(4, 8, 3, groups=2)), (4, 5, 5))
    assert counted.macs == 8 * 9 * (2 * 9)


@pytest.mark.slow
def test_counting_every_model_computes_less_than_running_it() -> None:
    counted = 0
    with FlopCounterMode(display=False) as computed:
        for name in names():
            channels, height, width = info(name).input
            counted += summary_of(name, channels=channels, size=(height, width)).macs
    assert computed.get_total_flops() < 0.5 * 2 * counted


@pytest.mark.parametrize("name", one_in(3, OURS))
def test_no_example_sees_another(name: str) -> None:
    small: dict[str, dict[str, object]] = {
        "smoothnet": {"width": 1, "depth": 2},
        "resnet9": {"layout": (8, 16, 32), "groups": 8},
        "scale-resnet9": {"layout": (8, 16, 32), "groups": 8},
        "papernot-2": {"filters": 4, "units": 16},
        "papernot-6": {"filters": 4},
    }
    height = info(name).minimum
    size = (height, height + 3)
    torch.manual_seed(0)
    model = create(name, classes=5, channels=2, size=size, **small.get(name, {}))
    x = torch.randn(3, 2, *size)
    with torch.no_grad():
        assert model(x[:0]).shape == (0, 5)
        alone, together = model(x[:1]), model(x)
        assert together.shape == (3, 5) and together.isfinite().all()
        assert torch.allclose(alone, together[:1], atol=1e-4, rtol=1e-4)
        x[1:] = 1000 * torch.randn(2, 2, *size)
        assert torch.allclose(model(x)[:1], together[:1], atol=1e-4, rtol=1e-4)
        assert not torch.allclose(together[0], together[1])
    model(x[:0]).sum().backward()
    assert model.training


@pytest.mark.parametrize("name", OURS)
def test_too_small_an_image_is_a_sentence(name: str) -> None:
    minimum = info(name).minimum
    with pytest.raises(UserError, match=f"at least {minimum}x{minimum} pixels"):
        create(name, size=(minimum - 1, 64))
    with pytest.raises(UserError, match="needs images"):
        create(name, size=(64, minimum - 1))


@pytest.mark.parametrize("name", ["tanh-cnn", "wrn-10-1", "resnet20", "papernot-1"])
def test_construction_follows_the_seed(name: str) -> None:
    models = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        models.append(torch.cat([p.flatten() for p in create(name).parameters()]))
    assert torch.equal(models[0], models[1])
    assert not torch.equal(models[0], models[2])


@pytest.mark.parametrize("size", [8, 28, (9, 30), 64])
def test_the_default_model_stays_small(size: int | tuple[int, int]) -> None:
    model = create("tanh-cnn", channels=1, size=size)
    assert sum(p.numel() for p in model.parameters()) <= 9_930
    assert isinstance(model[-1], nn.Linear)


def order_of(model: nn.Module) -> list[str]:
    shapes = summary(model, (3, 16, 16)).layers
    return [row.kind for row in shapes if row.kind in ("Conv2d", "ReLU", "Mish", "GroupNorm")]


def test_norm_orders() -> None:
    first = {
        ("resnet9", "activation-norm"): ["Conv2d", "Mish", "GroupNorm"],
        ("resnet9", "norm-activation"): ["Conv2d", "GroupNorm", "Mish"],
        ("wrn-10-1", "activation-norm"): ["Conv2d", "ReLU", "GroupNorm"],
        ("wrn-10-1", "norm-activation"): ["Conv2d", "GroupNorm", "ReLU"],
    }
    for (name, norm_order), kinds in first.items():
        model = create(name, size=16, norm_order=norm_order)
        assert order_of(model)[:3] == kinds
        assert sum(p.numel() for p in create(name, size=16).parameters()) == sum(
            p.numel() for p in model.parameters()
        )


def test_wide_networks_standardise_all_but_the_skips() -> None:
    model = create("wrn-16-2", size=8)
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    large = [m for m in convolutions if m.kernel_size == (3, 3)]
    skips = [m for m in convolutions if m.kernel_size == (1, 1)]
    assert len(large) == 13 and len(skips) == 3
    assert all(layers.is_standardised(m) and m.bias is not None for m in large)
    assert all(not layers.is_standardised(m) and m.bias is None for m in skips)
    plain = create("wrn-16-2", size=8, standardise=False)
    assert not any(layers.is_standardised(m) for m in plain.modules())


def test_resnet20_has_groups_of_four_and_plain_standardisation() -> None:
    model = create("resnet20", size=8)
    groups = {
        (m.num_channels, m.num_groups) for m in model.modules() if isinstance(m, nn.GroupNorm)
    }
    assert groups == {(16, 4), (32, 8), (64, 16)}
    steps = [m for m in model.modules() if isinstance(m, layers.WeightStandardisation)]
    assert len(steps) == 21 and all(s.form == "plain" and s.gain is None for s in steps)


def test_small_images_keep_their_resolution_in_the_baselines() -> None:
    for name in ("resnet18", "densenet121", "efficientnet-b0"):
        for size, stem, strided in (
            (32, "auto", False),
            (64, "auto", True),
            (32, "imagenet", True),
        ):
            rows = summary_of(name, size=(size, size), options={"stem": stem}).layers
            assert (rows[0].output[1] < size) == strided, (name, size, stem)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("wrn-17-4", {}, "6n \\+ 4"),
        ("wrn-16-0", {}, "width factor"),
        ("densenet121", {"size": 16, "stem": "imagenet"}, "stem = 'cifar'"),
        ("resnet9", {"size": 8, "layout": (8, 16, 32)}, "fewer groups"),
        ("wrn-10-1", {"size": 4, "norm": "instance"}, "larger images"),
        ("resnet20", {"size": 4, "norm": "instance"}, "larger images"),
        ("resnet18", {"size": 8, "norm": "instance"}, "larger images"),
        ("densenet121", {"size": 8, "norm": "instance"}, "larger images"),
        ("efficientnet-b0", {"size": 16, "norm": "instance"}, "larger images"),
        ("resnet9", {"size": 8, "activation": "mishh"}, "Did you mean 'mish'"),
    ],
)
def test_settings_that_cannot_be_are_sentences(
    name: str, options: dict[str, object], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        create(name, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("links", ["dense", "residual", "plain"])
@pytest.mark.parametrize("pooling", ["max", "average", "none"])
def test_the_component_study_runs(links: str, pooling: str) -> None:
    x = torch.randn(2, 3, 8, 8)
    for norm in ("group", "instance", "layer", "none"):
        model = create(
            "smoothnet",
            size=8,
            width=1,
            depth=2,
            links=links,
            pooling=pooling,
            norm=norm,
            activation="relu",
        )
        assert model(x).shape == (2, 10)


def test_the_links_of_smoothnet() -> None:
    for links in ("dense", "residual", "plain"):
        model = create("smoothnet", size=8, width=1, depth=2, links=links, activation="relu")
        stage = model.stage1
        x = torch.randn(2, 3, 8, 8)
        one = stage.blocks[0](x)
        if links == "dense":
            two = stage.blocks[1](torch.cat([x, one], 1))
            assert torch.equal(stage(x), torch.cat([x, one, two], 1))
            assert torch.equal(model.last(stage(x))[:, -8:], two)
        elif links == "residual":
            one = one + stage.skip(x)
            assert torch.equal(stage(x), one + stage.blocks[1](one))
        else:
            assert torch.equal(stage(x), stage.blocks[1](one))


def test_smoothnet_is_as_wide_as_published() -> None:
    rows = summary_of("smoothnet").layers
    assert {row.name: row.output for row in rows}["pool2"] == (801, 8, 8)
    assert {row.name: row.output for row in rows}["flatten"] == (2048,)
