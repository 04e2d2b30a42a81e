"""Papernot et al. (2019): making the shoe fit."""

from __future__ import annotations

from functools import partial
from typing import Any

from sfumato.reproduce.papers.common import NOT_PRIVATE, row
from sfumato.reproduce.row import PLD, Paper, Row

_row = partial(row, "shoe-fit")

_BARE_RATE = 0.107
"""Table 5's rate of SGD without privacy, on Fashion-MNIST with batches of 256."""

_DECAYING: dict[str, Any] = {
    "optimizer.schedule": "cosine",
    "augment.flip": True,
    "training.average": 0.99,
}
"""Improvements without privacy, for Fashion-MNIST; settled by reason, before any run."""

_MIRRORED = _DECAYING | {"training.test_views": "flip"}
"""The same with mirror images at test time too; settled by reason, after runs without them were
tested."""

_SMOOTHED: dict[str, Any] = {"training.average": 0.99, "training.test_views": "flip"}
"""Averaged weights and mirror images at test time, for the public source of all classes; settled by
reason, after a run without them was tested."""


def _equivariant(epochs: float) -> dict[str, Any]:
    """A network that shares its filters among turns, for a public source of few images.

    Settled by reason: the published network fits the images of these sources and knows 18 to 24
    points less of others.
    """
    return _SMOOTHED | {
        "model.name": "eq-resnet9-d4",
        "optimizer.name": "sgd",
        "optimizer.lr": 0.1,
        "optimizer.momentum": 0.9,
        "optimizer.nesterov": True,
        "optimizer.weight_decay": 5e-4,
        "optimizer.warmup": 100,
        "training.epochs": epochs,
    }


_FEWER_STEPS: dict[str, Any] = PLD | {
    "privacy.tuned": "the validation accuracy of five runs on 50 000 of the 60 000 training "
    "images: the published setting, and batches of 2048 for 20 epochs at three rates and with "
    "normalised gradients",
    "training.batch": 2048,
    "training.epochs": 20.0,
    "training.average": 0.98,
    "optimizer.schedule": "cosine",
}
"""Improvements for Adam, found on held-out images."""

_LONGER = _DECAYING | {"training.epochs": 40.0}
"""The same with batches of 1024, for as many epochs as with 256: with the seven that the privacy
budget is for, one run had 87.2 % on the test set."""

_AS_TABLE_5 = "with table 5's rate: at that of the private run ReLU diverges without clipping"


def _capacity() -> list[Row]:
    """Rows of figure 1: networks of several widths."""
    rows = []
    for data in ("mnist", "fashion"):
        for k in (4, 8, 16, 32, 64):
            recipe = f"capacity-k{k}-{data}-eps1.69"
            rows.append(_row("figure 1", recipe, None))
            bare: dict[str, Any] = {
                "name": f"capacity-k{k}-{data}-not-private",
                "changes": NOT_PRIVATE,
            }
            rows.append(_row("figure 1", recipe, None, **bare))
    return rows


def _summary() -> list[Row]:
    """Rows of figures 2 and 3: tanh and ReLU."""
    larger = PLD | {
        "privacy.tuned": "the validation accuracy of two runs on 50 000 of MNIST's 60 000 training "
        "images: batches of 1024 for 40 epochs at a rate of 1, and of 2048 for 60 epochs at 3",
        "training.batch": 2048,
        "training.average": 0.98,
        "optimizer.schedule": "cosine",
        "optimizer.lr": 3.0,
    }
    norms: dict[str, Any] = {"measures": ("activation-norm",)}
    summary = "figures 2 and 3, summary"
    tanh, relu = "tanh-mnist-eps2.93", "relu-mnist-eps2.93"
    without = NOT_PRIVATE | {"optimizer.lr": _BARE_RATE}
    return [
        _row(
            summary, tanh, 98.1, "98.0 as the mean of ten runs in figure 2",
            best=larger, **norms,
        ),
        _row(summary, relu, 96.6, **norms),
        _row(summary, tanh, 99.0, name="tanh-mnist-not-private", changes=NOT_PRIVATE),
        _row(
            summary, relu, 99.0, "a third of the rate: at 0.15 it diverges without clipping",
            name="relu-mnist-not-private", changes=NOT_PRIVATE | {"optimizer.lr": 0.05}, **norms,
        ),
        _row(summary, "relu-b256-fashion-eps2.7", 81.9),
        _row(summary, "relu-b1024-fashion-eps2.7", None, alias="fashion-relu"),
        _row(
            summary, "tanh-b256-fashion-eps2.7", 89.3, _AS_TABLE_5,
            name="tanh-fashion-not-private", changes=without, best=_DECAYING,
        ),
        _row(
            summary, "relu-b256-fashion-eps2.7", 89.4, _AS_TABLE_5,
            name="relu-fashion-not-private", changes=without, best=_DECAYING,
        ),
    ]  # fmt: skip


_MISSED = {
    "source-min-rand-10-cifar100": "With shifted and mirrored images it fits 94 % of the 5 000 "
    "training images and has 76.6 % on others, so it lacks images, not steps; an earlier run, on "
    "2 457 of them, had 70.3 %. Ten random classes are also easy or hard by chance: the paper has "
    "± 4.0 over ten draws. One run of one draw; weight decay and other optimizers were not tried.",
    "source-half-rand-50-cifar100": "The paper does not state its optimizer. Ours, NAdam with a "
    "rate that falls to zero over 30 epochs, fits 82 % of the training images, 24 points more than "
    "of others, so it probably needs something that keeps it from fitting them, such as weight "
    "decay. One run of one draw of classes; the paper has ± 1.4 over ten. Neither other "
    "optimizers nor weight decay were tried.",
    "transfer-half-rand-50-cifar10-eps2.12": "The last layer is limited by what it reads, not by "
    "noise: it has 55.7 % at epsilon 1.04 and 55.4 % here, and 60 % of its own training batches. "
    "Its source misses its number too, by 4.1 points. One run; neither batch nor rate are stated "
    "in the paper, and others than 2000 and 1 were not tried. After all 100 classes a wider "
    "network has 73.2.",
}
"""Why rows miss their numbers, by name."""


