"""Klause et al. (2022): residual networks with scale normalisation."""

from __future__ import annotations

from functools import partial
from typing import Any

from sfumato.reproduce.papers.common import DE, LARGER, row, smaller_images
from sfumato.reproduce.row import Paper

_row = partial(row, "scale-norm")

_TINY = LARGER | {
    "privacy.tuned": "reason, before any run: the settings for CIFAR-10, with as many images in "
    "all as 30 epochs have",
    "privacy.delta": 9e-6,
    "augment.crop": 8,
    "augment.flip": True,
    "training.epochs": 30.0,
}
"""Fewer and larger batches, for Tiny ImageNet, with no images held out: then the paper's delta of
1e-5 is one over their number, which is refused."""


def paper() -> Paper:
    """The paper with its rows."""
    rows = []
    table = (
        ("cifar10", "2.89", 65.6, 65.0),
        ("cifar10", "7.42", 71.8, 71.4),
        ("cifar10", "9.88", 73.0, 72.4),
        ("imagenette", "2.89", 56.6, 55.5),
        ("imagenette", "7.42", 64.8, 63.8),
        ("imagenette", "9.88", 67.1, 65.0),
        ("tiny-imagenet", "5", 15.2, 14.2),
        ("tiny-imagenet", "10", 19.4, 18.7),
        ("tiny-imagenet", "70", 25.8, 24.7),
    )
    for data, eps, scaled, plain in table:
        best = {"cifar10": LARGER, "imagenette": smaller_images(64), "tiny-imagenet": _TINY}[data]
        inside = ("residuals", "curvature") if (data, eps) == ("cifar10", "7.42") else ()
        for model, value, note in (
            ("scale-resnet9", scaled, "published, at no stated epsilon: Hessian trace 6637.3, "
             "largest eigenvalue 2654.2"),
            ("resnet9", plain, "published: 9045.7 and 3920.4"),
        ):  # fmt: skip
            recipe = f"{model}-{data}-eps{eps}"
            more: dict[str, Any] = {"best": best, "measures": inside}
            rows.append(_row("table 1", recipe, value, note if inside else "", **more))
    doubt = "an independent replication reached 77.4 to 78.2 (Bao and Bindschaedler, 2024)"
    large = DE | {"training.steps": 2000, "training.test_views": "shifts"}
    rows.append(_row("table 2", "scale-wrn-16-4-cifar10-eps8", 82.5, doubt, best=large))
    shorter = (
        "De et al. (2022), whose training this is, report 79.5 as the median for this network and "
        "epsilon, and re-runs by others had 77.8 to 78.7; 81.25 is the authors' alone. Ours is one "
        "run of 2000 steps in 25 minutes, where theirs take some 3000; its accuracy on training "
        "batches still rises by 1.4 points in the last 250. After dead leaves the same network has "
        "83.25 in as many minutes. Other rates, batches and numbers of steps were not tried."
    )
    rows.append(_row("table 2", "wrn-16-4-cifar10-eps8", 81.25, best=large, missed=shorter))
    deep = smaller_images(128)
    rows.append(_row("table 3", "scale-resnet50-imagenette-eps7.42", 44.2, best=deep))
    rows.append(_row("table 3", "resnet50-imagenette-eps7.42", 43.0, best=deep))
    return Paper(
        key="scale-norm",
        title="Differentially private training of residual networks with scale normalisation",
        authors="Klause et al. (2022)",
        measured="Published accuracies are medians of three runs on the test set.",
        rows=tuple(rows),
    )
