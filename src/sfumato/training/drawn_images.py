"""The images of the units of privacy that a step draws."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sfumato.data.imageset import ImageSet
from sfumato.data.views import ViewParameters
from sfumato.device_copy import to_device
from sfumato.privacy.numerics.randomness import Randomness
from sfumato.privacy.units.image_units import Units


@dataclass(frozen=True, eq=False)
class DrawnImages:
    """The images of one draw, in the order of its units.

    Attributes:
        images: `(units, slots)` indices of images; those of padding repeat the unit's first.
        there: Mask of the indices that are not padding.
    """

    images: Tensor
    there: Tensor

    @property
    def mask(self) -> Tensor | None:
        """The mask, or None for units of one image in a batch, none of which is padding."""
        return self.there if self.there.shape[1] > 1 else None

    def take(self, positions: Tensor) -> DrawnImages:
        """The images of the units at these positions of the draw."""
        return DrawnImages(self.images[positions], self.there[positions])

    def first(self, count: int) -> DrawnImages:
        """The first `count` images of each unit, padding included."""
        return DrawnImages(self.images[:, :count], self.there[:, :count])

    def to(self, device: torch.device) -> DrawnImages:
        """The same on a device."""
        return DrawnImages(to_device(self.images, device), to_device(self.there, device))

    def parameters_of(self, parameters: ViewParameters, positions: Tensor) -> ViewParameters:
        """Parameters of the views of the units at these positions, from those of all images."""
        slots = torch.arange(self.images.shape[1], device=positions.device)
        every = positions.unsqueeze(1) * len(slots) + slots
        return parameters.take(every.flatten())


def images_at_once(data: ImageSet, most: int) -> int:
    """Images of a unit in a batch, padding included; 1 if every unit is one image."""
    if data.units is None or not len(data):
        return 1
    return min(most, int(np.unique(data.units, return_counts=True)[1].max()))


class UnitImages:
    """Source of the images of drawn units.

    Args:
        data: The training images.
        most: Most images of a unit in a step.
        randomness: Source of the choice among the images of a unit.

    Attributes:
        slots: Images of a unit in a batch, padding included; 1 if every unit is one image.
    """

    def __init__(self, data: ImageSet, most: int, randomness: Randomness) -> None:
        self._units, self._most = None, most
        self._randomness = randomness
        self.slots = images_at_once(data, most)
        if data.units is not None:
            self._units = Units(torch.from_numpy(data.units))

    def of(self, draw: Tensor, step: int) -> DrawnImages:
        """The images of the units of a draw, at most so many of each, chosen for this step."""
        if self._units is None:
            images = draw.unsqueeze(1)
            return DrawnImages(images, torch.ones_like(images, dtype=torch.bool))
        stream = self._randomness.stream(step, "images")
        found = self._units.images(draw, most=self._most, slots=self.slots, stream=stream)
        return DrawnImages(*found)
