"""Conversion of image arrays to another size or number of channels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from PIL import Image

from sfumato.data.catalogue import LUMA, constants
from sfumato.data.decode import cover
from sfumato.data.imageset import Array, Dataset, ImageSet
from sfumato.errors import UserError


def adapt(dataset: Dataset, *, size: tuple[int, int] | None, channels: int | None) -> Dataset:
    """The same data set with images of another size or number of channels.

    Sizes change as for image files: scaled to cover, centre cut out. Grey becomes colour by
    repetition, colour becomes grey by luma (ITU-R 601). Normalisation constants follow.
    """
    if channels is not None and channels != dataset.channels:
        dataset = _mapped(dataset, _channel_change(dataset.name, dataset.channels, channels))
    if size is not None and size != dataset.size:
        wanted = size
        note = f"The images were scaled from {dataset.size[0]}×{dataset.size[1]}."
        dataset = _mapped(dataset, lambda images: resized(images, wanted))
        dataset = replace(dataset, notes=(*dataset.notes, note))
    return dataset


def adapted(images: Array, *, where: str, size: tuple[int, int], channels: int) -> Array:
    """Images ``(N, C, H, W)`` of another size or number of channels, as `adapt` makes them.

    Args:
        images: uint8, or float32 in [0, 1].
        where: Their source, for messages.
        size: Height and width.
        channels: Number of channels.
    """
    if images.shape[1] != channels:
        images = _channel_change(where, images.shape[1], channels)(images)
    if images.shape[2:] != size:
        images = resized(images, size)
    return np.ascontiguousarray(images)


def _mapped(dataset: Dataset, change: Callable[[Array], Array]) -> Dataset:
    train = dataset.train.mapped(change)
    mean, std = constants(dataset.mean, dataset.std, train.images.shape[1])
    return replace(
        dataset,
        train=train,
        test=dataset.test.mapped(change),
        validation=None if dataset.validation is None else dataset.validation.mapped(change),
        mean=mean,
        std=std,
    )


def _channel_change(name: str, own: int, channels: int) -> Callable[[Array], Array]:
    if (own, channels) == (1, 3):
        return lambda images: np.repeat(images, 3, axis=1)
    if (own, channels) == (3, 1):
        return _to_grey
    raise UserError(
        f"The images of '{name}' have {own} channels and cannot be given "
        f"{channels}: only grey (1) and colour (3) can be changed into each other."
    )


def _to_grey(images: Array) -> Array:
    weights = np.array(LUMA, dtype=np.float32)
    grey = np.empty((len(images), 1, *images.shape[2:]), dtype=images.dtype)
    for start in range(0, len(images), 1024):
        block = np.tensordot(images[start : start + 1024].astype(np.float32), weights, (1, 0))
        grey[start : start + 1024, 0] = np.rint(block) if images.dtype == np.uint8 else block
    return grey


def resized(images: Array, size: tuple[int, int]) -> Array:
    """Resize images ``(N, C, H, W)``, each channel separately."""
    result = np.empty((*images.shape[:2], *size), dtype=images.dtype)
    for index in np.ndindex(images.shape[:2]):
        result[index] = np.asarray(cover(Image.fromarray(np.asarray(images[index])), size))
    return result


def align_labels(labels: Array, classes: Sequence[str], wanted: Sequence[str]) -> Array:
    """Labels of data with `classes`, renumbered for a model with the classes `wanted`.

    Raises:
        UserError: If the two do not have the same names.
    """
    missing = [name for name in wanted if name not in classes]
    strange = [name for name in classes if name not in wanted]
    if missing or strange:
        difference = "; ".join(
            f"{who} has {_some(names)}"
            for who, names in (("only the model", missing), ("only the data", strange))
            if names
        )
        raise UserError(
            f"The data has {len(classes)} classes and the model {len(wanted)}, and their names "
            f"differ: {difference}. Give data with the model's classes."
        )
    number = {name: position for position, name in enumerate(wanted)}
    return np.array([number[name] for name in classes], dtype=np.int64)[labels]


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:5])
    return shown + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def renumbered(dataset: Dataset, classes: tuple[str, ...]) -> Dataset:
    """The data set with labels as a model with these classes numbers them."""
    if dataset.classes == classes:
        return dataset

    def part(images: ImageSet) -> ImageSet:
        return replace(images, labels=align_labels(images.labels, dataset.classes, classes))

    return replace(
        dataset,
        classes=classes,
        train=part(dataset.train),
        test=part(dataset.test),
        validation=None if dataset.validation is None else part(dataset.validation),
    )
