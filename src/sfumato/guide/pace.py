"""The time that training will take on this machine, from a few passes over random images."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F

from sfumato.data import Dataset, ImageSet, ImageStore
from sfumato.data.catalogue import DRAWN
from sfumato.privacy.numerics.randomness import Randomness
from sfumato.recipe import Recipe
from sfumato.training import setup
from sfumato.training.drawn_images import images_at_once
from sfumato.training.initial.frozen_features import frozen_features

_ROWS = 8
"""Images of a timed pass."""

_CHECKS = 300
"""Views that take as long as the checks before the first step; 290 to 320 were measured."""

_STEP = 0.02
"""Seconds of a step beside its views: noise, sums and the ledger. 0.02 to 0.03 were measured."""


@dataclass(frozen=True)
class Pace:
    """Seconds that a network takes for an image.

    Attributes:
        forward: Of a forward pass.
        both: Of a forward and a backward pass.
        fixed: Whether layers before the trained end run once for each image, not in every step.
    """

    forward: float
    both: float
    fixed: bool

    def seconds(self, *, steps: int, views: float, images: int, held_out: int) -> float:
        """Estimate the seconds of a run.

        Args:
            steps: Number of steps.
            views: Views to process in all of them.
            images: Training images.
            held_out: Images that the result is tested on.
        """
        fixed = _CHECKS * self.both + _STEP * steps + self.forward * held_out
        return fixed + (self.forward * images if self.fixed else self.both * views)


def measure_pace(recipe: Recipe, dataset: Dataset, device: torch.device) -> Pace:
    """Time passes of a recipe's network over random images of a data set's shape.

    A private step takes about as long as an ordinary one. On a GPU steps are compiled later, and
    faster than what is timed here. No image of the data set is looked at.
    """
    # Grey images are shown in three channels to the weights that come with sfumato.
    channels = 3 if recipe.start.source == DRAWN else dataset.channels
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (_ROWS, channels, *dataset.size), dtype=np.uint8)
    part = ImageSet(pixels, np.arange(_ROWS, dtype=np.int64) % len(dataset.classes))
    half = (0.5,) * channels
    probe = Dataset("probe", dataset.classes, part, part, None, half, half)
    model = setup.build_model(recipe, probe, Randomness.from_seed(0)).to(device)
    store = ImageStore(part, mean=half, std=half, device=device)
    fixed = frozen_features(model, store, setup.views(recipe)) is not None
    x = torch.from_numpy(pixels).to(device).float() / 127.5 - 1
    y = torch.from_numpy(part.labels).to(device)

    def forward() -> None:
        with torch.no_grad():
            model(x)

    def both() -> None:
        torch.autograd.backward(F.cross_entropy(model(x), y))

    return Pace(_timed(forward, device) / _ROWS, _timed(both, device) / _ROWS, fixed)


def views_of(recipe: Recipe, dataset: Dataset, batch: float, steps: int) -> float:
    """The views that steps of an expected batch process."""
    t = recipe.training
    images = images_at_once(dataset.train, recipe.data.per_unit)
    return batch * steps * (t.views + t.self_mix) * images


def _timed(work: Callable[[], None], device: torch.device) -> float:
    """Seconds of a call, after one that warms up."""
    work()
    began = _now(device)
    work()
    return _now(device) - began


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
