"""Image data: readers for the layouts people have on disk, storage and augmentation on the device.

import sfumato.data

cifar = sfumato.data.load("cifar10", validation=0.1)
store = sfumato.data.ImageStore(cifar.train, mean=cifar.mean, std=cifar.std, device="cuda")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sfumato._lazy import lazy

if TYPE_CHECKING:
    from sfumato.data.augment import Augment, AugmentParameters
    from sfumato.data.catalogue import names
    from sfumato.data.imageset import Dataset, ImageSet
    from sfumato.data.loading import load
    from sfumato.data.store import ImageStore
    from sfumato.data.views import ViewParameters, Views

__all__ = [
    "Augment",
    "AugmentParameters",
    "Dataset",
    "ImageSet",
    "ImageStore",
    "ViewParameters",
    "Views",
    "load",
    "names",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "augment": ("Augment", "AugmentParameters"),
        "catalogue": ("names",),
        "imageset": ("Dataset", "ImageSet"),
        "loading": ("load",),
        "store": ("ImageStore",),
        "views": ("ViewParameters", "Views"),
    },
)
