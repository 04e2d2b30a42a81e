"""Hölzl et al. (2023): equivariant networks."""

from __future__ import annotations

from functools import partial
from typing import Any

from sfumato.reproduce.papers.common import row
from sfumato.reproduce.row import PLD, Paper

_row = partial(row, "equivariant")


_TUNED = PLD | {
    "privacy.tuned": "the validation accuracy of Equivariant-ResNet-9 with D4 on 5 000 of "
    "CIFAR-10's 50 000 training images in 21 runs at epsilon 2 with a sixteenth or a "
    "thirty-second of batch and noise: rates of 1, 1.5, 2, 4 and 8, constant and falling to "
    "zero, C of 0.1, 0.5 and 2, normalised and not, 2000, 2160 and 3000 steps, a last layer of "
    "zeros; an earlier setting, with batches of 1024, has been tested twice",
    "privacy.clipping": "normalised",
    "privacy.clip": 0.1,
    "optimizer.lr": 2.0,
    "training.batch": 2048,
    "training.steps": 2000,
    "training.views": 8,
    "training.clean_view": False,
    "training.test_views": "shifts",
}
"""The settings of `best` for D4 at epsilon 2."""

_SHORTER = PLD | {
    "privacy.tuned": "the validation accuracy of four runs of Equivariant-ResNet-9 at epsilon "
    "2 on 45 000 of CIFAR-10's 50 000 training images: SGD with rates of 4, 8 and 16, and "
    "NAdam with 0.002",
    "privacy.clipping": "normalised",
    "privacy.clip": 0.5,
    "training.batch": 4096,
    "training.steps": 1200,
    "training.clean_view": False,
    "training.average": 0.99,
    "optimizer.lr": 4.0,
}
"""Those for table 3: fewer views in all."""


def paper() -> Paper:
    """The paper with its rows."""
    groups = {
        "c4": 69.57, "c8": 68.97, "c16": 66.31, "d4": 71.86, "d8": 69.04, "d16": 67.68,
        "so2-3": 45.65, "so2-2": None, "so2-1": None,
    }  # fmt: skip
    notes = {
        "d4": "as published 71M views, which took its authors 5.8 hours of an A100",
        "so2-3": "309k parameters are those of frequency 3; the released norm was faulty for SO(2)",
    }
    # The other groups take over the settings of D4. Those that reached their number, and those of
    # order 16 and 32, which cost two to four times as much for each view, have half the views and
    # three quarters of the steps.
    shorter_groups = _TUNED | {"training.views": 4, "training.steps": 1500}
    halved = (
        "One run of one setting, that of D4 with half of its views and three quarters of its steps "
        "to save time; D4 reaches its number with all of them. The accuracy on training batches "
        "still rises by {} points in the last 150 steps. Neither the full length nor rates of this "
        "group's own were tried."
    )
    missed = {"c8": halved.format("0.9"), "d8": halved.format("0.4")}
    all_of_d4 = ("d4", "c4")
    rows = [
        _row(
            "table 4", f"eq-resnet9-{g}-cifar10-eps2", value,
            notes.get(g, ""), best=_TUNED if g in all_of_d4 else shorter_groups,
            missed=missed.get(g, ""),
        )
        for g, value in groups.items()
    ]  # fmt: skip
    rows.append(_row("table 4", "wrn-40-4-cifar10-eps2", 62.6, "De et al. report 65.9"))
    inside: dict[str, Any] = {"measures": ("calibration", "sparsity")}
    lower = "published: a Brier score about 27 % below that of the conventional network"
    rows += [
        _row("table 3", "eq-resnet9-d4-cifar10-eps8", None, lower, best=_SHORTER, **inside),
        _row("table 3", "resnet9-width64-cifar10-eps8", None, best=_SHORTER, **inside),
    ]
    rows += [
        _row("table 6", f"{model}-cifar10-eps{eps}", None)
        for model in ("eq-resnet9-d4", "wrn-40-4")
        for eps in (1, 3, 4, 6, 8)
        if (model, eps) != ("eq-resnet9-d4", 8)
    ]
    rows += [
        _row("table 1", "eq-resnet9-d4-cifar100-eps2", None),
        _row("table 1", "eq-resnet9-d4-cifar100-eps8", None, "over 7 points above WRN-40-4"),
        _row("table 1", "wrn-40-4-cifar100-eps8", None),
        _row("table 2", "eq-resnet9-d4-tiny-imagenet-eps8", 34.1),
        _row("table 2", "wrn-40-4-tiny-imagenet-eps8", 27.8),
        _row("table 2", "eq-wrn-40-1-tiny-imagenet-eps8", 28.1),
        _row("table 2", "eq-resnet9-d4-imagenette-eps8", None),
        _row("table 2", "wrn-40-4-imagenette-eps8", None),
    ]
    sweeps = {
        "figure 2": [f"eq-resnet9-d4-width{n}" for n in (8, 32, 64)]
        + [f"resnet9-width{n}" for n in (8, 16, 32)],
        "figure 4": [f"eq-resnet9-d4-b{n}" for n in (256, 512, 1024, 2048, 4096)]
        + [f"wrn-16-4-b{n}" for n in (256, 1024, 4096)],
        "figure 5": [f"eq-resnet9-d4-k{n}" for n in (1, 2, 8, 16, 32)],
    }
    for source, names in sweeps.items():
        rows += [_row(source, f"{name}-cifar10-eps8", None) for name in names]
    return Paper(
        key="equivariant",
        title="Equivariant differentially private deep learning: why DP-SGD needs sparser models",
        authors="Hölzl et al. (2023)",
        measured="Published accuracies are medians of five runs on the test set. The numbers of "
        "tables 1, 2, 3, 6 and 7 are known only where the text repeats them.",
        rows=tuple(rows),
    )
