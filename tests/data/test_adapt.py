"""Labels of data whose classes a model numbers in another order."""

from __future__ import annotations

import numpy as np
import pytest

from sfumato import data
from sfumato.data.adapt import align_labels, renumbered
from sfumato.errors import UserError


def test_labels_follow_the_names_not_the_order() -> None:
    labels = np.array([0, 1, 2, 2])
    found = align_labels(labels, ("b", "c", "a"), ("a", "b", "c"))
    assert found.tolist() == [1, 2, 0, 0]


@pytest.mark.parametrize(
    ("classes", "words"),
    [
        (("a", "b"), "only the model has 'c'"),
        (("a", "b", "c", "d"), "only the data has 'd'"),
        (("a", "b", "C"), "only the model has 'c'; only the data has 'C'"),
        (tuple("abc") + tuple("tuvwxyz"), "'t', 'u', 'v', 'w', 'x' and 2 more"),
    ],
)
def test_other_classes_are_named(classes: tuple[str, ...], words: str) -> None:
    with pytest.raises(UserError, match=words):
        align_labels(np.zeros(1, dtype=np.int64), classes, ("a", "b", "c"))


def test_every_part_of_a_data_set_is_renumbered() -> None:
    digits = data.load("digits", validation=0.1)
    turned = renumbered(digits, digits.classes[::-1])
    assert turned.classes == digits.classes[::-1]
    for name, part in turned.parts().items():
        assert (part.labels == 9 - digits.parts()[name].labels).all(), name
    assert renumbered(digits, digits.classes) is digits
