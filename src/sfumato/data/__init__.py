"""Image data: readers for the layouts people have on disk, storage and augmentation on the device.

import sfumato.data

cifar = sfumato.data.load("cifar10", validation=0.1)
store = sfumato.data.ImageStore(cifar.train, mean=cifar.mean, std=cifar.std, device="cuda")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sfumato.data.catalogue import names
from sfumato.data.imageset import Dataset, ImageSet
from sfumato.data.loading import load

if TYPE_CHECKING:
    from sfumato.data.augment import Augment, AugmentParameters
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


def __getattr__(name: str) -> Any:
    """Import modules that need PyTorch on first use, so that listing data stays fast."""
    if name in ("Augment", "AugmentParameters"):
        from sfumato.data import augment

        return getattr(augment, name)
    if name in ("ViewParameters", "Views"):
        from sfumato.data import views

        return getattr(views, name)
    if name == "ImageStore":
        from sfumato.data.store import ImageStore

        return ImageStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
