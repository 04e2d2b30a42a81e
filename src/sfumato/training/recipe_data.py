"""The data set that a recipe names."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from sfumato.data import Dataset, load
from sfumato.data.catalogue import canonical
from sfumato.data.split import Rule
from sfumato.data.subset import subset
from sfumato.errors import UserError
from sfumato.settings import Data


def dataset_of(data: Data, *, root: str | Path | None = None) -> Dataset:
    """Load the data of a recipe, cut down as it says.

    Args:
        data: The recipe's section.
        root: Where to look for data sets first.

    Raises:
        UserError: If there is no such data, it cannot be read, or no image is set aside for
            testing.
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
        split_rule=cast(Rule, data.split_rule),
        skip_unreadable=data.skip_unreadable,
        cache=data.cache,
    )
    dataset = subset(whole, data.subset, seed=data.split_seed)
    if not len(dataset.train) or not len(dataset.test):
        found = "No image" if len(dataset.train) else "Every image"
        raise UserError(
            f"{found} of {dataset.source} is set aside for testing: add images, or have others set "
            "aside with `--set data.split_seed=1`."
        )
    return dataset


def split_in_words(data: Data) -> str:
    """A sentence for the statement on how images were held out for testing or validation."""
    if canonical(data.name) is not None:
        return "Which images are held out is fixed for this data set."
    if data.split_rule == "independent":
        return (
            "Images that were held out, unless you had divided them yourself, were chosen each by "
            "itself: leaving one out moves no other."
        )
    return (
        "Images that were held out, unless you had divided them yourself, were chosen by "
        "`data.split_rule = stratified`: leaving one out moves others in or out of the training "
        "set, and epsilon does not cover that."
    )
