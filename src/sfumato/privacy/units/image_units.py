"""Units of privacy that have several images: which these are, and batches of them.

A unit is what neighbouring data sets differ by: one image, or one person with several. Its gradient
is the mean over its images, which is clipped as one, so that the guarantee is that of a unit
however many images it has.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sfumato.errors import UserError
from sfumato.privacy.checks.batches import check_inputs
from sfumato.privacy.engines.unit_targets import joined
from sfumato.privacy.numerics.randomness import Keystream
from sfumato.privacy.sampling import PhysicalBatch


class Units:
    """The images of each unit.

    Args:
        ids: `(images,)` whole numbers that are equal for images of the same unit.

    Attributes:
        of: The number of each image's unit; units are numbered from 0 by their first images, so
            that units of one image each have the numbers of their images.
        count: Number of units.
        sizes: Number of images of each unit.
    """

    def __init__(self, ids: Tensor) -> None:
        _, found = torch.unique(ids, return_inverse=True)
        count = int(found.max()) + 1 if len(found) else 0
        first = torch.full((count,), len(found)).scatter_reduce(
            0, found, torch.arange(len(found)), "amin"
        )
        rank = torch.empty(count, dtype=torch.long)
        rank[first.argsort()] = torch.arange(count)
        self.of: Tensor = rank[found]
        self.count = count
        self.sizes: Tensor = torch.bincount(self.of, minlength=count)

    @cached_property
    def _order(self) -> Tensor:
        """All images, unit by unit."""
        return self.of.argsort(stable=True)

    @cached_property
    def _first(self) -> Tensor:
        """Position of each unit's first image in `_order`."""
        return self.sizes.cumsum(0) - self.sizes

    def images(
        self, drawn: Tensor, *, most: int, slots: int, stream: Keystream | None = None
    ) -> tuple[Tensor, Tensor]:
        """Images of drawn units, at most `most` of each, evenly and without replacement.

        Args:
            drawn: Numbers of units, on the CPU.
            most: Most images of one unit.
            slots: Width of the result, at least `most` or the size of the largest unit.
            stream: Source of the choice, which is that of the first images if None.

        Returns:
            `(len(drawn), slots)` indices of images, and a mask of those that are no padding: the
            images of a unit in increasing order, then its first again as padding.
        """
        sizes = self.sizes[drawn]
        total = int(sizes.sum())
        unit = torch.arange(len(drawn)).repeat_interleave(sizes)
        place = torch.arange(total) - (sizes.cumsum(0) - sizes)[unit]
        images = self._order[self._first[drawn][unit] + place]
        kept = torch.ones(total, dtype=torch.bool)
        if bool((sizes > most).any()):
            rank = place
            if stream is not None:
                by_chance = stream.words(total)
                order = by_chance.argsort()
                order = order[unit[order].argsort(stable=True)]
                rank = torch.empty_like(place)
                rank[order] = place
            kept = rank < most
        unit, images = unit[kept], images[kept]
        counts = sizes.clamp(max=most)
        place = torch.arange(len(unit)) - (counts.cumsum(0) - counts)[unit]
        found = images[counts.cumsum(0) - counts].unsqueeze(1).repeat(1, slots)
        found[unit, place] = images
        return found, torch.arange(slots) < counts.unsqueeze(1)


