"""The comparison of an exported file with the classifier that it was made from."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sfumato.data import ImageSet
from sfumato.errors import UserError
from sfumato.export.formats import Runner
from sfumato.training.classifier import Classifier, Description

IMAGES = 100
"""Images that are compared."""

_TOLERANCE, _LOGIT = 1e-5, 10.0
"""The most that a probability may differ where no logit is above the second number."""

_MOST = 1e-3
"""The most that a probability may differ, however large logits are."""

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


@dataclass(frozen=True)
class Agreement:
    """The comparison of a file with its classifier.

    Attributes:
        difference: The largest difference of a probability.
        allowed: The most that rounding explains: 1e-5 up to logits of 10, and in proportion to the
            largest beyond, but at most 1e-3. A sum in float32 is rounded in proportion to its
            terms, and another order of summation rounds otherwise.
    """

    difference: float
    allowed: float

    @property
    def close(self) -> bool:
        """Tell whether the file gives the classifier's probabilities."""
        return self.difference <= self.allowed


def compare(classifier: Classifier, runner: Runner, images: Tensor) -> Agreement:
    """Compare the probabilities of a classifier with those of a file.

    Raises:
        UserError: If a probability is not finite.
    """
    logits = classifier.logits(images)
    expected = logits.softmax(1)
    sizes = [*_BATCHES, len(images) - sum(_BATCHES)]
    with torch.no_grad():
        found = torch.cat([runner(part.contiguous()).cpu() for part in torch.split(images, sizes)])
    difference = float((found - expected).abs().max())
    if not math.isfinite(difference):
        raise UserError(
            "The model gives probabilities that are not finite: its training diverged, and it is "
            "not exported."
        )
    largest = float(logits.abs().max())
    return Agreement(difference, min(_MOST, _TOLERANCE * max(1.0, largest / _LOGIT)))
