"""Group privacy: the cost of noisy steps for people who have several examples in the data.

A step draws each of a group's k examples with probability q, so the number drawn is binomial, and
each of them moves the released sum by at most one unit. In the worst case they all move it in the
same direction, and the step is a mixture of Gaussians whose means are the numbers drawn
(Choquette-Choo et al., 2024, corollary 4.7). Steps compose as for one example. The result is
usually more than k times the epsilon of one: a group is drawn k times as often and moves the sum by
up to k times as much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from sfumato.errors import UserError
from sfumato.privacy.accounting import accountants, loss_distribution
from sfumato.privacy.accounting.accountants import Step

SIZES = (2, 3, 5, 10)
"""The sizes of groups that a statement reports."""

MOST = 100.0
"""An epsilon above this is not computed: it promises nothing."""

_POINTS = 20_000
"""Most grid points of one step's privacy loss."""

_MANY = 16
"""Noise multipliers that are composed as they are; more are merged with their neighbours."""


def group_epsilon(steps: Sequence[Step], *, delta: float, size: int) -> float:
    """The epsilon that `steps` spend on `size` examples together, infinite above `MOST`.

    Args:
        steps: The history.
        delta: As in (epsilon, delta).
        size: Number of examples that belong together, such as the images of one person.

    *Guarantee:* an upper bound under the relation that adds or removes all examples of a group.
    """
    accountants.check_delta_range(delta)
    if size < 1:
        raise UserError(f"A group has at least one example, not {size}.")
    history = accountants.merge(steps)
    if size == 1 or not history:
        return accountants.epsilon(history, delta=delta)
    if any(step.noise_multiplier == 0 for step in history):
        return math.inf
    return _group_epsilon(_fewer(history), delta, size)


@lru_cache(maxsize=256)
def _group_epsilon(history: tuple[Step, ...], delta: float, size: int) -> float:
    if not _rough(history, size) < 2 * MOST:
        return math.inf
    total = accountants.compose_pld(history, _POINTS, group=size)
    with np.errstate(over="ignore"):  # An epsilon that overflows is infinite.
        found = total.get_epsilon_for_delta(delta)
    return float(found) if found <= MOST else math.inf


def _fewer(history: tuple[Step, ...]) -> tuple[Step, ...]:
    """A history of at most `_MANY` noise multipliers that costs no less.

    *Guarantee:* steps are merged only with steps of the same sampling rate and less noise.
    """
    found: list[Step] = []
    for q in sorted({step.q for step in history}):
        same = sorted((s for s in history if s.q == q), key=lambda s: s.noise_multiplier)
        for some in np.array_split(np.arange(len(same)), min(_MANY, len(same))):
            count = sum(same[k].count for k in some)
            found.append(Step(q, same[some[0]].noise_multiplier, count))
    return tuple(found)


def _rough(history: tuple[Step, ...], size: int) -> float:
    """An estimate of the mean privacy loss of a group: not an upper bound, for magnitudes only."""
    return sum(
        s.count * loss_distribution.mean_loss(s.q, s.noise_multiplier, size) for s in history
    )
