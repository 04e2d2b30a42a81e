"""Parts that all contenders share: generated images, the recipe, and the feed of batches.

All get their images from the same feed, and an update has the same batches for all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sfumato import models
from sfumato.bench.cases import Case
from sfumato.data import Dataset, ImageSet, ImageStore
from sfumato.device_copy import to_device
from sfumato.recipe import Recipe, from_dict
from sfumato.training import setup

CLASSES = 10
SIGMA, CLIP, DECAY = 1.0, 1.0, 0.99
_ENOUGH_STEPS = 10_000


class Unsupported(Exception):
    """A contender that is not installed, or that does not support a case."""


@dataclass
class Contender:
    """A prepared contender.

    Attributes:
        step: Takes one whole step.
        how: The method of computation, for the table.
        note: A remark that a reader needs to compare.
        close: Removes temporary files.
        remark: Returns, after the steps, how they were really taken.
        physical: Returns the examples it really processes at once, if that can change by itself.
        synchronise: Waits for its steps, if they do not run on PyTorch's streams.
        model: The model that it runs, for profiles.
    """

    step: Callable[[], object]
    how: str
    note: str = ""
    close: Callable[[], None] = lambda: None
    remark: Callable[[], str] = lambda: ""
    physical: Callable[[], int] | None = None
    synchronise: Callable[[], object] | None = None
    model: nn.Module | None = field(default=None, repr=False)


@functools.lru_cache(maxsize=2)
def generated(image: tuple[int, int, int], examples: int) -> Dataset:
    """A data set of random bytes, for measuring speed only."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (examples, *image), dtype=np.uint8)
    labels = rng.integers(0, CLASSES, examples, dtype=np.int64)
    train = ImageSet(images, labels)
    channels = image[0]
    return Dataset(
        name="generated",
        classes=tuple(str(k) for k in range(CLASSES)),
        train=train,
        test=train.take(np.arange(min(examples, CLASSES))),
        validation=None,
        mean=(0.5,) * channels,
        std=(0.25,) * channels,
    )


def recipe_of(case: Case) -> Recipe:
    """The recipe of a case, with a given sigma, so that no time goes into calibration."""
    normed = {"batchnorm_to": case.batchnorm_to} if case.batchnorm_to else {}
    return from_dict(
        {
            "name": "bench",
            "data": {"name": "generated"},
            "model": {"name": case.model, "options": case.options} | normed,
            "privacy": {
                "noise_multiplier": SIGMA,
                "clip": CLIP,
                "epsilon": 1e5,
                "accountant": "rdp",
            },
            "optimizer": {"lr": 1e-3, "momentum": 0.9},
            "augment": {"crop": 4, "flip": True},
            "training": {
                "batch": case.batch,
                "steps": _ENOUGH_STEPS,
                "log_every": _ENOUGH_STEPS,
                "views": case.views,
                "average": DECAY,
                "physical_batch": case.at_once,
                "precision": case.precision,
                "seed": 0,
            },
        }
    )


def build_model(case: Case, **options: Any) -> nn.Module:
    """A new model of the case, on the CPU."""
    channels, height, width = case.image
    torch.manual_seed(0)
    return models.create(
        case.model,
        classes=CLASSES,
        channels=channels,
        size=(height, width),
        batchnorm_to=case.batchnorm_to,
        **(case.options | options),
    )


class Feed:
    """Feed of batches with their views, as in `sfumato.training.loop`."""

    def __init__(self, case: Case, device: torch.device, *, channels_last: bool = True) -> None:
        self.case, self.device = case, device
        dataset = generated(case.image, case.examples)
        self.store = ImageStore(dataset.train, mean=dataset.mean, std=dataset.std, device=device)
        self.views = setup.views(recipe_of(case))
        self.format = torch.channels_last if channels_last else torch.contiguous_format
        self.generator = torch.Generator().manual_seed(0)

    def draw(self) -> Tensor:
        """Draw exactly the batch's number of different examples, in increasing order."""
        return drawn(self.case, self.generator)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The physical batches of one step: rows, and one label per example."""
        draw, size = self.draw(), self.case.at_once
        parameters = self.views.draw(draw.numel(), self.generator).to(self.device)
        draw = to_device(draw, self.device)
        for start in range(0, draw.numel(), size):
            rows = torch.arange(start, start + size, device=self.device)
            yield self.views.fetch(
                self.store, draw[rows], parameters.take(rows), memory_format=self.format
            )


def drawn(case: Case, generator: torch.Generator) -> Tensor:
    """A draw of exactly the expected batch, so that every step has the same size."""
    chosen = torch.randperm(case.examples, generator=generator)[: case.batch]
    return chosen.sort().values
