"""Balanced draws: examples of common classes are drawn less often than those of rare ones.

*Guarantee:* The relative rates are settings of the recipe, never counted from the private labels.
Poisson sampling draws every example with probability q. Of the examples drawn, each one of class c
stays with probability r_c ≤ 1, independently of all others: it enters a step with probability
q r_c. Leaving out an example of class c therefore changes a step as at a sampling rate of q r_c.
The privacy loss of a Poisson-subsampled Gaussian grows with its rate, so epsilon at q, which ledger
and statement have, holds for examples of every class, and is less than that for common ones. It
holds for an attacker who knows which of the examples drawn would stay.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sfumato.data.imageset import Array
from sfumato.data.units import IMAGE
from sfumato.errors import UserError
from sfumato.privacy.numerics.randomness import Randomness
from sfumato.recipe import Recipe
from sfumato.training.per_class import check_count, check_numbers


def relative_rates(balance: Sequence[float]) -> tuple[float, ...]:
    """The rates of classes beside q, the highest of them 1; empty if nothing is balanced.

    Raises:
        UserError: If a number is impossible.
    """
    check_numbers("data.balance", balance, "9 for a class that is to be drawn nine times as often")
    return tuple(value / max(balance) for value in balance)


class Balance:
    """The choice of those examples of a draw that stay.

    Args:
        balance: A number for each class, in proportion to how often its examples are drawn; empty
            for none.
        labels: The classes of the examples. Examples beyond them, such as canaries, always stay.
        randomness: Source of the choice, which follows from it and the step alone.
    """

    def __init__(self, balance: Sequence[float], labels: Array, randomness: Randomness) -> None:
        self._rates = torch.tensor(relative_rates(balance), dtype=torch.float64)
        self._labels = torch.from_numpy(labels.copy() if balance else labels[:0].copy())
        self._randomness = randomness

    def stay(self, draw: Tensor, step: int) -> Tensor:
        """The examples of a draw that enter a step.

        Guarantee: Whether an example stays depends on its own class and on its position in the
        draw, but on no other example's class.
        """
        if not len(self._rates):
            return draw
        rates = torch.ones(len(draw), dtype=torch.float64)
        known = draw < len(self._labels)
        rates[known] = self._rates[self._labels[draw[known]]]
        coins = self._randomness.stream(step, "balance").uniforms(len(draw))
        return draw[torch.tensor(coins, dtype=torch.float64) < rates]


def check_balance(recipe: Recipe, classes: Sequence[str]) -> None:
    """Refuse rates that do not fit the classes or the unit of privacy.

    Args:
        recipe: The recipe.
        classes: Names of the classes, in their order.

    Raises:
        UserError: If they do not.
    """
    balance, unit = recipe.data.balance, recipe.data.unit
    if not balance:
        return
    if unit != IMAGE:
        raise UserError(
            f"data.balance draws images by their classes, but the images of one {unit}, who is "
            "drawn as a whole, may be of several: leave it out. training.class_weights works "
            f"with {unit}s too."
        )
    check_count("data.balance", balance, classes)
    relative_rates(balance)
