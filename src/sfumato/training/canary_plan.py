"""The canaries of a run: what a user asks for, and what the ledger says of them.

A run with canaries is an audit. Canaries are its last training examples, drawn by its sampler and
counted in N and q, and a coin decides for each whether it is in. *Gradient canaries* have no image:
they enter the clipped sum (`sfumato.privacy.audit.canaries`). *Image canaries* are images that
nobody has, trained on as any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from sfumato.data import Dataset
from sfumato.data.imageset import Array, ImageSet
from sfumato.errors import UserError, nearest
from sfumato.privacy.audit.result import FEWEST
from sfumato.privacy.numerics.randomness import Randomness
from sfumato.recipe import Recipe

MOST = 5000
"""Canaries of an audit that does not say how many, if there are images enough."""

_IMAGES = 10
"""There are at least so many images for each canary, as canaries change N, q and the training."""

KINDS = ("gradient", "random", "mislabelled")
SCORES = {
    "weights": "the change of the last weights in the canary's coordinates",
    "released": "the privacy loss of the released gradients in the canary's coordinates, given the "
    "other examples",
    "loss": "the loss of the canary at the start less that at the end",
}
"""What guesses are made from, in words."""


@dataclass(frozen=True)
class CanaryPlan:
    """The canaries of a run, as the ledger states them.

    Attributes:
        count: Their number.
        kind: `gradient`, `random` (images of random pixels with random labels) or `mislabelled`
            (test images with wrong labels).
        score: A key of `SCORES`.
        key: The key, in hexadecimal, that coins, coordinates and images follow from. It is in the
            ledger, so that an audit can be checked, and says nothing about the run's key.
    """

    count: int
    kind: str
    score: str
    key: str

    @classmethod
    def of(cls, header: Mapping[str, Any]) -> CanaryPlan | None:
        """The plan in a ledger's first line; None for a run without canaries.

        Raises:
            UserError: It cannot be read.
        """
        if "canaries" not in header:
            return None
        try:
            plan = cls(**header["canaries"])
            sound = type(plan.count) is int and plan.kind in KINDS and plan.score in SCORES
            if sound and len(bytes.fromhex(plan.key)) == 32:
                return plan
        except (TypeError, ValueError):
            pass
        raise UserError("The ledger states canaries that cannot be read: it was edited.")

    @property
    def randomness(self) -> Randomness:
        """Source of coins, coordinates and images; everybody may know it."""
        return Randomness(bytes.fromhex(self.key), True)

    @property
    def header(self) -> dict[str, Any]:
        """The plan as an entry of the ledger's first line."""
        return {"canaries": asdict(self)}

    def extended(self, dataset: Dataset) -> Dataset:
        """The data with image canaries as the last training images."""
        if self.kind == "gradient":
            return dataset
        more, train = self._images(dataset), dataset.train
        images = np.concatenate([np.asarray(train.images), more.images])
        return replace(dataset, train=ImageSet(images, np.concatenate([train.labels, more.labels])))

    def _images(self, dataset: Dataset) -> ImageSet:
        source = np.random.default_rng(list(bytes.fromhex(self.key)))
        classes, shape = len(dataset.classes), dataset.train.images.shape[1:]
        if self.kind == "random":
            pixels = source.integers(0, 256, (self.count, *shape), dtype=np.uint8)
            labels = source.integers(0, classes, self.count, dtype=np.int64)
            return ImageSet(_as(pixels, dataset.train.images.dtype), labels)
        found = dataset.test.take(source.permutation(len(dataset.test))[: self.count])
        wrong = (found.labels + source.integers(1, classes, self.count)) % classes
        return ImageSet(found.images, wrong.astype(np.int64))

    def examples(self, dataset: Dataset) -> int:
        """Number of training examples of the extended data, canaries included."""
        return dataset.train.examples + (self.count if self.kind == "gradient" else 0)


def _as(pixels: Array, kind: Any) -> Array:
    return pixels if kind == np.uint8 else (pixels / 255).astype(np.float32)


