"""Equivariant-ResNet-9 and Equivariant-WRN of Hölzl, Rueckert and Kaissis (2023).

Trainable parameters of Equivariant-ResNet-9 on 3x32x32 images with 10 classes: C4 258 328; C8 and
D4 255 675; C16 and D8 244 397; D16 237 995; SO(2) at frequency 1, 2, 3: 242 378, 250 881, 308 444
(the paper's 309k also counts a fixed mask of 1024 entries, which is a buffer here).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from torch import Tensor, nn

from sfumato import nn as layers
from sfumato.errors import UserError
from sfumato.models._reading import Read, reading
from sfumato.models.registry import register
from sfumato.models.residual import Residual
from sfumato.nn import NormOrder
from sfumato.nn.equivariant import (
    EquivariantGroupNorm,
    GroupMaxPool,
    Restriction,
    Scale,
    norm_groups,
    steerable_conv,
)
from sfumato.nn.fourier import BlurPool, DiscMask, FourierNonlinearity, IIDInstanceNorm
from sfumato.nn.groups import (
    FiniteGroup,
    Irreps,
    Regular,
    Representation,
    Trivial,
    parse_group,
)

PAPER = "Hölzl et al. (2023)"
Field: TypeAlias = Regular | Irreps
Norm = Literal["group", "layer", "instance", "none"]


def field_counts(field: Field, layout: tuple[int, int, int]) -> tuple[int, int, int]:
    """Numbers of fields for the three widths, such that every group has about as many parameters.

    The first two are widths for the group, the third is one for its subgroup of half the order (for
    no symmetry at all after SO(2)); fractions are dropped, as in the paper's counts.
    """
    narrow, middle, wide = layout
    if isinstance(field, Irreps):
        factor, factor_after = math.sqrt(1.5) / field.frequency**2, 1.0
    else:
        order = field.dimension
        factor = math.sqrt(1.5 * order) / order
        factor_after = math.sqrt(1.5 * order / 2) / (order / 2)
    counts = int(narrow * factor), int(middle * factor), int(wide * factor_after)
    return max(counts[0], 1), max(counts[1], 1), max(counts[2], 1)


@dataclass(frozen=True)
class Kit:
    """Factory of the layers of an equivariant network, for one kind of field."""

    field: Field
    blur: bool
    norm_kind: Norm | None
    groups: int
    affine: bool
    activation_name: str
    norm_order: NormOrder
    standardise: bool
    scale: Scale

    def conv(self, into: int, out: int, *, lift: bool = False, skip: bool = False) -> nn.Conv2d:
        """A 3x3 convolution with a bias, or a 1x1 skip convolution without."""
        return steerable_conv(
            Trivial() if lift else self.field,
            self.field,
            into,
            out,
            kernel_size=1 if skip else 3,
            cutoff=2.0 if isinstance(self.field, Irreps) else 3.0,
            bias=not skip,
            standardise=self.standardise and not skip,
            scale=self.scale,
        )

    def norm(self, fields: int) -> nn.Module:
        """The norm: by groups of regular fields, or the i.i.d. instance norm of irreps."""
        kind = self.norm_kind
        if kind == "none":
            return nn.Identity()
        if isinstance(self.field, Irreps):
            if kind in ("group", "layer"):
                raise UserError(
                    f"The norm '{kind}' would break the symmetry of SO(2) fields: choose "
                    "'instance' (the i.i.d. instance norm), 'none', or leave the option out."
                )
            return IIDInstanceNorm(self.field, fields, affine=self.affine)
        counts = {"layer": 1, "instance": fields}
        groups = counts.get(kind or "group", norm_groups(fields, self.groups))
        return EquivariantGroupNorm(self.field, fields, groups=groups, affine=self.affine)

    def normalised(self, fields: int) -> OrderedDict[str, nn.Module]:
        """A norm and an activation, in the order of the network."""
        activation = layers.activation(self.activation_name)
        if isinstance(self.field, Irreps):
            samples = max(16, 4 * self.field.frequency)
            activation = FourierNonlinearity(self.field, activation, samples=samples)
        pair = [("norm", self.norm(fields)), ("activation", activation)]
        return OrderedDict(pair if self.norm_order == "norm-activation" else pair[::-1])

    def pool(self) -> nn.Module:
        """Halve the image: a 2x2 maximum, or a blur in networks that begin with SO(2)."""
        return BlurPool() if self.blur else nn.MaxPool2d(2)

    def block(self, into: int, out: int, *, pool: bool = False, lift: bool = False) -> nn.Module:
        """Convolution, activation and norm, and the pooling of some."""
        parts = OrderedDict[str, nn.Module](conv=self.conv(into, out, lift=lift))
        parts.update(self.normalised(out))
        if pool:
            parts["pool"] = self.pool()
        return nn.Sequential(parts)

    def restricted(self, fields: int) -> tuple[Kit, nn.Module, int]:
        """The kit for the subgroup, the layer that restricts fields to it, and their new number."""
        if isinstance(self.field, Irreps):
            after = Regular(FiniteGroup(1))
            layer: nn.Module = nn.Identity()
        else:
            after = Regular(self.field.group.half())
            layer = Restriction(self.field, after, fields)
        kit = replace(self, field=after)
        return kit, layer, fields * self.field.dimension // after.dimension


class PreactivatedBlock(nn.Module):
    """Two pre-activated convolutions beside a skip path, convolved where the fields change."""

    def __init__(self, kit: Kit, into: int, out: int, *, pool: bool, scaled: bool) -> None:
        super().__init__()
        self.before = nn.Sequential(kit.normalised(into))
        if pool:
            self.before.append(kit.pool())
        self.first = kit.conv(into, out)
        self.between = nn.Sequential(kit.normalised(out))
        self.second = kit.conv(out, out)
        self.skip = kit.conv(into, out, skip=True) if pool or into != out else None
        self.after = kit.norm(out) if scaled else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Add the residual; a convolved skip path starts from the pre-activated input."""
        y = self.before(x)
        skip = x if self.skip is None else self.skip(y)
        out: Tensor = self.after(skip + self.second(self.between(self.first(y))))
        return out


