"""Images with labels, and a data set made of such parts: the results of every reader."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato.data.scratch import empty_like
from sfumato.data.split import Rule, by_unit, check_fraction, independent, stratified

Array = npt.NDArray[Any]

_CHUNK_BYTES = 1 << 24


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images of one size with their labels.

    Attributes:
        images: ``(N, C, H, W)``, C-contiguous; uint8, or float32 in [0, 1] (NaN allowed). May be a
            memory map.
        labels: ``(N,)`` int64, from 0 to the number of classes minus one.
        units: ``(N,)`` int64, equal for images of the same unit of privacy (see
            `sfumato.data.units`); None if each image is one.
    """

    images: Array
    labels: Array
    units: Array | None = None

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.images.dtype not in (np.uint8, np.float32):
            raise ValueError(
                f"images must be (N, C, H, W) of uint8 or float32, not {self.images.shape} of "
                f"{self.images.dtype}"
            )
        if self.labels.shape != (len(self.images),) or self.labels.dtype != np.int64:
            raise ValueError(
                f"labels must be ({len(self.images)},) of int64, not {self.labels.shape} of "
                f"{self.labels.dtype}"
            )
        if self.units is not None and (
            self.units.shape != self.labels.shape or self.units.dtype != np.int64
        ):
            raise ValueError(f"units must be ({len(self.images)},) of int64")
        if not self.images.flags.c_contiguous:
            raise ValueError("images must be C-contiguous")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def examples(self) -> int:
        """Number of units of privacy."""
        return len(self) if self.units is None else len(np.unique(self.units))

    def take(self, index: Array) -> ImageSet:
        """A copy of the images at these positions, in this order; many stay out of memory."""
        images = empty_like(self.images, (len(index), *self.images.shape[1:]))
        for start in range(0, len(index), self._rows_at_once):
            some = index[start : start + self._rows_at_once]
            images[start : start + len(some)] = self.images[some]
        units = None if self.units is None else self.units[index]
        return ImageSet(images, self.labels[index], units)

    def mapped(self, change: Callable[[Array], Array]) -> ImageSet:
        """The set with images changed by a function of several, which sees some at a time."""
        images = empty_like(self.images, (len(self), *change(self.images[:0]).shape[1:]))
        done = 0
        for chunk in self.chunks():
            images[done : done + len(chunk)] = change(chunk)
            done += len(chunk)
        return replace(self, images=images)

    def chunks(self) -> Iterator[Array]:
        """The images in consecutive pieces of about 16 MiB, so a memory map is never held whole."""
        for start in range(0, len(self), self._rows_at_once):
            yield self.images[start : start + self._rows_at_once]

    @property
    def _rows_at_once(self) -> int:
        row = int(np.prod(self.images.shape[1:])) * self.images.itemsize
        return max(1, _CHUNK_BYTES // max(1, row))

    def set_aside(
        self, fraction: float, *, seed: int, purpose: str, rule: Rule, at_least: int = 0
    ) -> tuple[ImageSet, ImageSet]:
        """The rest, and a seeded part of about ``fraction`` (see `sfumato.data.split`).

        Args:
            fraction: in [0, 1).
            seed: seed of the choice of images.
            purpose: keeps different splits (test, validation) independent.
            rule: ``independent`` decides by the content of each image; ``stratified`` by positions.
                Units of several images are set aside whole, each by itself, by either rule.
            at_least: for ``stratified``, the fewest of each class that can spare them.
        """
        if self.units is not None:
            rest, part = by_unit(self.units, fraction, seed=seed, purpose=purpose)
        elif rule == "independent":
            rest, part = independent(self._digests(), fraction, seed=seed, purpose=purpose)
        else:
            rest, part = stratified(
                self.labels, fraction, seed=seed, purpose=purpose, at_least=at_least
            )
        return self.take(rest), self.take(part)

    def _digests(self) -> Iterator[bytes]:
        """One hash per image, of its pixels alone: copies with different labels are equal."""
        kind = self.images.dtype.newbyteorder("<")
        for chunk in self.chunks():
            for image in chunk:
                pixels = np.ascontiguousarray(image, dtype=kind)
                yield hashlib.blake2b(pixels.data, digest_size=16).digest()


@dataclass(frozen=True, eq=False)
class Dataset:
    """A named image classification task: its classes and its parts.

    ``mean`` and ``std`` are fixed public constants, one per channel, on the [0, 1] scale. They come
    from the catalogue, never from the images that were loaded: a mean computed on private images
    would be a release outside the privacy mechanism.

    Attributes:
        name: the catalogue name, or the name of the folder or file.
        classes: class names; label ``k`` means ``classes[k]``.
        train: training images, the subject of the privacy guarantee.
        test: held-out images.
        validation: held-out images for choices made during training, if there are any.
        mean: constant subtracted from each channel.
        std: constant that divides each channel.
        skipped: unreadable files that were left out.
        notes: sentences about choices made while loading, for the user to read.
        source: path of the data.
    """

    name: str
    classes: tuple[str, ...]
    train: ImageSet
    test: ImageSet
    validation: ImageSet | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    skipped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    source: str = ""

    def __post_init__(self) -> None:
        if len(self.mean) != self.channels or len(self.std) != self.channels:
            raise ValueError(f"mean and std need one value for each of {self.channels} channels")
        for name, part in self.parts().items():
            if part.images.shape[1:] != self.train.images.shape[1:]:
                raise ValueError(f"{name} and train differ in image shape")
            if part.images.dtype != self.train.images.dtype:
                raise ValueError(f"{name} and train differ in dtype")
            if len(part) and not 0 <= part.labels.min() <= part.labels.max() < len(self.classes):
                raise ValueError(f"{name} has labels outside 0..{len(self.classes) - 1}")

    @property
    def channels(self) -> int:
        """Number of channels."""
        return int(self.train.images.shape[1])

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return int(self.train.images.shape[2]), int(self.train.images.shape[3])

    def parts(self) -> dict[str, ImageSet]:
        """The parts that exist, by name, training set first."""
        parts = {"train": self.train}
        if self.validation is not None:
            parts["validation"] = self.validation
        return parts | {"test": self.test}

    def fingerprint(self) -> str:
        """SHA-256 of the training set: shape, dtype, labels, units and pixels, but not its name.

        It tells two training sets apart, so that a run is never continued on other data. It is
        computed from private data: keep it in the run folder, do not publish it.
        """
        digest = hashlib.sha256()
        images = self.train.images
        digest.update(f"{images.shape} {images.dtype.name}\n".encode())
        digest.update(np.ascontiguousarray(self.train.labels, dtype="<i8").tobytes())
        if self.train.units is not None:
            digest.update(np.ascontiguousarray(self.train.units, dtype="<i8").tobytes())
        for chunk in self.train.chunks():
            digest.update(np.ascontiguousarray(chunk, dtype=images.dtype.newbyteorder("<")).data)
        return digest.hexdigest()

    def split_validation(
        self, fraction: float, *, seed: int = 0, rule: Rule = "independent"
    ) -> Dataset:
        """Take a seeded part out of the training set for validation.

        A data set that has its own validation set is returned as it is.
        """
        check_fraction("validation", fraction, zero=True)
        if fraction == 0 or self.validation is not None:
            return self
        rest, part = self.train.set_aside(fraction, seed=seed, purpose="validation", rule=rule)
        return replace(self, train=rest, validation=part)
