"""Decisions by thresholds on class probabilities, in place of the most probable class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy.typing as npt

from sfumato.errors import UserError, nearest


def parse_thresholds(texts: Sequence[str], classes: Sequence[str]) -> dict[str, float]:
    """Thresholds by class, from texts such as `0.9`, for every class, or `malignant=0.3`.

    A threshold for a class by name goes before one for every class.

    Raises:
        UserError: If a text is no such threshold, or names a class that there is not.
    """
    found: dict[str, float] = {}
    named: dict[str, float] = {}
    for text in texts:
        # The last sign divides, as a class may have any name.
        name, sign, number = text.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            value = -1.0
        if not 0 <= value <= 1:
            raise UserError(
                f"--threshold {text}: give a probability from 0 to 1, as in 0.9, or one for a "
                "class, as in malignant=0.3."
            )
        if not sign:
            found = dict.fromkeys(classes, value)
        elif name in classes:
            named[name] = value
        else:
            raise UserError(
                f"--threshold {text}: there is no class '{name}'.{nearest(name, classes)}"
            )
    return found | named


def decide(
    probabilities: npt.ArrayLike, classes: Sequence[str], thresholds: Mapping[str, float]
) -> str | None:
    """The class of one image by thresholds.

    Of the classes whose probability reaches their threshold, the most probable; if none does, the
    most probable of those without a threshold; None if every class has one.

    Args:
        probabilities: `(classes,)`.
        classes: The names of the classes.
        thresholds: By name of the class.
    """
    values = dict(zip(classes, map(float, probabilities), strict=True))  # type: ignore[arg-type]
    reached = [name for name, least in thresholds.items() if values[name] >= least]
    rest = [name for name in classes if name not in thresholds]
    return max(reached or rest, key=values.__getitem__, default=None)
