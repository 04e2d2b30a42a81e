"""Loaders whose batches are Poisson draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, IterableDataset

from sfumato.errors import UserError
from sfumato.privacy.sampling import PoissonSampler


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


def poisson_loader(
    loader: DataLoader[Any], sampler: PoissonSampler, steps: int | None = None
) -> DataLoader[Any]:
    """A loader with the data set, workers and collate function of another, and Poisson draws.

    Guarantee: Each batch is one whole draw of the sampler, an empty one included.

    Args:
        loader: The loader; its batch size and order are not used.
        sampler: The sampler of its examples.
        steps: Number of draws in one pass; as many as the loader has batches if None.
    """
    dataset: Any = loader.dataset
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise UserError(
            "Examples are drawn by their index, and this loader's data set has none: use one with "
            "__getitem__ and __len__."
        )
    if len(dataset) != sampler.examples:
        raise UserError(
            f"The loader's data set has {len(dataset)} examples and the sampler "
            f"{sampler.examples}: give both the training examples."
        )
    return DataLoader(
        dataset,
        batch_sampler=sampler.batches(len(loader) if steps is None else steps),
        num_workers=loader.num_workers,
        collate_fn=_Collate(loader.collate_fn, dataset),
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        persistent_workers=loader.persistent_workers,
        prefetch_factor=loader.prefetch_factor,
    )
