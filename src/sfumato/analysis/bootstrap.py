"""The bootstrap over units: resamples as weights of images, and percentile intervals.

Images of one unit (a patient, say) are alike, so units and not images are drawn with replacement,
as many as there are (Davison and Hinkley, 1997, section 3.8). An image's weight in a resample is
the number of times that its unit was drawn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

RESAMPLES = 1000
"""Resamples unless another number is given: 25 of them lie beyond each end of a 95 % interval."""

AT_ONCE = 16
"""Resamples computed at once, so that their weights stay in the processor's cache."""


def unit_word(stated: str, units: Array | None) -> str:
    """The word for what is resampled: an image, or the unit that a recipe states for others."""
    if units is None:
        return "image"
    return "unit" if stated == "image" else stated


def unit_numbers(units: npt.ArrayLike | None, n: int) -> tuple[Array, int]:
    """The unit of each of `n` images, numbered from 0, and how many units there are.

    Args:
        units: `(n,)`, equal for images of one unit; None if each image is one.
        n: Number of images.

    Raises:
        ValueError: If there are not as many units as images.
    """
    if units is None:
        return np.arange(n), n
    given = np.asarray(units)
    if given.shape != (n,):
        raise ValueError(f"units {given.shape}: want one for each of {n} images")
    names, numbers = np.unique(given, return_inverse=True)
    return numbers.reshape(-1), len(names)


def resampled_weights(
    units: npt.ArrayLike | None, n: int, *, resamples: int, seed: int
) -> Iterator[Array]:
    """Weights `(n, k)` of images in some resamples of their units, for all resamples in turn.

    Args:
        units: As for `unit_numbers`.
        n: Number of images.
        resamples: Number of resamples.
        seed: Of the draws. Equal seeds and numbers of units give equal resamples.
    """
    numbers, count = unit_numbers(units, n)
    generator = np.random.default_rng(seed)
    for start in range(0, resamples, AT_ONCE):
        size = min(AT_ONCE, resamples - start)
        drawn = [np.bincount(generator.integers(0, count, count), minlength=count)
                 for _ in range(size)]  # fmt: skip
        times = np.stack(drawn, axis=1).astype(np.float64)
        yield times if units is None else times[numbers]


def percentile_interval(values: Array, level: float) -> Array:
    """The central interval `(2, ...)` that holds this part of resampled values, over axis 0.

    Resamples in which a value is not defined (NaN) are left out; where it is defined in none, the
    interval is NaN.
    """
    tail = (1 - level) / 2
    found = np.full((2, *values.shape[1:]), math.nan)
    defined = ~np.isnan(values).all(0)
    found[:, defined] = np.nanquantile(values[:, defined], [tail, 1 - tail], axis=0)
    return found
