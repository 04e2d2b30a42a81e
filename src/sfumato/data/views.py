"""The views of an example: its image changed at random several times, and mixtures of those.

Augmentation multiplicity (De et al., 2022): an example's gradient is the mean over K views, taken
before clipping, so views cost time but no privacy. Self-mixing (DP-Mix self, Bao et al., 2023)
appends mixtures of two views of the *same* example; the label stays, as both have it.

All random numbers of a draw are drawn at once and belong to examples, so a draw may be split into
physical batches of any size and every example still sees the same views.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sfumato.data.augment import Augment, AugmentParameters
from sfumato.data.store import ImageStore


@dataclass(frozen=True, kw_only=True, eq=False)
class ViewParameters:
    """The random changes that make the views of each of `examples` images.

    Attributes:
        examples: Number of images.
        changes: Changes of each view that is not a mixture, in example-major order.
        first: `(examples, mixtures)` int64, the first view of each mixture.
        second: The second view, which is always a different one.
        share: `(examples, mixtures)` float32, the weight of the first.
    """

    examples: int
    changes: AugmentParameters
    first: Tensor
    second: Tensor
    share: Tensor

    def take(self, rows: Tensor) -> ViewParameters:
        """The parameters of these examples, which may repeat."""
        each = len(self.changes) // self.examples if self.examples else 0
        spread = rows.unsqueeze(1) * each + torch.arange(each, device=rows.device)
        return ViewParameters(
            examples=rows.numel(),
            changes=self.changes.take(spread.flatten()),
            first=self.first[rows],
            second=self.second[rows],
            share=self.share[rows],
        )

    def to(self, device: str | torch.device) -> ViewParameters:
        """The same parameters on another device."""
        return ViewParameters(
            examples=self.examples,
            changes=self.changes.to(device),
            first=self.first.to(device),
            second=self.second.to(device),
            share=self.share.to(device),
        )


@dataclass(frozen=True, kw_only=True)
class Views:
    """Configuration of an example's views: their number and their kinds.

    *Guarantee:* a view of an example depends on that example's image and on random numbers alone.

    Attributes:
        augment: The random changes.
        count: K, the views that are not mixtures.
        clean: Whether the first of these is the unchanged image.
        mixtures: Number of further views, each a mixture of two different ones of the K.
        alpha: Weights of a mixture follow Beta(alpha, alpha).
    """

    augment: Augment
    count: int = 1
    clean: bool = False
    mixtures: int = 0
    alpha: float = 0.2

    @property
    def total(self) -> int:
        """Rows per example."""
        return self.count + self.mixtures

    def draw(self, examples: int, generator: torch.Generator | None = None) -> ViewParameters:
        """Draw the views of this number of examples at once, on the CPU."""
        changes = self.augment.draw(examples * (self.count - self.clean), generator)
        shape = (examples, self.mixtures)
        first = second = torch.zeros(shape, dtype=torch.long)
        share = torch.ones(shape)
        if self.mixtures and examples:
            first = torch.randint(self.count, shape, generator=generator)
            second = torch.randint(self.count - 1, shape, generator=generator)
            second = second + (second >= first)
            seed = int(torch.randint(2**62, (), generator=generator))
            drawn = np.random.default_rng(seed).beta(self.alpha, self.alpha, shape)
            share = torch.from_numpy(drawn.astype(np.float32))
        return ViewParameters(
            examples=examples, changes=changes, first=first, second=second, share=share
        )

    def fetch(
        self,
        store: ImageStore,
        indices: Tensor,
        parameters: ViewParameters,
        *,
        memory_format: torch.memory_format = torch.channels_last,
    ) -> tuple[Tensor, Tensor]:
        """A physical batch: the views of stored images, ready for a model, and the labels.

        Args:
            store: The store of images.
            indices: `(examples,)` int64, indices of images; they may repeat.
            parameters: The random changes of each, on the store's device.
            memory_format: The memory format of the views.

        Returns:
            Normalised views `(examples * total, C, H, W)` in example-major order, and one label per
            example.
        """
        images, labels = store.gather(indices)
        views = store.normalise(self.apply(store.unit(images), parameters))
        return views.contiguous(memory_format=memory_format), labels

    def apply(self, images: Tensor, parameters: ViewParameters) -> Tensor:
        """Map images `(examples, C, H, W)` to views `(examples * total, C, H, W)`."""
        if len(images) != parameters.examples:
            raise ValueError(f"{parameters.examples} views were drawn for {len(images)} images")
        changed = self.count - self.clean
        rows = images.repeat_interleave(changed, 0) if changed != 1 else images
        rows = self.augment.apply(rows, parameters.changes)
        if not self.clean and not self.mixtures:
            return rows
        views = rows.view(len(images), changed, *images.shape[1:])
        if self.clean:
            views = torch.cat([images.unsqueeze(1), views], 1)
        if self.mixtures:
            example = torch.arange(len(images), device=images.device).unsqueeze(1)
            share = parameters.share.to(images.dtype).view(len(images), -1, 1, 1, 1)
            one, other = views[example, parameters.first], views[example, parameters.second]
            views = torch.cat([views, torch.lerp(other, one, share)], 1)
        return views.flatten(0, 1)
