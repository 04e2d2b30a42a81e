"""The work of a run, from its recipe alone: the network, its images, and how many are processed."""

from __future__ import annotations

import json
from dataclasses import dataclass

from sfumato.data.catalogue import CATALOGUE, DRAWN
from sfumato.data.subset import PAPER as SUBSETS
from sfumato.recipe import Recipe
from sfumato.training.setup import asked_steps, expected_batch

_DRAWN_SIDE, _DRAWN_CHANNELS, _DRAWN_CLASSES = 32, 3, 10
"""Images that the program draws, where a recipe leaves it open."""


@dataclass(frozen=True)
class Network:
    """A network and the part of it that is trained.

    Attributes:
        name: The model.
        options: Its options, as JSON.
        batchnorm_to: The layer in place of batch norms, if any.
        trained: Name patterns of what is trained, as JSON; all if empty.
        private: Whether it is trained with clipping and noise.
    """

    name: str
    options: str
    batchnorm_to: str | None
    trained: str
    private: bool


@dataclass(frozen=True)
class Workload:
    """The work of a run.

    Attributes:
        network: The network.
        channels: Channels of an image.
        size: Height and width of an image.
        classes: Classes of the data set.
        examples: Training images; 0 if not known.
        batch: Expected batch.
        views: Views of an example, mixtures included.
        steps: Steps that the recipe asks for.
        precision: Precision of the passes.
    """

    network: Network
    channels: int
    size: tuple[int, int]
    classes: int
    examples: float
    batch: int
    views: int
    steps: int
    precision: str

    @property
    def pixels(self) -> int:
        """Pixels of an image."""
        return self.size[0] * self.size[1]

    @property
    def rows(self) -> int:
        """Expected number of rows of a step: example × view."""
        return self.batch * self.views

    @property
    def kind(self) -> tuple[object, ...]:
        """All that a compiled pass depends on: runs of one kind can use one compilation."""
        images = self.channels, self.size, self.classes
        return (self.network, *images, self.batch, self.views, self.precision)


def workload_of(recipe: Recipe, *, precision: str | None = None) -> Workload | None:
    """The work of a recipe's run; None if its data set has no known size.

    Args:
        recipe: The recipe.
        precision: The precision instead of the recipe's.
    """
    t, entry = recipe.training, CATALOGUE.get(recipe.data.name)
    examples = training_images(recipe)
    if entry is not None and examples:
        side, channels, classes = entry.size, entry.channels, entry.classes
    elif recipe.data.name in DRAWN:
        side, channels, classes = (_DRAWN_SIDE,) * 2, _DRAWN_CHANNELS, _DRAWN_CLASSES
    else:
        return None
    wanted = recipe.data.size
    size = side if wanted is None else (wanted, wanted)
    batch = expected_batch(t, int(examples))
    network = Network(
        recipe.model.name,
        json.dumps(recipe.model.options, sort_keys=True),
        recipe.model.batchnorm_to,
        json.dumps(recipe.start.train),
        recipe.privacy.enabled,
    )
    return Workload(
        network, recipe.data.channels or channels, size, classes, examples, batch,
        t.views + t.self_mix, asked_steps(t, round(examples), batch), precision or t.precision,
    )  # fmt: skip


def training_images(recipe: Recipe) -> float:
    """The number of training images of a recipe, or 0 if its data set is not a known one.

    For random classes, the average number of images per class is used.
    """
    entry, cut = CATALOGUE.get(recipe.data.name), recipe.data.subset
    if entry is None or (cut and cut not in SUBSETS):
        return 0.0
    share = SUBSETS[cut][0] / entry.classes if cut else 1.0
    return entry.train * share * (1 - recipe.data.validation)
