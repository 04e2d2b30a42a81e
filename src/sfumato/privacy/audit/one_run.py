"""A lower bound of epsilon from guesses about many canaries of one run (Steinke et al., 2023).

Steinke, Nasr and Jagielski, "Privacy auditing with one (1) training run", Theorem 5.2. A coin
decides for each of m canaries whether it is in. Somebody who sees the weights guesses r of the
coins. If the run is (epsilon, delta)-private, the number of correct guesses is no larger than a
binomial variable of probability e^epsilon / (1 + e^epsilon), but for a term in delta.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special, stats

from sfumato.privacy.audit.lower_bound import largest_rejected


def p_value(*, canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """The largest probability of so many correct guesses under (epsilon, delta)-privacy.

    Args:
        canaries: Number of canaries m, whether or not they were guessed.
        guesses: Number of guesses r, fixed before the scores are known.
        correct: Correct ones among them.
        epsilon, delta: The claim.
    """
    chance = special.expit(epsilon)
    tail = float(stats.binom.sf(correct - 1, guesses, chance))
    if delta == 0:
        return tail
    fewer = np.arange(1, correct + 1)
    more = stats.binom.sf(correct - fewer - 1, guesses, chance) - tail
    slope = float(np.max(more / fewer, initial=0.0))
    return min(1.0, tail + 2 * canaries * delta * slope)


def epsilon_bound(
    *, canaries: int, guesses: int, correct: int, delta: float, significance: float = 0.05
) -> float:
    """The largest epsilon that this many correct guesses reject; 0 if they reject none.

    *Guarantee:* If a run is (epsilon, delta)-private, the bound is above epsilon with a probability
    of at most `significance`.
    """

    def rejected(epsilon: float) -> bool:
        found = p_value(
            canaries=canaries, guesses=guesses, correct=correct, epsilon=epsilon, delta=delta
        )
        return found < significance

    return largest_rejected(rejected, most=math.log(1e12))
