"""The data set that a recipe names."""

from __future__ import annotations

from pathlib import Path

from sfumato.data import Dataset, load
from sfumato.data.subset import subset
from sfumato.settings import Data


def dataset_of(data: Data, *, root: str | Path | None = None) -> Dataset:
    """Load the data of a recipe, cut down as it says.

    Args:
        data: The recipe's section.
        root: Where to look for data sets first.
    """
    whole = load(
        data.name,
        root=root,
        size=data.size,
        channels=data.channels,
        bits=data.bits,
        validation=data.validation,
        test_fraction=data.test_fraction,
        split_seed=data.split_seed,
        skip_unreadable=data.skip_unreadable,
        cache=data.cache,
    )
    return subset(whole, data.subset, seed=data.split_seed)
