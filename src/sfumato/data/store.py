"""Image sets on the device: stored there as bytes if they fit, else streamed from the host."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sfumato.data.imageset import Array, ImageSet

_OTHER_DEVICE_BUDGET = 4 << 30

_PIXELS = 1 << 15
"""Pixels of images that are run at once on a CPU. Measured with Equivariant-ResNet-9 at 64×64."""

_FEWEST = 8
"""Fewest images at once: below, the time of a call of each layer counts."""


class ImageStore:
    """Store that returns images and labels by index on a device.

    On an accelerator the images are copied there once, as they are (bytes stay bytes), if they take
    no more than ``budget`` bytes. Otherwise each request is gathered from the host array, which may
    be a memory map, and copied through pinned memory. On the CPU the array itself is used and
    nothing is copied. `gather` returns the same in every case.

    *Guarantee:* normalisation uses only the constants given here, and each returned image depends
    on one stored image alone.
    """

    def __init__(
        self,
        images: ImageSet,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        device: str | torch.device = "cpu",
        budget: int | None = None,
    ) -> None:
        """Prepare an image set for use on a device.

        Args:
            images: the images and labels.
            mean: one constant per channel, on the [0, 1] scale.
            std: one positive constant per channel, on the [0, 1] scale.
            device: device of the returned images and labels.
            budget: the most bytes of device memory that the images may take; by default half of the
                free memory of a CUDA device, 4 GiB on others. Zero always streams.
        """
        channels = images.images.shape[1]
        if len(mean) != channels or len(std) != channels or not all(value > 0 for value in std):
            raise ValueError(f"mean and std need {channels} values each, std above zero")
        self.device = torch.device(device)
        self._mean = torch.tensor(mean, dtype=torch.float32, device=self.device).view(1, -1, 1, 1)
        self._std = torch.tensor(std, dtype=torch.float32, device=self.device).view(1, -1, 1, 1)
        self._labels = torch.from_numpy(images.labels.copy()).to(self.device)
        self._images = _shared(images.images)
        self._resident = not isinstance(images.images, np.memmap)
        if self.device.type != "cpu":
            limit = _free_half(self.device) if budget is None else budget
            self._resident = images.images.nbytes <= limit
            if self._resident:
                self._images = self._images.to(self.device)

    def __len__(self) -> int:
        return len(self._labels)

    @property
    def resident(self) -> bool:
        """Tell whether the images are in the memory of the device."""
        return self._resident

    def at_once(self, most: int) -> int:
        """Number of images, up to `most`, that a network runs over at once in the least time.

        On a CPU what its layers make of many large images does not fit into the cache.
        """
        if self.device.type != "cpu":
            return most
        return min(most, max(_FEWEST, _PIXELS // math.prod(self._images.shape[2:])))

    def gather(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Images and labels at these positions, which may repeat and may be none.

        Args:
            indices: ``(n,)`` int64, on any device.

        Returns:
            Images ``(n, C, H, W)`` as stored (uint8, or float32 in [0, 1]) and labels ``(n,)``,
            both on the store's device.
        """
        labels = self._labels.index_select(0, indices.to(self._labels.device))
        if self._images.device == self._labels.device:
            return self._images.index_select(0, indices.to(self._images.device)), labels
        shape = (len(indices), *self._images.shape[1:])
        pinned = self.device.type == "cuda" and len(indices) > 0
        staged = torch.empty(shape, dtype=self._images.dtype, pin_memory=pinned)
        torch.index_select(self._images, 0, indices.cpu(), out=staged)
        return staged.to(self.device, non_blocking=True), labels

    def unit(self, images: Tensor) -> Tensor:
        """Gathered images as float32 on the [0, 1] scale."""
        return images.float() / 255 if images.dtype == torch.uint8 else images.float()

    def normalise(self, images: Tensor) -> Tensor:
        """Float32 images minus the mean, divided by the deviation, channel by channel.

        Bytes are taken on the 0 to 255 scale, floats on the [0, 1] scale.
        """
        return (self.unit(images) - self._mean) / self._std


def _shared(array: Array) -> Tensor:
    """The array as a tensor over the same memory. It is never written to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return torch.from_numpy(array)


def _free_half(device: torch.device) -> int:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free) // 2
    return _OTHER_DEVICE_BUDGET