def _transfer() -> list[Row]:
    """Rows of tables 3 and 4: transfer from parts of CIFAR-100."""
    rows = []
    transfer = {
        "min-rand-10": (81.0, (44.8, 51.0, 53.7), (50.0, 55.7, 57.6)),
        "half-rand-50": (62.1, (39.4, 54.7, 59.0), (44.3, 56.6, 60.2)),
        "max-100": (54.9, (57.0, 68.4, 71.0), (59.1, 69.5, 72.1)),
    }
    where = "tables 3 and 4"
    ours = "ours, of all classes: what `best` starts from"
    wide = _row(where, "source-wide-cifar100", None, ours)
    rows.append(wide)
    head = PLD | {
        "privacy.tuned": "reason, before any run; the same setting without mirror images at test "
        "time has been tested with three seeds at each epsilon",
        "model.name": "wrn-16-4",
        "privacy.clipping": "normalised",
        "training.batch": 10_000,
        "training.steps": 300,
        "training.test_views": "flip",
        "optimizer.momentum": 0.9,
        "optimizer.schedule": "cosine",
        "optimizer.lr": 4.0,
    }
    narrow = head | {
        "privacy.tuned": "reason, before any run; the same setting of a wider network after all "
        "classes has been tested with three seeds at each epsilon",
        "model.name": "eq-resnet9-d4",
    }
    betters = {
        "min-rand-10": _equivariant(200.0),
        "half-rand-50": _equivariant(60.0),
        "max-100": _SMOOTHED,
    }
    for kind, (source, means, bests) in transfer.items():
        cut = "on the classes of CIFAR-100 it was cut to"
        name = f"source-{kind}-cifar100"
        better = betters[kind]
        donor = _row(where, name, source, cut, missed=_MISSED.get(name, ""), best=better)
        rows.append(donor)
        for eps, mean, best in zip(("0.32", "1.04", "2.12"), means, bests, strict=True):
            note = f"mean of ten runs; the best of them has {best:g}"
            recipe = f"transfer-{kind}-cifar10-eps{eps}"
            start: dict[str, Any] = {"needs": donor, "missed": _MISSED.get(recipe, "")}
            if kind == "max-100":
                start |= {"best_needs": wide, "best": head}
            if kind == "half-rand-50":
                start |= {"best_needs_setting": "best", "best": narrow}
            rows.append(_row(where, recipe, mean, note, **start))
    return rows


def _initialisation_and_optimizer() -> list[Row]:
    """Rows of figures 4 and 5."""
    lucky = "the best of ten MeanVar runs has 7 points more; no budget covers their source"
    first = _row("figure 4", "meanvar-source-cifar10-eps4", None)
    return [
        _row("figure 4", "he-cifar10-eps19.2", 37.0, "at epoch 33; " + lucky),
        first,
        _row(
            "figure 4", "meanvar-cifar10-eps19.2", 44.0, "the best of ten runs",
            needs=first, changes={"start.same_data": True},
        ),
        _row("figure 5", "adam-mnist-eps2.93", None),
        _row("figure 5", "sgd-cifar10-eps8", None),
        _row("figure 5", "adam-cifar10-eps8", None),
    ]  # fmt: skip


def _table_5() -> list[Row]:
    """Rows of table 5: batches and optimizers on Fashion-MNIST."""
    rows = []
    averaged = {"best": PLD | {"training.average": 0.999}}
    table5 = (
        ("tanh", 256, 86.1, 90.3, _BARE_RATE, "85.5 as the mean of ten runs in figure 2"),
        ("tanh", 1024, 85.1, 86.3, 0.368, ""),
        ("adam", 256, 86.0, 90.5, 1.06e-3, ""),
        ("adam", 1024, 85.1, 88.7, 4.32e-3, ""),
    )
    for method, batch, private, bare_accuracy, lr, note in table5:
        recipe = f"{method}-b{batch}-fashion-eps2.7"
        alias = "fashion-tanh" if (method, batch) == ("tanh", 1024) else ""
        tuned = {"best": _FEWER_STEPS} if method == "adam" else averaged
        if (method, batch) == ("adam", 256):
            tuned = {"best": _FEWER_STEPS | {"optimizer.lr": 7.08e-3}}  # That of batches of 1024.
        rows.append(_row("table 5", recipe, private, note, alias=alias, **tuned))
        changes = NOT_PRIVATE | {"optimizer.lr": lr}
        name = f"{method}-b{batch}-fashion-not-private"
        better = _MIRRORED if batch == 256 else _LONGER
        bare: dict[str, Any] = {"name": name, "changes": changes, "best": better}
        rows.append(_row("table 5", recipe, bare_accuracy, **bare))
    return rows


def paper() -> Paper:
    """The paper with its rows."""
    return Paper(
        key="shoe-fit",
        title="Making the shoe fit: architectures, initializations, and tuning for learning with "
        "privacy",
        authors="Papernot et al. (2019)",
        measured="Published accuracies are on the test set. The paper's accountant converted Rényi "
        "divergences to epsilon more loosely than today's: where it states its noise, a run as "
        "published has that noise and spends less than the epsilon printed, and `best` spends all "
        "of it.",
        rows=(
            *_capacity(),
            *_summary(),
            *_transfer(),
            *_initialisation_and_optimizer(),
            *_table_5(),
        ),
    )