def _start(field: Field, size: tuple[int, int]) -> OrderedDict[str, nn.Module]:
    masked = isinstance(field, Irreps)
    return OrderedDict(mask=DiscMask(size)) if masked else OrderedDict()


def _kit(
    field: Field,
    *,
    norm: Norm | None,
    groups: int,
    affine: bool,
    activation: str | None,
    default: str,
    norm_order: NormOrder,
    standardise: bool,
    scale: Scale,
) -> Kit:
    return Kit(
        field=field,
        blur=isinstance(field, Irreps),
        norm_kind=norm,
        groups=groups,
        affine=affine,
        activation_name=activation or ("elu" if isinstance(field, Irreps) else default),
        norm_order=norm_order,
        standardise=standardise,
        scale=scale,
    )


@register("eq-resnet9", paper=PAPER, minimum=8)
def eq_resnet9(
    *,
    classes: int,
    channels: int,
    size: tuple[int, int],
    group: str = "d4",
    layout: tuple[int, int, int] = (16, 32, 64),
    scaled: bool = True,
    norm_order: NormOrder = "activation-norm",
    norm: Norm | None = None,
    groups: int = 8,
    affine: bool = False,
    activation: str | None = None,
    standardise: bool = True,
    scale: Scale = "published",
    reads: tuple[Read, ...] | None = None,
    grid: int = 2,
    whiten: float = 0.0,
    mirror: bool = False,
    beside: bool = False,
) -> nn.Module:
    """ResNet-9 whose convolutions are equivariant under rotations (C_N, SO(2)) and mirrors (D_N).

    `group` is c4, c8, c16, d4, d8, d16 or another with an even number of rotations, or so2-1,
    so2-2, so2-3 and so on for SO(2) up to that frequency. `layout` gives the widths of a network
    without symmetry, from which the numbers of fields follow; the paper studies (64, 128, 256),
    (32, 64, 128), (16, 32, 64) and (8, 16, 32). From the fourth convolution on the network keeps
    half of the group's rotations (nothing of SO(2)); a maximum over the elements that are left ends
    it. Sizes that 8 divides keep the symmetry of finite groups exact on the grid.

    The norm is by groups of fields (at most `groups`, with more than 3 fields each), and the i.i.d.
    instance norm for SO(2), both without gain and shift unless `affine`. The activation is Mish,
    and ELU on samples of the circle for SO(2). Each sum is normalised once more where `scaled`.
    With `standardise` the coefficients of a layer are standardised; `scale` is that of the result:
    as `published`, or so that outputs have the variance of the inputs (`fan-in`).

    The linear layer sees the channels averaged on a square grid of `grid` by `grid` positions. With
    `reads` it follows these blocks instead of the last one, and what comes behind them is left out:
    it sees all channels of their outputs, normalised over the image, which are more and less
    abstract. `wavelets` are the scattering coefficients of the grey image, as scatternet has them.
    `whiten` is the power of whitening these channels, from 0 for none to 1, by statistics of drawn
    images. With `mirror` it sees the mean of an image's channels and of its mirror image's. With
    `beside` it sees those of a second network too, whose initial weights `start.beside` names.
    """
    field = parse_group(group)
    kit = _kit(
        field,
        norm=norm,
        groups=groups,
        affine=affine,
        activation=activation,
        default="mish",
        norm_order=norm_order,
        standardise=standardise,
        scale=scale,
    )

    counts = field_counts(field, layout)
    if reads is not None:
        sides = {name: _sides(size, halvings, kit.blur) for name, halvings in _HALVED.items()}
        networks = [
            (_start(field, size), _blocks(kit, channels, counts, scaled=scaled))
            for _ in range(1 + beside)
        ]
        return reading(
            networks, reads, sides, classes=classes, size=size, grid=grid, whiten=whiten,
            mirror=mirror,
        )  # fmt: skip
    if whiten or mirror or beside:
        option = "whiten" if whiten else "mirror" if mirror else "beside"
        raise UserError(f"The option '{option}' acts on what 'reads' names: give that option too.")
    parts = _start(field, size)
    for name, block, kind, fields in _blocks(kit, channels, counts, scaled=scaled):
        parts[name], features = block, fields * kind.dimension
    parts["pool"] = nn.AdaptiveAvgPool2d(grid)
    parts["flatten"] = nn.Flatten()
    parts["head"] = nn.Linear(features * grid**2, classes)
    return nn.Sequential(parts)


