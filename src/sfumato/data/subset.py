"""A random part of a data set's classes, as Papernot et al. (2019) cut up CIFAR-100.

Min-rand-10 keeps ten random classes; half-rand-50 keeps a random half of the hundred and groups it
into ten new classes of five each; max-100 keeps all hundred. `rand-N` and `rand-N/GROUPS` say the
same for any number of classes.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace

import numpy as np

from sfumato.data.imageset import Dataset, ImageSet
from sfumato.errors import UserError, nearest

PAPER = {"min-rand-10": (10, 10), "half-rand-50": (50, 10), "max-100": (100, 100)}
"""The variants of the paper: the number of classes, and the number of groups of them."""


def subset(dataset: Dataset, choice: str, *, seed: int = 0) -> Dataset:
    """The images of some classes, chosen at random and perhaps grouped into new classes.

    Args:
        dataset: The data set to choose from; every part of it is reduced alike.
        choice: `min-rand-10`, `half-rand-50`, `max-100`, `rand-N` or `rand-N/GROUPS`; everything if
            empty.
        seed: Seed of the choice of classes, the same on every machine.

    Returns:
        A data set whose classes are the chosen ones in their old order, or groups named after
        their members, such as `apple+bee`.

    *Guarantee:* The choice of classes depends on their number and on the seed, never on an image.

    Raises:
        UserError: If there is no such choice for this data set.
    """
    if not choice:
        return dataset
    kept, groups = _parsed(choice)
    count = len(dataset.classes)
    if kept > count:
        raise UserError(
            f"data.subset = '{choice}' takes {kept} classes, but '{dataset.name}' has {count}: "
            f"choose rand-N with N at most {count}."
        )
    order = sorted(range(count), key=lambda k: _key(f"{seed}/subset/{k}"))[:kept]
    if groups == kept:
        members = [[k] for k in sorted(order)]
    else:
        size = kept // groups
        members = [sorted(order[start : start + size]) for start in range(0, kept, size)]
    new = np.full(count, -1, dtype=np.int64)
    for label, group in enumerate(members):
        new[group] = label
    validation = None if dataset.validation is None else _cut(dataset.validation, new)
    return replace(
        dataset,
        classes=tuple("+".join(dataset.classes[k] for k in group) for group in members),
        train=_cut(dataset.train, new),
        test=_cut(dataset.test, new),
        validation=validation,
        notes=(*dataset.notes, _note(dataset, kept, groups)),
    )


def _parsed(choice: str) -> tuple[int, int]:
    """The number of classes that are chosen, and the number after grouping."""
    name = choice.strip().lower()
    if name in PAPER:
        return PAPER[name]
    match = re.fullmatch(r"rand-(\d{1,6})(?:/(\d{1,6}))?", name)
    if match is None:
        raise UserError(
            f"There is no data.subset '{choice}'.{nearest(name, PAPER)} Known are "
            f"{', '.join(PAPER)}, rand-N (N random classes) and rand-N/G (the same in G groups)."
        )
    kept, groups = int(match[1]), int(match[2] or match[1])
    if groups < 2 or kept < groups or kept % groups:
        raise UserError(
            f"data.subset = '{choice}' is impossible: at least two classes or groups must remain, "
            "all groups of one size."
        )
    return kept, groups


def _cut(part: ImageSet, new: np.ndarray) -> ImageSet:
    labels = new[part.labels]
    chosen = part.take(np.flatnonzero(labels >= 0))
    return replace(chosen, labels=new[chosen.labels])


def _note(dataset: Dataset, kept: int, groups: int) -> str:
    how = f", in {groups} groups of {kept // groups}" if groups < kept else ""
    return f"{kept} of the {len(dataset.classes)} classes of '{dataset.name}' are used{how}."


def _key(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
