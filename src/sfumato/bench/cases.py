"""Cases to measure: model, views per example, rows at once and precision; and lists of these."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sfumato.errors import UserError, nearest

CONTENDERS = {
    "sfumato": "sfumato",
    "not-private": "not private",
    "not-private-compiled": "not private, compiled",
    "opacus": "Opacus hooks",
    "opacus-ghost": "Opacus ghost",
    "vmap": "torch.func vmap",
    "jax-privacy": "JAX-Privacy",
}
"""The contenders, with their names in tables."""

ORDER = ("not-private", "not-private-compiled", "sfumato", *list(CONTENDERS)[3:])
"""The order of contenders: baselines first, so that each row can be compared as it comes in."""

PHYSICAL = 4
"""Physical batches per update."""

PRECISIONS = ("bfloat16", "float32")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One comparison, in which all contenders do the same work.

    Attributes:
        model: The model's name.
        views: K, views per example.
        rows: Rows of a physical batch: examples times views.
        precision: `bfloat16` or `float32`.
        physical: Physical batches per update.
        examples: Training examples in the generated data set.
        suite: `main`; `foreign` for networks from outside, and `unusual` for those of them whose
            speed has no target beside training without privacy; `large` for an update of many
            physical batches, measured for its memory; or the quantity that a scaling curve varies:
            `rows`, `views` or `width`.
        options: The model's options.
        size: Side of the images; None for that of the model's own.
    """

    model: str
    views: int = 1
    rows: int = 2048
    precision: str = "float32"
    physical: int = PHYSICAL
    examples: int = 50_000
    suite: str = "main"
    options: dict[str, Any] = field(default_factory=dict)
    size: int | None = None

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise UserError(
                f"--precision {self.precision}: give bfloat16 or float32."
                f"{nearest(self.precision, PRECISIONS)}"
            )
        if self.views < 1 or self.physical < 1 or self.rows < 1:
            raise UserError("Views, rows and physical batches must be whole numbers from 1 on.")
        if self.rows % self.views:
            raise UserError(
                f"--rows {self.rows} cannot be split into examples of {self.views} views each: "
                f"give a multiple of {self.views}."
            )
        if self.batch > self.examples:
            raise UserError(
                f"{self.physical} physical batches of {self.rows} rows are {self.batch} examples "
                f"of {self.views} views, more than the {self.examples} that are generated: give "
                "fewer --rows."
            )

    @property
    def at_once(self) -> int:
        """Examples of a physical batch."""
        return self.rows // self.views

    @property
    def batch(self) -> int:
        """Examples of an update."""
        return self.at_once * self.physical

    @property
    def views_per_step(self) -> int:
        """Rows processed by an update, the unit of speeds."""
        return self.rows * self.physical

    @property
    def image(self) -> tuple[int, int, int]:
        """Channels, height and width of the images."""
        channels, height, width = image_of(self.model)
        return (channels, self.size or height, self.size or width)

    @property
    def batchnorm_to(self) -> str | None:
        """The layer that replaces BatchNorm in networks from outside."""
        return "groupnorm" if ":" in self.model else None

    @property
    def scaling(self) -> bool:
        """Tell whether it is a point of a scaling curve."""
        return self.suite in ("rows", "views", "width")

    @property
    def name(self) -> str:
        """The model's name in tables, with the size of images if it was chosen."""
        short = self.model.replace("sfumato.bench.", "").replace("_networks:", ":")
        return f"{short}, {self.size} px" if self.size else short

    @property
    def title(self) -> str:
        """A short title."""
        return f"{self.name}, K = {self.views}, {self.rows:,} rows, {self.precision}"

    @property
    def key(self) -> str:
        """A key that equal cases share, including one that was read back from a record."""
        return json.dumps(self.to_dict(), sort_keys=True)

    def split(self, parts: int) -> Case:
        """The same update in `parts` times as many physical batches."""
        if self.at_once % parts:
            raise ValueError(f"{self.at_once} examples cannot be split into {parts} parts")
        return replace(self, rows=self.rows // parts, physical=self.physical * parts)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for the record."""
        found = asdict(self)
        if self.size is None:
            del found["size"]
        return found


def image_of(model: str) -> tuple[int, int, int]:
    """Channels, height and width of the images that a model is measured on."""
    from sfumato import models

    return (3, 32, 32) if ":" in model else models.info(model).input


def grid(
    names: Sequence[str],
    *,
    views: Sequence[int],
    rows: Sequence[int],
    precision: str,
    physical: int = PHYSICAL,
) -> list[Case]:
    """Every model with every K and every number of rows; names are checked."""
    for name in names:
        image_of(name)
    return [
        Case(model=name, views=k, rows=r, precision=precision, physical=physical)
        for name in names
        for r in rows
        for k in views
    ]


def defaults(device: str, precision: str) -> list[Case]:
    """The cases of `sfumato bench` without arguments: about two minutes on two CPU cores."""
    if device == "cuda":
        names = ("wrn-16-4", "resnet9", "scale-resnet9", "eq-resnet9-d4")
        large = Case(model="wrn-16-4", views=16, physical=32, precision=precision, suite="large")
        return [
            *grid(names, views=(1, 4, 16), rows=(2048,), precision=precision),
            *grid(("smoothnet",), views=(1, 4), rows=(2048,), precision=precision),
            large,
        ]
    return [
        Case(model="papernot-1", rows=256, precision=precision),
        Case(model="resnet9", rows=32, physical=2, precision=precision),
    ]


def choose(
    device: str,
    *,
    precision: str,
    names: Sequence[str] = (),
    views: Sequence[int] = (),
    rows: Sequence[int] = (),
    physical: int | None = None,
) -> list[Case]:
    """The requested cases; arguments left open are as in `defaults`."""
    standard = defaults(device, precision)
    if not (names or views or rows or physical):
        return standard
    return grid(
        names or list(dict.fromkeys(c.model for c in standard)),
        views=views or sorted({c.views for c in standard}),
        rows=rows or (2048 if device == "cuda" else 32,),
        precision=precision,
        physical=physical or PHYSICAL,
    )


_OUTSIDE: tuple[tuple[str, dict[str, Any], int, int], ...] = (
    *((f"timm:{name}", {}, 64, 512) for name in ("resnet18", "resnet50", "regnety_002")),
    ("timm:efficientnet_b0", {}, 64, 512),
    ("timm:convnext_atto", {}, 64, 512),
    ("timm:convnext_tiny", {}, 64, 512),
    ("timm:vit_tiny_patch16_224", {"patch_size": 8}, 64, 512),
    ("timm:deit_small_patch16_224", {}, 224, 128),
    ("timm:swin_tiny_patch4_window7_224", {}, 224, 128),
    ("timm:mixer_s32_224", {}, 224, 256),
    *((f"timm:{name}", {}, 160, 256) for name in ("resnet18", "resnet50", "regnety_002")),
    ("timm:efficientnet_b0", {}, 160, 256),
)
"""Networks from outside with their options, image size and rows at once on a GPU."""


def foreign(
    device: str, precision: str, *, names: Sequence[str] = (), views: Sequence[int] = ()
) -> list[Case]:
    """Networks that sfumato does not define: those of timm on a GPU, plain PyTorch on a CPU.

    Args:
        device: Kind of device.
        precision: Precision.
        names: The models to take; all if none.
        views: The views per example to take; all if none.
    """
    every = _foreign(device, precision)
    for option, asked, known in (
        ("--models", names, [case.model for case in every]),
        ("--views", views, [case.views for case in every]),
    ):
        if missing := [one for one in asked if one not in known]:
            raise UserError(
                f"{option} {missing[0]}: --foreign has no such case on {device}."
                f"{nearest(str(missing[0]), [str(one) for one in known])} "
                f"Known: {', '.join(dict.fromkeys(str(one) for one in known))}."
            )
    return [
        case
        for case in every
        if (not names or case.model in names) and (not views or case.views in views)
    ]


def _foreign(device: str, precision: str) -> list[Case]:
    if device == "cuda":
        return [
            Case(
                model=name, views=k, rows=rows, physical=2, precision=precision, examples=2048,
                options=options, size=size, suite="foreign",
            )
            for name, options, size, rows in _OUTSIDE
            for k in (1, 8)
        ]  # fmt: skip
    from sfumato.bench import plain_networks, unusual_networks

    return [
        Case(
            model=f"{networks.__name__}:{name}", rows=32, physical=1, precision=precision,
            suite=suite,
        )
        for networks, suite in ((plain_networks, "foreign"), (unusual_networks, "unusual"))
        for name in networks.NAMES
    ]  # fmt: skip


def default_contenders(device: str) -> list[str]:
    """The contenders that sfumato is measured beside by default."""
    if device == "cuda":
        return ["not-private", "opacus", "opacus-ghost", "vmap", "jax-privacy"]
    return ["not-private", "opacus", "opacus-ghost"]


def scaling(
    device: str, *, model: str | None, rows: int | None, views: int | None, precision: str
) -> list[Case]:
    """Curves over the physical batch, over K and over the width of a wide residual network."""
    large = device == "cuda"
    base = model or ("wrn-16-4" if large else "papernot-1")
    middle = rows or (2048 if large else 256)
    k = views or (16 if large else 4)
    factors = (1 / 8, 1 / 4, 1 / 2, 1, 2, 4)
    over_rows = sorted({max(k, round(middle * f) // k * k) for f in factors})
    cases = [
        Case(model=base, views=k, rows=r, precision=precision, suite="rows") for r in over_rows
    ]
    cases += [
        Case(model=base, views=v, rows=middle, precision=precision, suite="views")
        for v in (1, 2, 4, 8, 16, 32)
        if middle % v == 0
    ]
    depth = match[1] if (match := re.fullmatch(r"wrn-(\d+)-\d+", base)) else "16"
    small = middle if large else 4 * k
    cases += [
        Case(model=f"wrn-{depth}-{w}", views=k, rows=small, precision=precision, suite="width")
        for w in ((1, 2, 4, 8) if large else (1, 2))
    ]
    return cases


def check_contenders(names: Sequence[str]) -> list[str]:
    """The requested contenders, each once, without sfumato itself."""
    for name in names:
        if name not in CONTENDERS:
            raise UserError(
                f"--against {name}: there is no such contender.{nearest(name, CONTENDERS)} "
                f"Known: {', '.join(list(CONTENDERS)[1:])}."
            )
    return [name for name in dict.fromkeys(names) if name != "sfumato"]
