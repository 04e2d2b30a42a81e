"""A lower bound of epsilon by exact order statistics (Xiang et al., 2025).

Xiang, Wang, Xiao, Tian and Wang, "Tight privacy audit in one run". Of n guesses, one for each
canary, the r most certain are counted. Under a claim, the certainty of the first guess that is not
counted has a quantile W ~ Beta(n - r, r + 1), and given W the counted guesses are independent, each
wrong with the mean error e(W) above that quantile. So the probability of at most u wrong ones is
E[F(u; r, e(W))] with the binomial distribution function F, exactly.
"""

from __future__ import annotations

import numpy as np
from scipy import special, stats

from sfumato.privacy.audit.pairs import Pair

_NODES = 10_001
"""Nodes of the integral over the cut."""

_REACH = 8.0
"""Standard deviations of the cut that the integral covers, on either side."""


def p_value(pair: Pair, *, canaries: int, guesses: int, correct: int) -> float:
    """The probability of at least so many correct guesses under a claim.

    Args:
        pair: The claim.
        canaries: Number of canaries n.
        guesses: Number of guesses r, the most certain, fixed before the scores are known.
        correct: Correct ones among them.
    """
    wrong = guesses - correct
    if guesses == canaries:
        return float(special.bdtr(wrong, guesses, pair.mean_error(np.zeros(1)))[0])
    cut = stats.beta(canaries - guesses, guesses + 1)
    low = max(0.0, cut.mean() - _REACH * cut.std())
    high = min(1.0, cut.mean() + _REACH * cut.std())
    edges = np.linspace(low, high, _NODES)
    masses = np.diff(cut.cdf(edges))
    # The mean error falls with the quantile: that of the upper end makes no probability too small.
    errors = np.clip(pair.mean_error(edges[1:]), 0.0, 0.5)
    within = float((masses * special.bdtr(wrong, guesses, errors)).sum())
    return min(1.0, within + max(0.0, 1 - float(masses.sum())))


def rejects(
    pair: Pair, *, canaries: int, guesses: int, correct: int, significance: float = 0.05
) -> bool:
    """Tell whether so many correct guesses reject the claim that a run is as private as `pair`.

    The arguments are those of `p_value`; a true claim is rejected with a probability of at most
    `significance`.
    """
    return p_value(pair, canaries=canaries, guesses=guesses, correct=correct) < significance
