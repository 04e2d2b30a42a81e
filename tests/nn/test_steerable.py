"""Groups, steerable bases, and the layers of equivariant networks."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from sfumato.errors import UserError
from sfumato.nn import equivariant as eq
from sfumato.nn import fourier
from sfumato.nn.groups import FiniteGroup, Irreps, Regular, Trivial, parse_group
from sfumato.nn.steerable import grid, published_gain, steerable_basis
from sfumato.privacy.engines.compiled_rules import group_norm

FINITE = ["c2", "c4", "c8", "c16", "d2", "d4", "d8", "d16"]
SO2 = ["so2-1", "so2-2", "so2-3", "so2-5"]


@pytest.fixture
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def turn_fields(x: Tensor, matrix: np.ndarray) -> Tensor:
    """Apply a representation matrix to every field of a feature map."""
    fields = x.unflatten(1, (-1, len(matrix)))
    return torch.einsum("de,bcehw->bcdhw", torch.from_numpy(matrix).to(x), fields).flatten(1, 2)


def grid_elements(group: FiniteGroup) -> list[int]:
    return [a for a in range(group.order) if 4 * (a % group.rotations) % group.rotations == 0]


def act(x: Tensor, field: Trivial | Regular, group: FiniteGroup, a: int) -> Tensor:
    """Element `a` of a finite group, one that maps the pixel grid to itself, on a feature map."""
    x = x.flip(-1) if a // group.rotations else x
    x = torch.rot90(x, 4 * (a % group.rotations) // group.rotations, (-2, -1))
    return x if isinstance(field, Trivial) else turn_fields(x, field.matrix(a))


def relative(a: Tensor, b: Tensor) -> float:
    return ((a - b).abs().max() / b.abs().max()).item()


@pytest.mark.parametrize("name", FINITE)
def test_elements_compose_as_maps_of_the_plane(name):
    group = parse_group(name).group
    matrices = group.matrices()
    a, b = np.meshgrid(np.arange(group.order), np.arange(group.order), indexing="ij")
    np.testing.assert_allclose(matrices[a] @ matrices[b], matrices[group.compose(a, b)], atol=1e-12)
    assert (group.compose(np.arange(group.order), group.inverse(np.arange(group.order))) == 0).all()
    for g in range(group.order):
        for sign in group.signs():
            assert (sign[group.compose(g, np.arange(group.order))] == sign[g] * sign).all()


@pytest.mark.parametrize(
    ("whole", "part"), [("c8", "c4"), ("d8", "d4"), ("d4", "c4"), ("d16", "c2"), ("c4", "c4")]
)
def test_a_restricted_regular_field_is_regular(whole, part):
    field, sub = parse_group(whole), parse_group(part)
    n, m = field.group.rotations, sub.group.rotations
    layer = eq.Restriction(field, sub, 3)
    x = torch.randn(2, 3 * field.dimension, 2, 2)
    for b in range(sub.group.order):
        a = (b % m) * (n // m) + n * (b // m)
        turned = layer(turn_fields(x, field.matrix(a)))
        assert torch.equal(turned, turn_fields(layer(x), sub.matrix(b)))


def test_a_group_outside_is_refused():
    with pytest.raises(ValueError, match="D2 is not a subgroup of C4"):
        FiniteGroup(4).cosets(FiniteGroup(2, mirror=True))
    with pytest.raises(ValueError, match="odd number"):
        FiniteGroup(3).half()
    for name in ("q4", "c3", "c1", "d32", "so2-0", "so2", "so2-99", "c-4"):
        with pytest.raises(UserError, match=r"Accepted: c2, c4.*so2-3"):
            parse_group(name)


@pytest.mark.parametrize(
    ("name", "dimensions"),
    [
        ("c4", [(6, 24), (8, 32), (9, 36)]),
        ("c8", [(6, 48), (8, 64), (9, 72)]),
        ("c16", [(6, 96), (8, 128), (10, 160)]),
        ("d4", [(6, 48), (8, 64), (9, 72)]),
        ("d8", [(6, 96), (8, 128), (9, 144)]),
        ("d16", [(6, 192), (8, 256), (10, 320)]),
        ("so2-1", [(4, 12), (4, 12)]),
        ("so2-2", [(6, 24), (6, 28)]),
        ("so2-3", [(6, 36), (8, 44)]),
    ],
)
def test_basis_dimensions(name, dimensions):
    field = parse_group(name)
    for cutoff, expected in zip((2.0, 3.0, 4.0), dimensions, strict=False):
        found = [len(steerable_basis(s, field, cutoff=cutoff)) for s in (Trivial(), field)]
        assert tuple(found) == expected, cutoff


def test_without_symmetry_or_extent():
    alone = Regular(FiniteGroup(1))
    assert len(steerable_basis(alone, alone)) == 8
    d4 = parse_group("d4")
    assert len(steerable_basis(d4, d4, kernel_size=1)) == 8
    assert len(steerable_basis(Irreps(2), Irreps(2), kernel_size=1)) == 1 + 2 + 2
    with pytest.raises(ValueError, match="odd size"):
        steerable_basis(d4, d4, kernel_size=2)
    with pytest.raises(ValueError, match="no steerable kernels"):
        steerable_basis(d4, parse_group("c8"))


@pytest.mark.parametrize(
    ("name", "kernel_size"),
    [(name, 3) for name in [*FINITE, *SO2]]
    + [(name, size) for name in ("c4", "c16", "d4", "d8", "so2-3") for size in (1, 5)],
)
def test_bases_are_orthonormal(name, kernel_size):
    field = parse_group(name)
    for source in (Trivial(), field):
        basis = steerable_basis(source, field, kernel_size=kernel_size)
        rows = basis.reshape(len(basis), -1).astype(np.float32).astype(np.float64)
        np.testing.assert_allclose(rows @ rows.T, np.eye(len(rows)), atol=1e-6)


@pytest.mark.parametrize("name", [*FINITE, *SO2])
def test_kernels_obey_the_constraint_on_the_grid(name):
    """K(g x) = r_out(g) K(x) r_in(g)^-1 for every g that maps the taps to themselves."""
    field = parse_group(name)
    if isinstance(field, Regular):
        turns = field.group.matrices()
        cases = [(turns[a], field.matrix(a)) for a in grid_elements(field.group)]
    else:
        angles = [q * np.pi / 2 for q in range(4)]
        cases = [(Irreps(1).matrix(t)[1:, 1:], field.matrix(t)) for t in angles]
    assert len(cases) > 1
    points = grid(3)
    for move, matrix in cases:
        moved = (points @ move.T)[:, None] - points
        place = np.argmin(np.abs(moved).sum(-1), axis=1)
        for source, inner in ((Trivial(), np.eye(1)), (field, matrix)):
            kernels = steerable_basis(source, field).reshape(-1, len(matrix), len(inner), 9)
            expected = np.einsum("ij,njkx,lk->nilx", matrix, kernels, inner, optimize=True)
            np.testing.assert_allclose(kernels[..., place], expected, atol=1e-12)


@pytest.mark.parametrize("name", ["c8", "c16", "d8", "so2-2"])
def test_lifting_commutes_with_turns_off_the_grid(name, float64):
    """On analytic plane waves nothing is interpolated: the error falls with the wavelength."""
    field = parse_group(name)
    if isinstance(field, Regular):
        cases = [(m, field.matrix(a)) for a, m in enumerate(field.group.matrices())]
    else:
        cases = [(Irreps(1).matrix(t)[1:, 1:], field.matrix(t)) for t in np.linspace(0, 6, 25)]
    rng = np.random.default_rng(0)
    kernels = np.tensordot(rng.normal(size=(64, 8)), _lift(field), 1)
    errors = []
    for wavelength in (4, 8, 16):
        angle = rng.uniform(0, 2 * np.pi, 32)
        wave = 2 * np.pi / wavelength * np.stack([np.cos(angle), np.sin(angle)], -1)
        phase = rng.uniform(0, 2 * np.pi, 32)

        def response(move, wave=wave, phase=phase):
            image = np.cos((grid(3) @ move) @ wave.T + phase)  # the image at move^-1 x
            return np.einsum("kdx,xi->kdi", kernels, image)

        still = response(np.eye(2))
        worst = 0.0
        for move, matrix in cases:
            expected = np.einsum("de,kei->kdi", matrix, still)
            difference = response(move) - expected
            worst = max(worst, np.sqrt((difference**2).mean() / (expected**2).mean()))
        errors.append(worst)
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.1


def _lift(field):
    basis = steerable_basis(Trivial(), field, cutoff=3.0)
    return np.concatenate([basis, np.zeros((8 - len(basis), *basis.shape[1:]))])[:, :, 0].reshape(
        8, field.dimension, 9
    )


@pytest.mark.parametrize(
    ("name", "factor", "lifting"),
    [
        ("c2", 0.707, 0.707),
        ("c4", 0.612, 0.612),
        ("c8", 0.468, 0.468),
        ("c16", 0.342, 0.331),
        ("d2", 0.5, 0.5),
        ("d4", 0.433, 0.433),
        ("d8", 0.331, 0.331),
        ("d16", 0.242, 0.234),
    ],
)
def test_published_scale(name, factor, lifting):
    """Against the factors measured on a basis of squared norm |G| for each element."""
    field = parse_group(name)
    root = math.sqrt(field.dimension)
    assert published_gain(field, field) / root == pytest.approx(factor, abs=5e-4)
    assert published_gain(Trivial(), field) / root == pytest.approx(lifting, abs=5e-4)


def test_the_basis_stays_what_it_was():
    """Stored models hold coefficients: a basis that changes would change what they mean."""
    pinned = {"c4": 4.587760852, "d8": 19.360399900, "so2-2": -0.440597799}
    for name, expected in pinned.items():
        basis = steerable_basis(parse_group(name), parse_group(name))
        weights = np.sin(np.arange(basis.size)).reshape(basis.shape)
        assert float((weights * basis).sum()) == pytest.approx(expected, abs=1e-8)


def test_building_is_fast():
    steerable_basis.cache_clear()
    start = time.process_time()
    for name in ("c16", "d8", "so2-3"):
        steerable_basis(parse_group(name), parse_group(name))
    assert time.process_time() - start < 20


@pytest.mark.parametrize("name", ["c4", "c8", "d4", "d16", "so2-2"])
@pytest.mark.parametrize("standardise", [True, False])
def test_a_steerable_convolution_is_a_parametrised_conv(name, standardise, float64):
    field = parse_group(name)
    conv = eq.steerable_conv(field, field, 3, 2, standardise=standardise)
    assert isinstance(conv, nn.Conv2d)
    assert parametrize.type_before_parametrizations(conv) is nn.Conv2d
    elements = len(steerable_basis(field, field))
    shapes = {name: tuple(p.shape) for name, p in conv.named_parameters()}
    assert shapes == {
        "parametrizations.weight.original": (2, 3, elements),
        "parametrizations.bias.original": (2,),
    }
    assert conv.weight.shape == (2 * field.dimension, 3 * field.dimension, 3, 3)
    assert conv.bias.shape == (2 * field.dimension,)
    assert set(conv.state_dict()) == set(shapes)


def test_expansion_standardises_the_whole_layer(float64):
    field = parse_group("d4")
    conv = eq.steerable_conv(field, field, 3, 2)
    step = conv.parametrizations.weight[0]
    raw = conv.parametrizations.weight.original.detach()
    centred = (raw - raw.mean()) / (raw.std(correction=0) + 1e-5)
    basis = torch.tensor(steerable_basis(field, field))
    by_hand = torch.einsum("oin,ndehw->odiehw", centred, basis).reshape(conv.weight.shape)
    torch.testing.assert_close(conv.weight, math.sqrt(1.5) * by_hand)
    torch.testing.assert_close(step(7 * raw + 3), conv.weight, atol=2e-4, rtol=0)
    plain = eq.steerable_conv(field, field, 30, 20, standardise=False)
    assert plain.weight.square().sum((1, 2, 3)).mean().item() == pytest.approx(1, rel=0.1)
    unit = eq.steerable_conv(field, field, 30, 20, scale="fan-in")
    assert unit.weight.square().sum((1, 2, 3)).mean().item() == pytest.approx(1, rel=0.01)


@pytest.mark.parametrize("standardise", [True, False])
@pytest.mark.parametrize("name", ["d4", "so2-2"])
def test_gradients_pull_back_linearly(name, standardise, float64):
    field = parse_group(name)
    conv = eq.steerable_conv(field, field, 3, 2, standardise=standardise)
    step, raw = conv.parametrizations.weight[0], conv.parametrizations.weight.original
    gradients = torch.randn(5, *conv.weight.shape)
    expected = [torch.autograd.grad(conv.weight, raw, g)[0] for g in gradients]
    torch.testing.assert_close(step.pullback(raw.detach(), gradients)[0], torch.stack(expected))
    coefficients = torch.randn_like(raw)
    left = (step.expand(coefficients) * gradients[0]).sum()
    torch.testing.assert_close(left, (coefficients * step.project(gradients[0])).sum())


def test_stored_and_assigned_weights(float64):
    field = parse_group("c8")
    first, second = (eq.steerable_conv(field, field, 2, 2) for _ in range(2))
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.weight, second.weight)
    third = eq.steerable_conv(field, field, 2, 2, standardise=False)
    third.weight = first.weight.detach()
    third.bias = torch.arange(16.0)
    torch.testing.assert_close(third.weight, first.weight)
    torch.testing.assert_close(third.bias, torch.tensor([3.5] * 8 + [11.5] * 8))
    given = {"parametrizations.weight.original": torch.randn(2, 2, 64)}
    x = torch.randn(1, 16, 4, 4)
    y = torch.func.functional_call(third, given, x)
    third.load_state_dict({**third.state_dict(), **given})
    torch.testing.assert_close(y, third(x))


def test_equal_coefficients_do_not_poison_gradients():
    field = parse_group("c2")
    conv = eq.steerable_conv(field, field, 1, 1)
    with torch.no_grad():
        conv.parametrizations.weight.original.fill_(0.5)
    conv(torch.randn(1, 2, 4, 4)).sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in conv.parameters())


@pytest.mark.parametrize("name", FINITE)
def test_layers_commute_with_the_group(name, float64):
    field = parse_group(name)
    lift = eq.steerable_conv(Trivial(), field, 3, 4)
    bend = nn.Sequential(
        nn.Mish(), eq.EquivariantGroupNorm(field, 4, groups=2), nn.MaxPool2d(2),
        eq.steerable_conv(field, field, 4, 5), eq.EquivariantGroupNorm(field, 5, groups=5),
    )  # fmt: skip
    nn.init.normal_(lift.parametrizations.bias.original)
    nn.init.normal_(bend[3].parametrizations.bias.original)
    x = torch.randn(2, 3, 8, 8)
    flat = eq.GroupMaxPool(field)
    for a in grid_elements(field.group):
        turned = act(x, Trivial(), field.group, a)
        lifted = act(lift(x), field, field.group, a)
        assert relative(lift(turned), lifted) < 1e-12
        y = bend(lift(turned))
        assert relative(y, act(bend(lift(x)), field, field.group, a)) < 1e-12
        pooled = act(flat(bend(lift(x))), Trivial(), field.group, a)
        assert relative(flat(y), pooled) < 1e-12


def test_group_norm_formula():
    field = parse_group("d4")
    x = torch.randn(3, 6 * 8, 5, 5) * 4 + 1
    layer = eq.EquivariantGroupNorm(field, 6, groups=2, affine=True)
    assert [tuple(p.shape) for p in layer.parameters()] == [(6,), (6,)]
    parts = x.view(3, 2, -1)
    expected = (parts - parts.mean(2, keepdim=True)) / (
        parts.var(2, correction=0, keepdim=True) + 1e-5
    ).sqrt()
    torch.testing.assert_close(layer(x), expected.view_as(x), atol=1e-5, rtol=1e-5)
    counts = {9: 1, 19: 1, 55: 5, 6: 1, 13: 1, 39: 3, 4: 1, 27: 3, 3: 1, 64: 8}
    assert {c: eq.norm_groups(c) for c in counts} == counts


@pytest.mark.parametrize("frequency", [1, 2, 3])
@pytest.mark.parametrize("affine", [False, True])
def test_iid_norm_commutes_with_any_rotation(frequency, affine):
    field = Irreps(frequency)
    layer = fourier.IIDInstanceNorm(field, 5, affine=affine)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(2, 5 * field.dimension, 6, 6) * 3 + 1
    for angle in (0.1, 1.0, 2.5, 4.4):
        turned = layer(turn_fields(x, field.matrix(angle)))
        assert relative(turned, turn_fields(layer(x), field.matrix(angle))) < 1e-6


def test_iid_norm_formula():
    x = torch.randn(3, 4 * 5, 6, 6) * 3 + 1
    z = x.view(3, 4, 5, 36).clone()
    z[:, :, 0] -= z[:, :, 0].mean(-1, keepdim=True)
    variance = z.square().sum(2).mean(-1) / 5
    expected = z / (variance + 1e-5).sqrt()[:, :, None, None]
    torch.testing.assert_close(fourier.IIDInstanceNorm(Irreps(2), 4)(x), expected.view_as(x))


@pytest.mark.parametrize(
    ("frequency", "samples", "stated"),
    [(1, 16, 6e-4), (2, 16, 3e-3), (3, 16, 1e-2), (1, 64, 9e-6), (2, 64, 5e-5), (3, 64, 1e-4)],
)
def test_fourier_nonlinearity_error(frequency, samples, stated, float64):
    torch.manual_seed(0)
    field = Irreps(frequency)
    layer = fourier.FourierNonlinearity(field, nn.ELU(), samples=samples)
    x = torch.randn(4, 16 * field.dimension, 4, 4)

    def error(angle: float) -> float:
        turned = layer(turn_fields(x, field.matrix(angle)))
        expected = turn_fields(layer(x), field.matrix(angle))
        return float((turned - expected).norm() / expected.norm())

    assert max(error(2 * math.pi * k / samples) for k in range(samples)) < 1e-13
    worst = max(error(angle) for angle in np.random.default_rng(0).uniform(0, 6.28, 16))
    assert stated / 10 < worst < 2 * stated


def test_fourier_nonlinearity_is_pointwise_without_frequencies():
    layer = fourier.FourierNonlinearity(Irreps(0), nn.ELU())
    x = torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(layer(x), F.elu(x))
    with pytest.raises(ValueError, match="need as many samples"):
        fourier.FourierNonlinearity(Irreps(8), nn.ELU())


def test_blur_and_mask(float64):
    blur, mask = fourier.BlurPool(), fourier.DiscMask((9, 9))
    assert not list(blur.parameters()) and not list(mask.parameters())
    assert not blur.state_dict() and not mask.state_dict()
    x = torch.randn(2, 3, 9, 9)
    assert blur(x).shape == (2, 3, 5, 5) and blur(x[:0]).shape == (0, 3, 5, 5)
    torch.testing.assert_close(blur(torch.ones(1, 1, 9, 9))[0, 0, 1:-1, 1:-1], torch.ones(3, 3))
    torch.testing.assert_close(blur(x.rot90(1, (2, 3))), blur(x).rot90(1, (2, 3)))
    assert mask.mask[4, 0] == 1 and mask.mask[0, 0] < 0.1
    assert torch.equal(mask.mask, mask.mask.rot90()) and torch.equal(mask.mask, mask.mask.T)
    assert fourier.DiscMask((8, 12)).mask.shape == (8, 12)


@pytest.mark.parametrize("name", ["c2", "c4", "c6", "d4"])
def test_group_pool_is_the_maximum_and_ties_share(name):
    field = parse_group(name)
    n = field.dimension
    x = torch.randn(2, 3 * n, 4, 4, dtype=torch.float64, requires_grad=True)
    pooled = eq.GroupMaxPool(field)(x)
    assert torch.equal(pooled, x.view(2, 3, n, 4, 4).amax(2))
    same = torch.zeros(1, n, 1, 1, requires_grad=True)
    eq.GroupMaxPool(field)(same).sum().backward()
    assert same.grad is not None
    assert float(same.grad.sum()) == 1 and bool((same.grad > 0).all())
    if n & (n - 1) == 0:
        assert bool((same.grad == 1 / n).all())


@pytest.mark.slow
def test_group_pool_keeps_its_gradient_when_compiled_in_bfloat16():
    # Behind a norm, the compiler computes the entries anew in float32: none equals the maximum.
    field = parse_group("c4")
    pool = eq.GroupMaxPool(field)
    head = torch.randn(10, 16, dtype=torch.bfloat16)

    def loss(x):
        y = pool(group_norm(F.mish(x), None, None, None, None, 4, 1e-5, 1))
        y = F.adaptive_avg_pool2d(y, 2).flatten(1)
        return F.linear(y, head).float().logsumexp(1).sum()

    torch._dynamo.reset()
    x = torch.randn(4, 16, 4, 4, dtype=torch.bfloat16, requires_grad=True)
    (found,) = torch.autograd.grad(torch.compile(loss, dynamic=False)(x), x)
    (wanted,) = torch.autograd.grad(loss(x), x)
    assert torch.isfinite(found).all()
    assert relative(found.float(), wanted.float()) < 0.1