@dataclass(frozen=True, eq=False)
class UnitBatch:
    """A physical batch of units in parts of one size, the last part of each unit padded.

    Attributes:
        x: `(parts * images * views, ...)` inputs.
        y: `(parts, images, ...)` targets; `(parts, ...)` if `images` is 1. Those of padding, like
            its inputs, are those of the first image of the part.
        there: `(parts, images)` mask of the images that are not padding.
        units: Number of each unit, in the order of the batch.
        unit: Position in `units` of each part's unit.
    """

    x: Tensor
    y: Tensor
    there: Tensor
    units: Tensor
    unit: Tensor

    @classmethod
    def of(
        cls,
        x: Tensor,
        y: Tensor,
        units: Tensor,
        weights: Tensor | PhysicalBatch | None,
        *,
        images: int,
        views: int,
    ) -> UnitBatch:
        """Sort images into parts.

        Args:
            x: `(images * views, ...)` inputs.
            y: `(images, ...)` targets.
            units: `(images,)` number of each image's unit.
            weights: `(images,)` zero for images that are padding.
            images: Images of a part.
            views: Rows per image.

        Raises:
            UserError: The images of a unit are not beside each other.
        """
        if isinstance(weights, PhysicalBatch):
            raise UserError("Beside units, give the weights of images, not a physical batch.")
        _check(x, y, units, weights, views)
        units = units.cpu()
        rows = torch.arange(len(units))
        if weights is not None:
            rows = rows[weights.cpu() > 0]
            units = units[rows]
        numbers, sizes = torch.unique_consecutive(units, return_counts=True)
        if len(numbers.unique()) < len(numbers):
            raise UserError(
                "The images of a unit must be beside each other in a batch: sort them by unit, as "
                "in `order = units.argsort(stable=True)`."
            )
        parts = -(-sizes // images)
        unit = torch.arange(len(numbers)).repeat_interleave(parts)
        number = torch.arange(len(unit)) - (parts.cumsum(0) - parts)[unit]
        start = (sizes.cumsum(0) - sizes)[unit] + number * images
        end = sizes.cumsum(0)[unit]
        place = start[:, None] + torch.arange(images)
        there = place < end[:, None]
        # Padding repeats an image of its own unit, which model and loss accept if they accept it.
        taken = rows[torch.where(there, place, start[:, None])].to(x.device)
        own = x.view(-1, views, *x.shape[1:])[taken.flatten()].flatten(0, 1)
        if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
            own = own.contiguous(memory_format=torch.channels_last)
        targets = y[taken.to(y.device)]
        return cls(own, targets[:, 0] if images == 1 else targets, there, numbers, unit)

    @property
    def targets(self) -> Tensor:
        """The targets as the loss takes them."""
        images = self.there.shape[1]
        return unit_targets(self.y, self.there if images > 1 else None, images)

    @property
    def counts(self) -> Tensor:
        """Images in each part."""
        return self.there.sum(1)

    def numbered(self, before: int) -> PhysicalBatch:
        """The parts as examples with numbers of their own, which no two of a draw share.

        Args:
            before: Images of the first unit in earlier batches.
        """
        place = self.counts.cumsum(0) - self.counts
        place = place - place[torch.searchsorted(self.unit, self.unit)]
        place = place + torch.where(self.unit == 0, before, 0)
        numbers = self.units[self.unit] * _MOST_IMAGES + place
        return PhysicalBatch(numbers, torch.ones(len(numbers)), 0, len(numbers))


_MOST_IMAGES = 1 << 20
"""More images than a unit has in a draw."""


def unit_targets(y: Tensor, there: Tensor | None, images: int) -> Tensor:
    """Targets as the loss of such units takes them: beside a mask, where units have several images.

    Args:
        y: `(units, images, ...)` targets; `(units, ...)` if `images` is 1.
        there: `(units, images)` mask of the images that are not padding; all if None.
        images: Images of a unit, padding included.

    Raises:
        UserError: Targets are no tensor, or not `(units, images)`; or the mask is not.
    """
    if not isinstance(y, Tensor):
        raise UserError(f"Targets must be a tensor, not a {type(y).__name__}.")
    if not y.dim():
        raise UserError("Targets must be one for each example, not a single number.")
    if images == 1:
        if there is not None:
            raise UserError(
                "Of units with one image each none is padding: leave out `there`, or create the "
                "mechanism with more than images=1."
            )
        return y
    if y.dim() < 2 or y.shape[1] != images:
        raise UserError(
            f"Batches of units have targets of shape (units, {images}), not {tuple(y.shape)}: give "
            "the `units` of single images, or create the mechanism with images=1."
        )
    if not y.shape[2:].numel():
        raise UserError("Each image of a unit needs a target of one number or more.")
    if there is None:
        there = torch.ones(y.shape[:2], dtype=torch.bool, device=y.device)
    if not isinstance(there, Tensor) or there.shape != y.shape[:2]:
        given = tuple(there.shape) if isinstance(there, Tensor) else type(there).__name__
        raise UserError(
            f"`there` is a tensor of shape {tuple(y.shape[:2])}, not {given}: it says of each "
            "image of each unit whether it is one, and no padding."
        )
    return joined(y, there)


def _check(x: Tensor, y: Tensor, units: Tensor, weights: Tensor | None, views: int) -> None:
    check_inputs(x, y, views)
    if not isinstance(units, Tensor) or units.is_floating_point() or units.is_complex():
        raise UserError("Units are whole numbers, from 0 to the number of units minus one.")
    wrong = units.shape != y.shape[:1]
    if wrong or (weights is not None and weights.shape != y.shape[:1]):
        raise UserError(
            f"There must be one unit for each of {y.shape[0]} images, and a weight if weights are "
            "given."
        )