@dataclass(frozen=True)
class AuditSettings:
    """The wishes of a user for an audit.

    Attributes:
        canaries: Their number; `MOST`, or a tenth of the images if that is less, if None.
        images: `random` or `mislabelled` for canaries that are images; None for gradients.
        score: `weights` or `released` for gradients; None for `weights` where updates are linear in
            the gradients, and `released` otherwise.
    """

    canaries: int | None = None
    images: str | None = None
    score: str | None = None

    def plan(
        self, recipe: Recipe, dataset: Dataset, coordinates: int, randomness: Randomness
    ) -> CanaryPlan:
        """The canaries of a run.

        Args:
            recipe: The recipe.
            dataset: The data, without canaries.
            coordinates: Number of trained parameters.
            randomness: The run's key.

        Raises:
            UserError: The run cannot be audited so.
        """
        if not recipe.privacy.enabled:
            raise UserError("A run without privacy claims nothing that could be audited.")
        kind = "gradient" if self.images is None else self.images
        if kind not in KINDS:
            raise UserError(
                f"Canaries are images that are 'random' or 'mislabelled', not '{kind}'."
                f"{nearest(kind, KINDS[1:])}"
            )
        if kind != "gradient" and dataset.train.units is not None:
            raise UserError(
                f"An image canary stands for a unit of one image, and one {recipe.data.unit} has "
                "several: audit with canaries in gradient space, which stand for any unit."
            )
        if kind == "gradient" and recipe.training.phases:
            raise UserError(
                "A gradient canary has a coordinate that every step trains, and training.phases "
                "changes what is trained: audit with images as canaries (--images random)."
            )
        count = self._count(kind, dataset, coordinates)
        key = randomness.subkey("canaries").key.hex()
        return CanaryPlan(count, kind, self._score(kind, recipe), key)

    def remarks(self, recipe: Recipe) -> tuple[str, ...]:
        """A sentence on the score that is taken instead of the weights', if one is."""
        if self.images is not None or self.score is not None or updates_are_linear(recipe):
            return ()
        return (
            f"The weights of '{recipe.optimizer.name}' cannot be scored, as its updates are not "
            "linear in the gradients, or decay the weights: guesses are made from "
            f"{SCORES['released']}.",
        )

    def _count(self, kind: str, dataset: Dataset, coordinates: int) -> int:
        examples, limits = dataset.train.examples, {}
        word = "images" if dataset.train.units is None else "units"
        limits[f"a tenth of the {examples} training {word}"] = examples // _IMAGES
        if kind == "gradient":
            limits[f"the {coordinates} trained parameters, one for each"] = coordinates
        if kind == "mislabelled":
            limits[f"the {len(dataset.test)} test images"] = len(dataset.test)
        reason, most = min(limits.items(), key=lambda item: item[1])
        count = min(MOST, most) if self.canaries is None else self.canaries
        if most < FEWEST:
            raise UserError(
                f"There are too few images or parameters to audit with: at most {most} canaries "
                f"({reason}), and fewer than {FEWEST} show nothing."
            )
        if not FEWEST <= count <= most:
            raise UserError(
                f"{count} canaries cannot be used: choose a number from {FEWEST} to {most} "
                f"({reason})."
            )
        return count

    def _score(self, kind: str, recipe: Recipe) -> str:
        if kind != "gradient":
            if self.score is not None:
                raise UserError("Image canaries are scored by their loss: leave the score out.")
            return "loss"
        linear = updates_are_linear(recipe)
        if self.score not in (None, "weights", "released"):
            raise UserError(f"A score is 'weights' or 'released', not '{self.score}'.")
        if self.score == "weights" and not linear:
            raise UserError(
                f"The weights of '{recipe.optimizer.name}' cannot be scored: its updates are not "
                "linear in the gradients, or decay the weights. The score 'released' can be used "
                "with every optimizer, and is if none is chosen."
            )
        return self.score or ("weights" if linear else "released")


def updates_are_linear(recipe: Recipe) -> bool:
    """Tell whether the change of the weights is a weighted sum of the released gradients."""
    return recipe.optimizer.name == "sgd" and not recipe.optimizer.weight_decay
