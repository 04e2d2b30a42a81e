"""Accuracies that we measured with few images, and what they let one expect of another number.

Each number is of one run with seed 0, delta = 1e-5 and PLD, with an eighth of the images as the
expected batch, tested on 2000 other training images of the same set (docs/initialisation.md, the
tables of dead leaves and of fixed layers; 2026-11-16 to 2026-11-19). A point more or less is
chance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from sfumato.text import quick_name

Curve = Mapping[int, float]
"""Accuracy by number of training images."""

CHANCE = 0.01
"""A difference of accuracies that tells nothing."""

CIFAR10 = "CIFAR-10"
FASHION = "Fashion-MNIST"

MEASURED: Mapping[tuple[str, str, float], Curve] = {
    ("images", CIFAR10, 3.0): {1000: 0.300, 5000: 0.575, 20_000: 0.711},
    ("images", CIFAR10, 8.0): {1000: 0.428, 5000: 0.658, 20_000: 0.745},
    ("images", FASHION, 3.0): {1000: 0.639, 4000: 0.776, 10_000: 0.814},
    ("last-layer", CIFAR10, 3.0): {1000: 0.479, 5000: 0.631, 20_000: 0.715},
    ("last-layer", CIFAR10, 8.0): {1000: 0.559, 5000: 0.674, 20_000: 0.731},
    ("wavelets", CIFAR10, 3.0): {1000: 0.323, 5000: 0.491},
    ("last-layer", FASHION, 3.0): {1000: 0.770, 4000: 0.832, 10_000: 0.865},
    ("last-layer-grey", FASHION, 3.0): {1000: 0.787, 4000: 0.855, 10_000: 0.882},
    ("wavelets", FASHION, 3.0): {1000: 0.758, 4000: 0.829, 10_000: 0.857},
}
"""Curves by recipe, data set and epsilon."""


@dataclass(frozen=True)
class Expectation:
    """An accuracy that was measured elsewhere, between or at the end of measured numbers of images.

    Attributes:
        accuracy: Interpolated over the logarithm of the number of images.
        data: The data set of the curve.
        epsilon: The budget of the curve.
        images: The number of images that it is for, within the measured range.
        asked: The number of images that was asked for.
    """

    accuracy: float
    data: str
    epsilon: float
    images: int
    asked: int

    @property
    def words(self) -> str:
        """The accuracy with what it was measured on, as a sentence."""
        found = (
            f"Our curve of {self.data} (ten classes, epsilon {self.epsilon:g}) has about "
            f"{100 * self.accuracy:.0f} % at {self.images:,} training images"
        )
        if self.asked != self.images:
            other = "less" if self.asked < self.images else "more"
            found += f", where it ends: expect {other} with {self.asked:,}"
        return f"{found}. Yours may be easier or harder: this is no promise."


def expected_accuracy(
    recipe: str, examples: int, epsilon: float, *, grey: bool
) -> Expectation | None:
    """The accuracy that a general recipe had with this many examples of another data set.

    The curve is that of the highest measured epsilon that is not above `epsilon`, else of the
    lowest; of Fashion-MNIST for grey images, if the recipe was measured there, else of CIFAR-10.

    Args:
        recipe: Name of the recipe.
        examples: Number of training examples: images, or units of several images.
        epsilon: The budget.
        grey: Whether images have one channel.

    Returns:
        The accuracy, or None if the recipe was not measured so.
    """
    for data in (FASHION, CIFAR10) if grey else (CIFAR10,):
        curves = {e: c for (name, of, e), c in MEASURED.items() if (name, of) == (recipe, data)}
        if curves:
            budget = max((e for e in curves if e <= epsilon), default=min(curves))
            curve = curves[budget]
            images = min(max(examples, min(curve)), max(curve))
            return Expectation(interpolated(curve, images), data, budget, images, examples)
    return None


def better_last_layer(examples: int, epsilon: float, *, grey: bool) -> bool:
    """Tell whether a last layer on fixed ones was more accurate than the whole network.

    It was ahead, by more than chance, at the measured epsilons on both sides of this one. Never for
    more examples than it was measured with.

    Args:
        examples: Number of training examples.
        epsilon: The budget.
        grey: Whether images have one channel.
    """
    data, last_layer = FASHION if grey else CIFAR10, quick_name(grey=grey)
    known = sorted(e for name, of, e in MEASURED if (name, of) == (last_layer, data))
    below = max((e for e in known if e <= epsilon), default=known[0])
    above = min((e for e in known if e >= epsilon), default=known[-1])
    for budget in (below, above):
        whole = expected_accuracy("images", examples, budget, grey=grey)
        last = expected_accuracy(last_layer, examples, budget, grey=grey)
        assert whole is not None and last is not None
        if last.accuracy <= whole.accuracy + CHANCE or last.images < examples:
            return False
    return True


def interpolated(curve: Curve, images: int) -> float:
    """The accuracy at a number of images within a curve, linear in its logarithm."""
    known = sorted(curve)
    high = next(n for n in known if n >= images)
    low = max((n for n in known if n <= images), default=high)
    if low == high:
        return curve[low]
    share = math.log(images / low) / math.log(high / low)
    return curve[low] + share * (curve[high] - curve[low])