_HALVED = {"conv1": 0, "conv2": 1, "res1": 1, "conv3": 2, "conv4": 3, "res2": 3}
"""Number of times that images are halved up to the end of each block."""


def _sides(size: tuple[int, int], halvings: int, blur: bool) -> tuple[int, int]:
    """Height and width after some halvings: a blur rounds up, a maximum down."""
    height, width = size
    for _ in range(halvings):
        height, width = ((side + blur) // 2 for side in (height, width))
    return height, width


def _blocks(
    kit: Kit, channels: int, counts: tuple[int, int, int], *, scaled: bool
) -> Iterator[tuple[str, nn.Module, Representation, int]]:
    """The blocks of Equivariant-ResNet-9 in order, with their names and the fields they return."""

    def residual(kit: Kit, fields: int) -> Residual:
        body = nn.Sequential(kit.block(fields, fields), kit.block(fields, fields))
        return Residual(body, kit.norm(fields) if scaled else nn.Identity())

    narrow, middle, wide = counts
    after, restriction, restricted = kit.restricted(wide)
    assert isinstance(after.field, Regular)
    before, behind = kit.field, after.field
    yield "conv1", kit.block(channels, narrow, lift=True), before, narrow
    yield "conv2", kit.block(narrow, middle, pool=True), before, middle
    yield "res1", residual(kit, middle), before, middle
    yield "conv3", kit.block(middle, wide, pool=True), before, wide
    yield "restrict", restriction, behind, restricted
    yield "conv4", after.block(restricted, wide, pool=True), behind, wide
    yield "res2", residual(after, wide), behind, wide
    yield "group_pool", GroupMaxPool(behind), Trivial(), wide


_PUBLISHED: dict[str, str | None] = {
    "c4": "258k",
    "c8": "256k",
    "c16": "244k",
    "d4": "256k",
    "d8": "244k",
    "d16": "238k",
    "so2-1": None,
    "so2-2": None,
    "so2-3": "309k",
}
for _group, _count in _PUBLISHED.items():
    register(
        f"eq-resnet9-{_group}", paper=PAPER, parameters=_count, minimum=8, preset={"group": _group}
    )(eq_resnet9)


@register("eq-wrn-40-1", paper=PAPER, minimum=4, preset={"depth": 40, "width": 1})
@register("eq-wrn-{depth}-{width}", paper=PAPER, minimum=4)
def eq_wrn(
    *,
    classes: int,
    channels: int,
    size: tuple[int, int],
    depth: int = 40,
    width: int = 1,
    group: str = "d4",
    scaled: bool = False,
    norm_order: NormOrder = "activation-norm",
    norm: Norm | None = None,
    groups: int = 8,
    affine: bool = False,
    activation: str | None = None,
    standardise: bool = True,
    scale: Scale = "fan-in",
) -> nn.Module:
    """A wide residual network of equivariant convolutions: eq-wrn-depth-width.

    Three stages of (depth - 4) / 6 pre-activated blocks, with fields for widths of 16, 32 and 64
    times `width`; the last stage keeps half of the group's rotations (nothing of SO(2)). Images are
    halved by pooling, because a strided convolution is not equivariant. Options as for eq-resnet9;
    the activation is ReLU (ELU for SO(2)).
    """
    if depth < 10 or (depth - 4) % 6:
        raise UserError(
            f"A wide residual network cannot have depth {depth}: "
            "choose 10, 16, 22, 28, 34, 40 or another number of the form 6n + 4."
        )
    if width < 1:
        raise UserError("A wide residual network needs a width factor of at least 1.")
    field = parse_group(group)
    kit = _kit(
        field,
        norm=norm,
        groups=groups,
        affine=affine,
        activation=activation,
        default="relu",
        norm_order=norm_order,
        standardise=standardise,
        scale=scale,
    )

    def stage(kit: Kit, into: int, out: int, *, pool: bool) -> nn.Sequential:
        blocks = [PreactivatedBlock(kit, into, out, pool=pool, scaled=scaled)]
        for _ in range((depth - 4) // 6 - 1):
            blocks.append(PreactivatedBlock(kit, out, out, pool=False, scaled=scaled))
        return nn.Sequential(*blocks)

    first = field_counts(field, (16, 32, 64))[0]
    narrow, middle, wide = field_counts(field, (16 * width, 32 * width, 64 * width))
    after, restriction, restricted = kit.restricted(middle)
    assert isinstance(after.field, Regular)
    parts = _start(field, size)
    parts["lift"] = kit.conv(channels, first, lift=True)
    parts["stage1"] = stage(kit, first, narrow, pool=False)
    parts["stage2"] = stage(kit, narrow, middle, pool=True)
    parts["restrict"] = restriction
    parts["stage3"] = stage(after, restricted, wide, pool=True)
    parts["last"] = nn.Sequential(after.normalised(wide))
    parts["group_pool"] = GroupMaxPool(after.field)
    parts["pool"] = nn.AdaptiveAvgPool2d(1)
    parts["flatten"] = nn.Flatten()
    parts["head"] = nn.Linear(wide, classes)
    return nn.Sequential(parts)
