"""Loaders whose batches are Poisson draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, IterableDataset

from sfumato.errors import UserError
from sfumato.privacy.numerics.randomness import Keystream
from sfumato.privacy.sampling import PoissonSampler
from sfumato.privacy.units.image_units import Units


@dataclass
class _Collate:
    """A collate function that also accepts an empty draw.

    Attributes:
        collate: The loader's own collate function.
        dataset: Its data set; the first example shows the types and shapes of a batch.
    """

    collate: Callable[[list[Any]], Any]
    dataset: Any

    def __call__(self, items: Sequence[Any]) -> Any:
        if items:
            return self.collate(list(items))
        one = self.collate([self.dataset[0]])
        return tree_map(lambda part: part[:0] if isinstance(part, Tensor | list) else part, one)


@dataclass
class _WithUnits:
    """A data set whose items end with the number of their unit."""

    dataset: Any
    units: list[int]

    def __len__(self) -> int:
        return len(self.units)

    def __getitem__(self, i: int) -> tuple[Any, ...]:
        item = self.dataset[i]
        return (*(item if isinstance(item, tuple | list) else (item,)), self.units[i])


@dataclass
class _ImagesOfUnits:
    """Images of the units of a draw, at most `most` of each, unit by unit."""

    units: Units
    most: int

    def __call__(self, drawn: Tensor, stream: Keystream) -> Tensor:
        found, there = self.units.images(drawn, most=self.most, slots=self.most, stream=stream)
        return found[there]


def poisson_loader(
    loader: DataLoader[Any],
    sampler: PoissonSampler,
    steps: int | None = None,
    *,
    units: Tensor | None = None,
    per_unit: int | None = None,
) -> DataLoader[Any]:
    """A loader with the data set, workers and collate function of another, and Poisson draws.

    Guarantee: Each batch is one whole draw of the sampler, an empty one included.

    Args:
        loader: The loader; its batch size and order are not used.
        sampler: The sampler of its examples.
        steps: Number of draws in one pass; as many as the loader has batches if None.
        units: The unit of each image, if units are drawn.
        per_unit: Most images of a unit in a draw; all if None.
    """
    if not isinstance(loader, DataLoader):
        raise UserError(
            f"The loader must be a torch.utils.data.DataLoader, not {type(loader).__name__}: give "
            "DataLoader(dataset), whose batch size and order do not matter."
        )
    dataset: Any = loader.dataset
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise UserError(
            "Examples are drawn by their index, and this loader's data set has none: use one with "
            "__getitem__ and __len__."
        )
    images = None
    if units is not None:
        if len(units) != len(dataset):
            raise UserError(
                f"The loader's data set has {len(dataset)} images and there are {len(units)} units "
                "of images: give the unit of each image."
            )
        own = Units(units)
        images = _ImagesOfUnits(own, per_unit or max(1, int(own.sizes.max())))
        dataset = _WithUnits(dataset, own.of.tolist())
        if own.count != sampler.examples:
            raise UserError(
                f"There are {own.count} units and the sampler has {sampler.examples} examples: "
                "units are what it draws."
            )
    elif len(dataset) != sampler.examples:
        raise UserError(
            f"The loader's data set has {len(dataset)} examples and the sampler "
            f"{sampler.examples}: give both the training examples."
        )
    return DataLoader(
        dataset,
        batch_sampler=sampler.batches(len(loader) if steps is None else steps, images=images),
        num_workers=loader.num_workers,
        collate_fn=_Collate(loader.collate_fn, dataset),
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        persistent_workers=loader.persistent_workers,
        prefetch_factor=loader.prefetch_factor,
    )
