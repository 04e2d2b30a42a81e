"""The score of a finished run: right predictions on held-out images with noise, or on public ones.

*Guarantee:* With noise, a score is a Gaussian release of a count that one image moves by at most 1.
The noise is rounded to a grid of its own before it is added to the count, which is an integer, so
that the digits of a score say nothing but its value.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch

from sfumato.data import Dataset, ImageStore, load
from sfumato.data.adapt import adapt
from sfumato.data.split import Rule
from sfumato.errors import UserError
from sfumato.privacy.numerics.randomness import Randomness
from sfumato.recipe import Recipe
from sfumato.training import classifier, devices
from sfumato.training.evaluation import evaluate
from sfumato.training.recipe_data import dataset_of

_GRID = 1024
"""Values of the noise between two counts."""


def public_images(name: str, recipe: Recipe, like: Dataset, *, root: Path | None = None) -> Dataset:
    """Images to compare runs on that are not those of the runs, in the shape that these have.

    Args:
        name: Data set, folder or `.npz`.
        recipe: The recipe of the runs.
        like: The data that they are trained on.
        root: First folder to search for data sets.

    Raises:
        UserError: If they are the runs' own, or of other classes.
    """
    own, d = recipe.data.name, recipe.data
    if name == own or Path(name).expanduser().absolute() == Path(own).expanduser().absolute():
        raise UserError(
            f"--score-data {name}: those are the images of the runs themselves. Leave it out to "
            "compare runs on a part of them that is held out, with noise."
        )
    found = load(
        name, root=root, size=like.size, channels=like.channels, bits=d.bits, cache=d.cache,
        skip_unreadable=d.skip_unreadable, split_rule=cast(Rule, d.split_rule),
    )  # fmt: skip
    if found.classes != like.classes:
        raise UserError(
            f"--score-data {name} has other classes ({_few(found.classes)}) than '{own}' "
            f"({_few(like.classes)}): give images of the same classes."
        )
    return found


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


class Score:
    """Scores of the runs of one private tuning.

    Args:
        recipe: The settings that all runs have in common.
        noise: Standard deviation of the noise on a count of images; None for none.
        public: Public images to compare runs on; the recipe's held-out ones if empty.
        key: The source of the noise.
        root: First folder to search for data sets.
        device: `auto`, `cpu`, `cuda` or `mps`.
        trust_code: Modules outside sfumato whose models the runs may name.
    """

    def __init__(
        self,
        recipe: Recipe,
        noise: float | None,
        public: str,
        key: Randomness,
        *,
        root: Path | None,
        device: str,
        trust_code: Sequence[str],
    ) -> None:
        self._key, self._noise, self._trust = key, noise, trust_code
        self._device = devices.pick_device(device, recipe.training.precision)
        self._data = dataset_of(recipe.data, root=root)
        self._parts = ["validation"]
        if public:
            self._data = public_images(public, recipe, self._data, root=root)
            self._parts = [name for name, part in self._data.parts().items() if len(part)]

    def of(self, folder: Path, number: int) -> float:
        """The score of a finished run, a fraction of the images; the same each time.

        Args:
            folder: The run.
            number: Its number, which its noise follows from.
        """
        found = classifier.load(folder, device=self._device, trust_code=self._trust)
        d, data = found.description, self._data
        if data.channels != d.channels:
            data = adapt(data, size=None, channels=d.channels)
        right = count = 0
        for name in self._parts:
            part = data.parts()[name]
            store = ImageStore(part, mean=d.mean, std=d.std, device=self._device)
            right += round(evaluate(found.network, store)[0] * len(part))
            count += len(part)
        return (right + self._drawn(number)) / count

    def _drawn(self, number: int) -> float:
        """The noise of a run's score."""
        if self._noise is None:
            return 0.0
        normal = self._key.stream(number, "score").normals(1, torch.device("cpu"))
        return round(float(normal) * self._noise * _GRID) / _GRID
