"""Seeded splits that do not depend on any library's random stream.

Two rules decide which images are set aside. *Independent* decides for each image alone, by a hash
of its identity: it splits users' own images. *Stratified* takes the same share of each class: it
splits named data sets, which are public and fixed, and split all data in version 0.1.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sfumato.errors import UserError

Rule = Literal["independent", "stratified"]


def check_fraction(name: str, fraction: float, *, zero: bool = False) -> None:
    """Refuse a fraction outside (0, 1), or outside [0, 1) where zero is allowed."""
    inside = (0 <= fraction < 1) if zero else (0 < fraction < 1)
    if not inside:
        low = "at least 0" if zero else "above 0"
        raise UserError(f"{name} = {fraction} is impossible: give a fraction {low} and below 1.")


def independent(
    ids: Iterable[str | bytes], fraction: float, *, seed: int, purpose: str
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Split positions into the rest and a part that each example enters with chance ``fraction``.

    An example belongs to the part if a hash of the seed, the purpose and its identity, read as a
    number in [0, 1), is below ``fraction``. So the part has about ``fraction`` of the examples,
    varying by chance, and copies of one image are in the same part.

    *Guarantee:* with ``ids`` that belong to the examples (contents or file names, not positions),
    the part of an example depends on no other example: removing one changes the training set by
    that one at most, and by nothing if it was set aside.

    Args:
        ids: one identity per example.
        fraction: in [0, 1).
        seed: the same seed gives the same split on every machine and version.
        purpose: keeps different splits (test, validation) independent.

    Returns:
        Positions of the rest and of the part, both ascending.
    """
    _check_seed(seed)
    start = f"{seed}/{purpose}/".encode()
    names = (_encoded(name) if isinstance(name, str) else name for name in ids)
    limit = round(fraction * 2**64)
    taken = np.fromiter(
        (int.from_bytes(_digest(start + name)[:8], "big") < limit for name in names), dtype=bool
    )
    return np.flatnonzero(~taken), np.flatnonzero(taken)


def by_unit(
    units: npt.NDArray[np.int64], fraction: float, *, seed: int, purpose: str
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Split positions into the rest and a part, without separating images of one unit.

    *Guarantee:* the part of a unit depends on no other unit (see `independent`).

    Args:
        units: one identity per image, equal for images of the same unit.
        fraction: in [0, 1).
        seed: the same seed gives the same split on every machine and version.
        purpose: keeps different splits (test, validation) independent.

    Returns:
        Positions of the rest and of the part, both ascending.
    """
    known, place = np.unique(units, return_inverse=True)
    names = [int(unit).to_bytes(8, "big", signed=True) for unit in known]
    _, taken = independent(names, fraction, seed=seed, purpose=purpose)
    inside = np.isin(place, taken)
    return np.flatnonzero(~inside), np.flatnonzero(inside)


def stratified(
    labels: npt.NDArray[Any],
    fraction: float,
    *,
    seed: int,
    purpose: str,
    ids: Iterable[str] | None = None,
    at_least: int = 0,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Split positions into the rest and a part with about ``fraction`` of each class.

    Each example has a key: a hash of the seed, the purpose and its identity. Of a class with n
    examples the ``round(fraction * n)`` with the lowest keys form the part; one always remains in
    the rest.

    Removing one example from the data can move others from one part to the other: one other of its
    class where ``ids`` belong to the examples, about ``fraction`` of all where they are positions.
    So this rule is for data sets that are public and fixed.

    Args:
        labels: one label per example.
        fraction: of each class, in [0, 1).
        seed: the same seed gives the same split on every machine and version.
        purpose: keeps the keys of different splits (test, validation) independent.
        ids: one identity per example; positions if not given.
        at_least: take no fewer than this from each class that can spare them.

    Returns:
        Positions of the rest and of the part, both ascending.
    """
    _check_seed(seed)
    names = ids if ids is not None else range(len(labels))
    keys = (
        np.fromiter(
            (_digest(_encoded(f"{seed}/{purpose}/{name}")) for name in names),
            dtype="V16",
            count=len(labels),
        )
        .view(">u8")
        .reshape(-1, 2)
    )  # Two numbers in the order of the bytes.
    order = np.lexsort((keys[:, 1], keys[:, 0], labels))
    taken = np.zeros(len(labels), dtype=bool)
    for positions in np.split(order, np.flatnonzero(np.diff(labels[order])) + 1):
        count = math.floor(fraction * len(positions) + 0.5)
        count = min(max(count, at_least), len(positions) - 1)
        taken[positions[: max(count, 0)]] = True
    return np.flatnonzero(~taken), np.flatnonzero(taken)


def _check_seed(seed: int) -> None:
    if not isinstance(seed, int) or seed < 0:
        raise UserError(f"split_seed = {seed} is impossible: give a whole number, 0 or above.")


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=16).digest()
