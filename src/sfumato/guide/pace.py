"""The time that a recipe will take on this machine, from a few passes over images of zeros."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from sfumato.data import Dataset, ImageSet
from sfumato.data.catalogue import DRAWN
from sfumato.privacy.numerics.randomness import Randomness
from sfumato.recipe import Recipe
from sfumato.training import setup
from sfumato.training.drawn_images import images_at_once
from sfumato.training.initial.frozen_features import features_apply
from sfumato.training.time_estimate import ENGINE, seconds_for

_CHECKS = 300
"""Views that take as long as the checks before the first step, from a few measurements."""

_PASSES, _CHECKED = 11, 256
"""Forward passes over so many images in the checks of fixed layers, from a few measurements."""

_STEP = 0.02
"""Seconds of a step beside its views: noise, sums and the ledger; from a few measurements."""


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
        if self.fixed:
            passed = images + held_out + _PASSES * min(_CHECKED, images)
            return self.forward * passed + _STEP * steps
        return self.both * (views + _CHECKS) + self.forward * held_out + _STEP * steps


def measure_pace(recipe: Recipe, dataset: Dataset, device: torch.device) -> Pace:
    """Time passes of a recipe's network over images of zeros, of a data set's shape.

    On a GPU steps are compiled later, and faster than what is timed here. No image of the data set
    is looked at.
    """
    # Grey images are shown in three channels to the weights that come with sfumato.
    channels = 3 if recipe.start.source in DRAWN else dataset.channels
    shape, half = (channels, *dataset.size), (0.5,) * channels
    part = ImageSet(np.zeros((1, *shape), dtype=np.uint8), np.zeros(1, dtype=np.int64))
    probe = Dataset("probe", dataset.classes, part, part, None, half, half)
    model = setup.build_model(recipe, probe, Randomness.from_seed(0)).to(device)

    def forward(rows: int) -> None:
        with torch.no_grad():
            model(torch.zeros(rows, *shape, device=device))
        _wait_for(device)

    def both(rows: int) -> None:
        loss = model(torch.zeros(rows, *shape, device=device)).square().sum()
        trained = [p for p in model.parameters() if p.requires_grad]
        torch.autograd.grad(loss, trained, allow_unused=True)
        _wait_for(device)

    fixed = features_apply(model, setup.views(recipe))
    return Pace(seconds_for(forward, 1), ENGINE * seconds_for(both, 1), fixed)


def views_of(recipe: Recipe, dataset: Dataset, batch: float, steps: int) -> float:
    """The views that steps of an expected batch process."""
    t = recipe.training
    images = images_at_once(dataset.train, recipe.data.per_unit)
    return batch * steps * (t.views + t.self_mix) * images


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
