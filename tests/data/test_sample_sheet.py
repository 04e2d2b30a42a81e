"""The sheet of sample images."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sfumato import data
from sfumato.data.sample_sheet import _NAME_WIDTH, sheet


def names(*classes: str) -> np.ndarray:
    digits = data.load("digits")
    drawn = sheet(replace(digits, classes=(*classes, *digits.classes[len(classes) :])))
    return np.asarray(drawn)[: 68 * len(classes), :_NAME_WIDTH]


def test_letters_of_other_languages_are_drawn() -> None:
    """A font that lacks them draws the same box for each."""
    first, second = np.split(names("ö", "ß"), 2)
    assert (first != second).any()


def test_long_names_end_before_the_images() -> None:
    assert (names("a very long name of a class indeed")[:, -4:] == 255).all()
