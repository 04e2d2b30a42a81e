"""Equivariant-ResNet-9 and Equivariant-WRN."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from sfumato.errors import UserError
from sfumato.models import create, info, names
from sfumato.nn import steerable
from sfumato.nn.groups import FiniteGroup, Irreps, Regular, parse_group
from thinning import one_in, with_slow

COUNTS = {
    "c4": 258_328,
    "c8": 255_675,
    "c16": 244_397,
    "d4": 255_675,
    "d8": 244_397,
    "d16": 237_995,
    "so2-1": 242_378,
    "so2-2": 250_881,
    "so2-3": 308_444,
}
LAYERS = {
    "c4": [225, 5_491, 23_142, 33_495, 0, 96_855, 96_910, 2_210],
    "c8": [150, 5_005, 21_658, 32_487, 0, 97_383, 97_422, 1_570],
    "c16": [100, 4_617, 20_754, 31_131, 0, 93_339, 93_366, 1_090],
    "d16": [75, 4_614, 18_444, 29_203, 0, 92_435, 92_454, 770],
    "so2-1": [247, 8_931, 36_582, 30_016, 0, 98_368, 65_664, 2_570],
    "so2-2": [76, 873, 3_906, 13_888, 0, 163_904, 65_664, 2_570],
    "so2-3": [38, 292, 1_160, 9_280, 0, 229_440, 65_664, 2_570],
}
FINITE = [g for g in COUNTS if not g.startswith("so2")]


@pytest.fixture
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def act(x: Tensor, group: FiniteGroup, a: int, *, fields: bool) -> Tensor:
    """Element `a`, one that maps the pixel grid to itself, on an image or on regular fields."""
    x = x.flip(-1) if a // group.rotations else x
    x = torch.rot90(x, 4 * (a % group.rotations) // group.rotations, (-2, -1))
    if not fields:
        return x
    y = torch.empty_like(x).unflatten(1, (-1, group.order))
    y[:, :, group.compose(a, np.arange(group.order))] = x.unflatten(1, (-1, group.order))
    return y.flatten(1, 2)


def grid_elements(group: FiniteGroup) -> list[int]:
    return [a for a in range(group.order) if 4 * (a % group.rotations) % group.rotations == 0]


def until(model: nn.Module, last: str, x: Tensor) -> Tensor:
    for name, layer in model.named_children():
        x = layer(x)
        if name == last:
            break
    return x


def relative(a: Tensor, b: Tensor) -> float:
    return ((a - b).abs().max() / b.abs().max()).item()


@pytest.mark.parametrize("group", COUNTS)
def test_parameter_counts(group):
    model = create(f"eq-resnet9-{group}")
    assert parameters(model) == COUNTS[group]
    assert all(p.requires_grad for p in model.parameters())
    convs = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert len(convs) == 8
    for conv in convs:
        assert parametrize.type_before_parametrizations(conv) is nn.Conv2d
        coefficients = conv.parametrizations.weight.original
        assert coefficients.dim() == 3 and coefficients.numel() < conv.weight.numel()
        assert {n for n, _ in conv.named_parameters()} == {
            "parametrizations.weight.original",
            "parametrizations.bias.original",
        }


@pytest.mark.parametrize("group", LAYERS)
def test_parameters_of_each_layer(group):
    model = create(f"eq-resnet9-{group}")
    parts = ["conv1", "conv2", "res1", "conv3", "restrict", "conv4", "res2", "head"]
    assert [parameters(model.get_submodule(part)) for part in parts] == LAYERS[group]


def test_the_published_counts_are_the_papers():
    for group, count in COUNTS.items():
        published = info(f"eq-resnet9-{group}").parameters
        if group == "so2-3":
            count += 32 * 32
        assert published in (None, f"{count / 1000:.0f}k")
    assert {f"eq-resnet9-{g}" for g in COUNTS} | {"eq-wrn-40-1"} <= set(names())


@pytest.mark.parametrize("group", one_in(2, FINITE))
@pytest.mark.parametrize("dtype", with_slow([torch.float32, torch.float64], torch.float32))
def test_whole_networks_are_equivariant(group, dtype):
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    try:
        model = create(f"eq-resnet9-{group}", size=16)
        image = torch.randn(2, 3, 16, 16)
    finally:
        torch.set_default_dtype(torch.float32)
    for name, parameter in model.named_parameters():
        if name.endswith("bias.original"):
            nn.init.normal_(parameter)
    whole = parse_group(group).group
    half = whole.half()
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    with torch.no_grad():
        before = until(model, "conv3", image)
        after = until(model, "res2", image)
        invariant = until(model, "group_pool", image)
        for a in grid_elements(whole):
            turned = until(model, "conv3", act(image, whole, a, fields=False))
            assert relative(turned, act(before, whole, a, fields=True)) < tolerance
        for a in grid_elements(half):
            turned = act(image, half, a, fields=False)
            expected = act(after, half, a, fields=True)
            assert relative(until(model, "res2", turned), expected) < tolerance
            expected = act(invariant, half, a, fields=False)
            assert relative(until(model, "group_pool", turned), expected) < tolerance
    if whole.rotations == 4:
        broken = until(model, "group_pool", act(image, whole, 1, fields=False))
        assert relative(broken, act(invariant, whole, 1, fields=False)) > 0.05


@pytest.mark.parametrize("frequency", [1, 2, 3])
def test_so2_networks_commute_with_quarter_turns(frequency, float64):
    model = create(f"eq-resnet9-so2-{frequency}", size=17)
    field = Irreps(frequency)
    image = torch.randn(2, 3, 17, 17)
    with torch.no_grad():
        still = until(model, "conv3", image)
        for quarter in range(1, 4):
            turned = until(model, "conv3", image.rot90(quarter, (2, 3)))
            matrix = torch.tensor(field.matrix(quarter * math.pi / 2))
            expected = still.rot90(quarter, (2, 3)).unflatten(1, (-1, field.dimension))
            expected = torch.einsum("de,bcehw->bcdhw", matrix, expected).flatten(1, 2)
            assert relative(turned, expected) < 1e-12


@pytest.mark.parametrize("group", ["c4", "d4", "d8"])
def test_wide_networks_are_equivariant(group, float64):
    model = create("eq-wrn-10-1", group=group, size=16)
    whole = parse_group(group).group
    image = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        before, after = until(model, "stage2", image), until(model, "last", image)
        logits = model(image)
        for a in grid_elements(whole):
            turned = until(model, "stage2", act(image, whole, a, fields=False))
            assert relative(turned, act(before, whole, a, fields=True)) < 1e-12
        half = whole.half()
        for a in grid_elements(half):
            turned = act(image, half, a, fields=False)
            assert relative(until(model, "last", turned), act(after, half, a, fields=True)) < 1e-12
            assert relative(model(turned), logits) < 1e-12


@pytest.mark.parametrize(
    "name", ["eq-resnet9-c4", "eq-resnet9-d8", "eq-resnet9-so2-2", "eq-wrn-10-1"]
)
def test_any_batch_and_independent_examples(name):
    torch.manual_seed(0)
    model = create(name, size=16, classes=7, channels=1)
    x = torch.randn(3, 1, 16, 16)
    with torch.no_grad():
        together = model(x)
        assert together.shape == (3, 7)
        assert model(x[:0]).shape == (0, 7)
        for i in range(3):
            torch.testing.assert_close(model(x[i : i + 1]), together[i : i + 1])
        changed = x.clone()
        changed[1] += 5
        torch.testing.assert_close(model(changed)[[0, 2]], together[[0, 2]])
        assert not torch.allclose(model(changed)[1], together[1])


@pytest.mark.parametrize("name", ["eq-resnet9-d4", "eq-resnet9-so2-1"])
def test_per_example_gradients_of_coefficients(name, float64):
    model = create(name, size=8, layout=(4, 8, 8))
    theta = {k: v.detach() for k, v in model.named_parameters()}
    x, y = torch.randn(3, 3, 8, 8), torch.tensor([0, 5, 9])

    def loss(theta, x, y):
        return F.cross_entropy(torch.func.functional_call(model, theta, x[None]), y[None])

    stacked = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(theta, x, y)
    for i in range(3):
        model.zero_grad()
        F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
        for key, parameter in model.named_parameters():
            torch.testing.assert_close(stacked[key][i], parameter.grad)
            assert parameter.grad.abs().sum() > 0, key


def test_states_round_trip():
    first, second = create("eq-resnet9-c8"), create("eq-resnet9-c8")
    x = torch.randn(2, 3, 32, 32)
    assert not torch.allclose(first(x), second(x))
    assert set(first.state_dict()) == {name for name, _ in first.named_parameters()}
    second.load_state_dict(first.state_dict())
    torch.testing.assert_close(first(x), second(x))
    torch.testing.assert_close(copy.deepcopy(first)(x), first(x))


@pytest.mark.parametrize("group", COUNTS)
def test_every_basis_is_built_once(group):
    steerable.steerable_basis.cache_clear()
    create(f"eq-resnet9-{group}")
    used = steerable.steerable_basis.cache_info()
    assert used.misses <= 4 < used.hits


@pytest.mark.parametrize("layout", [(64, 128, 256), (32, 64, 128), (16, 32, 64), (8, 16, 32)])
def test_layouts(layout):
    model = create("eq-resnet9-d4", layout=layout)
    fields = [
        model.get_submodule(f"conv{i}.conv").parametrizations.bias.original for i in (1, 2, 3)
    ]
    factors = math.sqrt(12) / 8, math.sqrt(12) / 8, math.sqrt(6) / 4
    assert [len(f) for f in fields] == [int(w * f) for w, f in zip(layout, factors, strict=True)]
    assert create("eq-resnet9-so2-3", layout=layout)(torch.zeros(1, 3, 32, 32)).shape == (1, 10)


@pytest.mark.parametrize(
    "options",
    [
        {"norm_order": "norm-activation"},
        {"norm": "layer", "affine": True},
        {"norm": "instance"},
        {"norm": "none", "scale": "fan-in"},
        {"activation": "relu", "standardise": False},
        {"scaled": False},
        {"group": "so2-1", "norm": "instance", "affine": True},
        {"group": "so2-4", "norm": "none", "scale": "fan-in"},
        {"group": "c2"},
        {"group": "d6", "groups": 4},
    ],
)
def test_options(options):
    for name in ("eq-resnet9", "eq-wrn-10-1"):
        model = create(name, size=(12, 20), channels=2, **options)
        y = model(torch.randn(2, 2, 12, 20))
        assert y.shape == (2, 10) and torch.isfinite(y).all()


def test_affine_adds_a_pair_per_field():
    plain, affine = (parameters(create("eq-resnet9-c4", affine=flag)) for flag in (False, True))
    assert affine - plain == 2 * (9 + 19 + 3 * 19 + 55 + 55 + 3 * 55)
    plain, affine = (parameters(create("eq-resnet9-so2-1", affine=flag)) for flag in (False, True))
    assert affine - plain == 2 * (19 + 39 + 3 * 39 + 64 + 64 + 3 * 64)


def test_norms_and_orders():
    model = create("eq-resnet9-c4")
    assert list(model.conv2._modules) == ["conv", "activation", "norm", "pool"]
    other = create("eq-resnet9-c4", norm_order="norm-activation")
    assert list(other.conv2._modules) == ["conv", "norm", "activation", "pool"]
    groups = [m.num_groups for m in model.modules() if isinstance(m, nn.GroupNorm)]
    assert groups == [1] * 5 + [5] * 5
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())
    restricted = create("eq-resnet9", group="c2").conv4
    assert isinstance(restricted.pool, nn.MaxPool2d)


def test_the_mask_is_no_parameter():
    model = create("eq-resnet9-so2-3", size=32)
    assert model.mask.mask.shape == (32, 32) and not list(model.mask.parameters())
    assert not hasattr(create("eq-resnet9-d4"), "mask")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("eq-resnet9", {"group": "e8"}, "'e8' is not a symmetry group.*Accepted: c2, c4"),
        ("eq-resnet9", {"group": "c5"}, "Accepted: c2, c4"),
        ("eq-resnet9", {"group": "so2-17"}, "frequency 17.*up to 16"),
        ("eq-resnet9", {"layout": (16, 0, 64)}, "layout.*3 whole numbers"),
        ("eq-resnet9", {"layout": (16, 32)}, "layout.*3 whole numbers"),
        ("eq-resnet9-d4", {"group": "c4"}, "fixes the option 'group'"),
        ("eq-resnet9-d4", {"size": 7}, "at least 8x8"),
        ("eq-resnet9-so2-1", {"norm": "group"}, "break the symmetry.*'instance'"),
        ("eq-resnet9-d4", {"norm": "batch"}, "norm"),
        ("eq-resnet9-d4", {"activation": "mush"}, "Did you mean 'mish'"),
        ("eq-resnet9-d4", {"groups": 0}, "groups.*at least 1"),
        ("eq-resnet9-d5", {}, "Did you mean 'eq-resnet9-d"),
        ("eq-wrn-12-1", {}, "depth 12"),
        ("eq-wrn-10-0", {}, "width factor"),
    ],
)
def test_mistakes_are_sentences(name, options, message):
    with pytest.raises(UserError, match=message):
        create(name, **options)


def test_eq_wrn_40_1():
    model = create("eq-wrn-40-1")
    convs = [m for m in model.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)]
    assert len(convs) == 1 + 3 * 6 * 2
    assert parameters(model) == 725_382
    assert isinstance(model.stage3[0].skip, nn.Conv2d) and model.stage3[0].skip.bias is None
    assert parse_group("d4") == Regular(FiniteGroup(4, mirror=True))


def normalised(rows: Tensor) -> Tensor:
    """Each row with mean 0 and variance 1."""
    middle, spread = rows.mean(1, keepdim=True), rows.var(1, keepdim=True, correction=0)
    return (rows - middle) / (spread + 1e-5).sqrt()


@pytest.mark.parametrize(("group", "size"), [("d4", (12, 17)), ("so2-1", (12, 12))])
@pytest.mark.parametrize(
    "reads",
    [("res1",), ("conv3",), ("conv4",), ("conv3", "res2"), ("conv3", "wavelets"), ("wavelets",)],
)
def test_a_head_reads_blocks(group: str, size: tuple[int, int], reads: tuple[str, ...]) -> None:
    """The head reads all channels of each block, averaged and normalised over the image."""
    name, shape = f"eq-resnet9-{group}", {"classes": 3, "channels": 2, "size": size}
    whole = create(name, layout=(4, 8, 16), **shape).eval()
    part = create(name, layout=(4, 8, 16), reads=reads, grid=3, **shape).eval()
    theirs = whole.state_dict()
    mine = {k: v if k.startswith("head") else theirs[k] for k, v in part.state_dict().items()}
    part.load_state_dict(mine)
    x = torch.randn(4, 2, *size)
    with torch.no_grad():
        seen, rows = x, []
        for block, layer in whole.named_children():
            seen = layer(seen)
            if block in reads:
                sides = [min(3, side) for side in seen.shape[2:]]
                rows.append(normalised(F.adaptive_avg_pool2d(seen, sides).flatten(1)))
        if "wavelets" in reads:
            waves = create("scatternet", classes=3, channels=1, size=size).eval()
            waves.head = nn.Identity()
            rows.append(waves(x.mean(1, keepdim=True)))
        wanted = F.linear(
            torch.cat(rows, 1), part.get_parameter("head.weight"), part.get_parameter("head.bias")
        )
        torch.testing.assert_close(part(x), wanted, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(part(x[:1]), part(x)[:1], rtol=1e-4, atol=1e-5)
    wrong = [("conv3", "conv3"), ()]
    for given in wrong:
        with pytest.raises(UserError, match="each part once"):
            create(name, reads=given, **shape)
    with pytest.raises(UserError, match=r"whiten.*from 0 to 1"):
        create(name, reads=reads, whiten=1.5, **shape)
    with pytest.raises(UserError, match="give that option too"):
        create(name, whiten=0.5, **shape)
    assert ("res2" in dict(part.named_children())) == ("res2" in reads)


@pytest.mark.parametrize("reads", [("conv3",), ("conv3", "res2"), ("conv3", "wavelets")])
def test_a_head_reads_a_second_network_beside_the_first(reads: tuple[str, ...]) -> None:
    options = {"layout": (8, 8, 8), "reads": reads, "grid": 3, "classes": 3, "mirror": True}
    both = create("eq-resnet9-d4", beside=True, **options).eval()
    alone = [create("eq-resnet9-d4", **options).eval() for _ in range(2)]
    theirs = both.state_dict()
    for model, prefix in zip(alone, ("", "beside."), strict=True):
        own = {k: theirs.get(prefix + k, v) for k, v in model.state_dict().items()}
        model.load_state_dict(own | {k: v for k, v in model.state_dict().items() if "head" in k})
    seen: list[Tensor] = []
    x = torch.randn(4, 3, 32, 32)
    for model in (*alone, both):
        model.head.register_forward_pre_hook(lambda head, given: seen.append(given[0]))
        with torch.no_grad():
            model(x)
    first, second, found = seen
    with torch.no_grad():
        blocks = sum(features.shape[1] for features in alone[0].read(x))
    assert torch.equal(found[:, :blocks], first[:, :blocks])
    assert torch.equal(found[:, blocks : 2 * blocks], second[:, :blocks])
    assert torch.equal(found[:, 2 * blocks :], first[:, blocks:]), "wavelets are read once"
    assert not torch.equal(first[:, :blocks], second[:, :blocks])
    with pytest.raises(UserError, match="name some in 'reads'"):
        create("eq-resnet9-d4", beside=True, **options | {"reads": ("wavelets",)})
    with pytest.raises(UserError, match="'beside' acts on what 'reads' names"):
        create("eq-resnet9-d4", beside=True)


@pytest.mark.parametrize("group", ["d4", "d8"])
@pytest.mark.parametrize("reads", [("res1",), ("conv3",), ("conv3", "res2"), ("wavelets",)])
def test_a_head_sees_the_mean_of_an_image_and_its_mirror_image(
    group: str, reads: tuple[str, ...]
) -> None:
    options = {"layout": (8, 8, 8), "reads": reads, "grid": 3, "classes": 3, "size": (16, 24)}
    torch.manual_seed(0)
    plain = create(f"eq-resnet9-{group}", **options).double().eval()
    mirrored = create(f"eq-resnet9-{group}", mirror=True, **options).double().eval()
    mirrored.load_state_dict(plain.state_dict())
    x = torch.randn(4, 3, 16, 24, dtype=torch.float64)
    rows: dict[nn.Module, Tensor] = {}
    for model in (plain, mirrored):
        model.head.register_forward_pre_hook(lambda head, given: rows.update({head: given[0]}))
    with torch.no_grad():
        both = []
        for image in (x, x.flip(3)):
            plain(image), mirrored(image)
            both.append(rows[mirrored.head])
        torch.testing.assert_close(*both)
        if len(reads) == 1:  # Several parts are normalised one by one.
            plain(x)
            seen = rows[plain.head]
            plain(x.flip(3))
            mean = (seen + rows[plain.head]) / 2
            wanted = mean if reads == ("wavelets",) else normalised(mean)
            torch.testing.assert_close(both[0], wanted, rtol=1e-3, atol=1e-3)


def test_a_group_without_mirror_images_is_a_sentence() -> None:
    for group in ("c4", "so2-1"):
        with pytest.raises(UserError, match="needs a group with mirror images"):
            create(f"eq-resnet9-{group}", reads=("conv3",), mirror=True)
    with pytest.raises(UserError, match="'mirror' acts on what 'reads' names"):
        create("eq-resnet9-d4", mirror=True)


def test_no_block_of_that_name_is_a_sentence() -> None:
    with pytest.raises(
        UserError, match=r"'reads' of .* is \['conv5'\], .* a list of 'conv1', 'conv2',"
    ):
        create("eq-resnet9-d4", reads=["conv5"])
