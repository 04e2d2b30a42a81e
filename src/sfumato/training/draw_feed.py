"""The physical batches of a draw: images fetched, augmented and accumulated."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sfumato.data import ImageStore, Views
from sfumato.data.views import ViewParameters
from sfumato.device_copy import to_device
from sfumato.distributed.ranks import Ranks
from sfumato.memory import give_back, out_of_memory
from sfumato.privacy.mechanism import PrivateGradients
from sfumato.privacy.numerics.randomness import Randomness
from sfumato.privacy.sampling import physical_batches
from sfumato.training.drawn_images import DrawnImages, UnitImages
from sfumato.training.initial.frozen_features import Features
from sfumato.training.physical import rank_batch
from sfumato.training.reporter import Reporter


@dataclass
class DrawFeed:
    """Source of the physical batches of a draw.

    Attributes:
        private: The mechanism that they are accumulated in.
        store: The training images.
        units: The images of each unit of privacy.
        views: The views of an image.
        features: Features of the images, where fixed layers run once; None otherwise.
        randomness: Source of the views.
        memory_format: Memory format of the inputs.
        physical_batch: Examples that are processed at once, which is halved if memory does not
            suffice.
        reporter: Told about that.
    """

    private: PrivateGradients
    store: ImageStore
    units: UnitImages
    views: Views
    features: Features | None
    randomness: Randomness
    memory_format: torch.memory_format
    physical_batch: int
    reporter: Reporter

    def __post_init__(self) -> None:
        self._ranks = Ranks.current()
        self._block = rank_batch(self.physical_batch, self.private.sampler, self._ranks.size)

    @property
    def at_once(self) -> int:
        """Number of examples that this rank processes at once."""
        return min(self.physical_batch, self._block)

    def accumulate(self, draw: Tensor, step: int) -> None:
        """Accumulate this rank's share of a draw.

        Guarantee: Every drawn example is accumulated exactly once, on one rank, however the draw is
        split, and whatever memory suffices for.
        """
        images = self.units.of(draw, step)
        generator = self.randomness.generator(step, "augment")
        parameters = self.views.draw(images.images.numel(), generator)
        if self._ranks.size > 1:
            share = self._ranks.share(draw.numel(), self._block)
            draw, parameters = draw[share], images.parameters_of(parameters, share)
            images = images.take(share)
        device = self.store.device
        draw, parameters, images = to_device(draw, device), parameters.to(device), images.to(device)
        position = 0
        while position < draw.numel():
            size = self.at_once
            batch = next(physical_batches(draw, size, start=position))
            rows = torch.arange(position, position + size, device=device)
            drawn = images.take(torch.where(rows < draw.numel(), rows, 0))
            own = images.parameters_of(parameters, rows.clamp(max=draw.numel() - 1))
            try:
                if self.private.images < self.units.slots:
                    self._accumulate_in_parts(batch.indices, drawn, own)
                else:
                    x, labels = self.fetch(drawn, own)
                    self.private.accumulate(x, labels, batch, there=drawn.mask)
            except Exception as error:
                in_parts = self.private.images < self.units.slots
                if not out_of_memory(error) or in_parts or (size == 1 and self.units.slots == 1):
                    raise
                self._halve()
                continue
            position += size

    def fetch(self, drawn: DrawnImages, parameters: ViewParameters) -> tuple[Tensor, Tensor]:
        """Inputs and labels of some examples of a draw, those of padding among them."""
        indices = drawn.images.flatten()
        if self.features is not None:
            x, labels = self.features.gather(indices)
        else:
            x, labels = self.views.fetch(
                self.store, indices, parameters, memory_format=self.memory_format
            )
        return x, labels if drawn.mask is None else labels.view(drawn.images.shape)

    def _accumulate_in_parts(
        self, units: Tensor, drawn: DrawnImages, parameters: ViewParameters
    ) -> None:
        """Accumulate one unit that does not fit into memory, some of its images at a time."""
        whose, first = units.expand(int(drawn.there.sum())), 0
        while first < len(whose):
            part = torch.arange(first, min(first + self.private.images, len(whose)))
            some = DrawnImages(drawn.images[:, part].mT, drawn.there[:, part].mT)
            try:
                x, labels = self.fetch(some, parameters.take(part.to(self.store.device)))
                self.private.accumulate(x, labels, units=whose[part])
            except Exception as error:
                if not out_of_memory(error) or self.private.images == 1:
                    raise
                self._halve()
                continue
            first += len(part)

    def _halve(self) -> None:
        give_back()
        if self.at_once > 1:
            self.physical_batch = self.at_once // 2
            now = f"{self.physical_batch} examples"
        else:
            self.private.halve_images()
            now = f"{self.private.images} images of one example"
        self.reporter.say(
            f"Not enough memory: going on with {now} at once. The result does not change."
        )
