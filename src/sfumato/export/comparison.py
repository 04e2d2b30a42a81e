"""The comparison of an exported file with the classifier that it was made from."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from sfumato.data import ImageSet
from sfumato.errors import UserError
from sfumato.export.formats import Runner
from sfumato.training.classifier import Classifier, Description

IMAGES = 100
"""Images that are compared."""

TOLERANCE = 1e-4
"""The most that a probability may differ. Other kernels round sums in float32 otherwise: trained
linear layers on thousands of features differ by up to 3e-6, one with logits of 168 differed by
2.7e-5, and a file that is wrong by far more."""

_BATCHES = (1, 3)
"""Sizes of the first batches, so that a file that takes only one size is found; then the rest."""


def compared_images(description: Description, held_out: ImageSet | None) -> tuple[Tensor, int]:
    """Images to compare on, float32 from 0 to 1, and how many of them are held-out ones.

    Args:
        description: The model's.
        held_out: The run's test images, if they are there; random images make up for the rest.
    """
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(IMAGES, description.channels, *description.size, generator=generator)
    if held_out is None:
        return images, 0
    chosen = np.sort(np.random.default_rng(0).permutation(len(held_out))[:IMAGES])
    found = torch.from_numpy(held_out.take(chosen).images)
    found = found / 255 if found.dtype == torch.uint8 else found
    return torch.cat([found, images])[:IMAGES], len(chosen)


def largest_difference(classifier: Classifier, runner: Runner, images: Tensor) -> float:
    """The largest difference between the probabilities of a classifier and of a file.

    Raises:
        UserError: If a probability is not finite.
    """
    expected = classifier.predict(images)
    sizes = [*_BATCHES, len(images) - sum(_BATCHES)]
    with torch.no_grad():
        found = torch.cat([runner(part.contiguous()).cpu() for part in torch.split(images, sizes)])
    difference = float((found - expected).abs().max())
    if not math.isfinite(difference):
        raise UserError(
            "The model gives probabilities that are not finite: its training diverged, and it is "
            "not exported."
        )
    return difference
