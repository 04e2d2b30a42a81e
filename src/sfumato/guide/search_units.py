"""The data that a user names, looked at without writing anything, with its units of privacy."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sfumato.data import Dataset
from sfumato.data.units import IMAGE
from sfumato.errors import UserError
from sfumato.settings import Data
from sfumato.training.recipe_data import dataset_of

PATIENT = "patient"
"""The unit that is looked for where none is named."""

_FEWEST = 30
"""Fewer units than this are folders of another kind, such as left and right."""


@dataclass(frozen=True, eq=False)
class Found:
    """A data set, and what was found out about its units of privacy.

    Attributes:
        dataset: The images, by the units of `data`.
        data: Settings that name it.
        remark: The result of the search for units, in a sentence; empty if none was made.
    """

    dataset: Dataset
    data: Data
    remark: str = ""


def look(data: Data, *, search: bool = True, cache: bool = False) -> Found:
    """Look at a data set and, unless its unit is named, for patients with several images.

    Patients are where docs/patients.md says: folders below classes, columns, arrays, DICOM fields.

    Args:
        data: Settings that name the data.
        search: Whether to look for patients where the unit is one image.
        cache: Whether decoded images may be kept in the user's cache; otherwise nothing is written.

    Raises:
        UserError: If there is no such data, or it cannot be read.
    """
    if data.unit != IMAGE or not search:
        return Found(_loaded(data, cache), data)
    try:
        found = _loaded(replace(data, unit=PATIENT), cache)
    except UserError as error:
        own = _loaded(data, cache)
        return Found(own, data, f"No {PATIENT}s with several images were found: {error}")
    units, images = found.train.examples, len(found.train)
    assert found.train.units is not None
    if units == images:
        return Found(_loaded(data, cache), data, f"Every {PATIENT} has one training image.")
    if units < _FEWEST:
        return Found(
            _loaded(data, cache),
            data,
            f"What could be {PATIENT}s are only {units} groups of training images, too few to "
            "train on: the unit of privacy is one image. If they are people, epsilon is not about "
            "one of them.",
        )
    sizes = np.unique(found.train.units, return_counts=True)[1]
    remark = (
        f"{units:,} {PATIENT}s were found in the training images, with {sizes.min()} to "
        f"{sizes.max()} images each."
    )
    return Found(found, replace(data, unit=PATIENT), remark)


def _loaded(data: Data, cache: bool) -> Dataset:
    return dataset_of(replace(data, cache=cache and data.cache))
