"""Settings that the rows of several papers share."""

from __future__ import annotations

from typing import Any

from sfumato.reproduce.row import PLD, Row

NOT_PRIVATE = {"privacy.enabled": False}
"""Training without clipping and noise."""

DE: dict[str, Any] = PLD | {
    "data.validation": 0.0,
    "privacy.clipping": "normalised",
    "privacy.clip": 1.0,
    "optimizer.name": "sgd",
    "optimizer.lr": 2.0,
    "optimizer.momentum": 0.0,
    "optimizer.schedule": "constant",
    "augment.crop": 4,
    "augment.flip": True,
    "training.batch": 4096,
    "training.views": 16,
    "training.average": 0.9999,
    "training.test_views": "flip",
}
"""Training as by De et al. (2022), with noise by PLD and mirror images at test time."""

LARGER: dict[str, Any] = PLD | {
    "privacy.tuned": "the validation accuracy half way of three runs of ScaleResNet-9 at "
    "epsilon 7.42 on 45 000 of CIFAR-10's 50 000 training images, with rates of 0.001, 0.002 "
    "and 0.004",
    "data.validation": 0.0,
    "training.batch": 4096,
    "training.average": 0.98,
    "training.test_views": "flip",
    "optimizer.schedule": "cosine",
    "optimizer.lr": 2e-3,
}
"""NAdam with batches of 4096, a rate that falls to zero, averaged weights, noise by PLD."""


def smaller_images(size: int) -> dict[str, Any]:
    """Settings for Imagenette: images of `size` pixels, four views each, a rate that falls."""
    return PLD | {
        "privacy.tuned": "the validation accuracy of two runs of ScaleResNet-9 at epsilon 7.42 on "
        "8 522 of Imagenette's 9 469 training images, with two views of 64 pixels: NAdam with a "
        "rate of 0.001, and SGD with normalised clipping and a rate of 2",
        "privacy.clip": 1.5,
        "data.size": size,
        "data.validation": 0.0,
        "optimizer.name": "nadam",
        "optimizer.lr": 1e-3,
        "optimizer.momentum": 0.0,
        "optimizer.weight_decay": 0.0,
        "optimizer.schedule": "cosine",
        "augment.crop": size // 8,
        "augment.flip": True,
        "training.batch": 1024,
        "training.epochs": 50.0,
        "training.views": 4,
        "training.average": 0.99,
        "training.test_views": "flip",
    }


def row(
    paper: str, source: str, recipe: str, published: float | None, note: str = "", **more: Any
) -> Row:
    """A row named after its recipe, unless `name` is given."""
    return Row(
        paper=paper,
        name=more.pop("name", recipe),
        recipe=f"{paper}/{recipe}",
        source=source,
        published=published,
        note=note,
        **more,
    )
