"""Seeded, stratified splits that do not depend on any library's random stream."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato.errors import UserError


def check_fraction(name: str, fraction: float, *, zero: bool = False) -> None:
    """Refuse a fraction outside (0, 1), or outside [0, 1) where zero is allowed."""
    inside = (0 <= fraction < 1) if zero else (0 < fraction < 1)
    if not inside:
        low = "at least 0" if zero else "above 0"
        raise UserError(f"{name} = {fraction} is impossible: give a fraction {low} and below 1.")


def stratified(
    labels: npt.NDArray[Any],
    fraction: float,
    *,
    seed: int,
    purpose: str,
    ids: Sequence[str] | None = None,
    at_least: int = 0,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Split positions into the rest and a part with about ``fraction`` of each class.

    Each example has a key: a hash of the seed, the purpose and its identity. Of a class with n
    examples the ``round(fraction * n)`` with the lowest keys form the part; one always remains in
    the rest.

    *Guarantee:* with ``ids`` that belong to the examples (file names, not positions), leaving one
    example out of the data moves at most one other example from one side to the other, of the same
    class. The split is not part of the privacy mechanism, whose guarantee is about the training set
    that results.

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
    if not isinstance(seed, int) or seed < 0:
        raise UserError(f"split_seed = {seed} is impossible: give a whole number, 0 or above.")
    names = ids if ids is not None else range(len(labels))
    keys = [_key(f"{seed}/{purpose}/{name}") for name in names]
    members: dict[int, list[int]] = {}
    for position, label in enumerate(labels.tolist()):
        members.setdefault(label, []).append(position)
    taken = np.zeros(len(labels), dtype=bool)
    for positions in members.values():
        count = math.floor(fraction * len(positions) + 0.5)
        count = min(max(count, at_least), len(positions) - 1)
        positions.sort(key=keys.__getitem__)
        taken[positions[:count]] = True
    return np.flatnonzero(~taken), np.flatnonzero(taken)


def _key(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).digest()
