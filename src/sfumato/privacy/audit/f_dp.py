"""A lower bound of epsilon by trade-off functions (Mahloujifar, Melis and Chaudhuri, 2024).

"Auditing f-differential privacy in one run", Algorithm 3. The claim is a whole trade-off function
rather than one (epsilon, delta), which rules out more. For a number of correct guesses the
probabilities of all other numbers are bounded by one another through the trade-off function; if no
probabilities that add up fit the significance, the claim is rejected.
"""

from __future__ import annotations

from sfumato.privacy.audit.pairs import Family, Pair
from sfumato.privacy.audit.search import largest_rejected


def rejects(
    pair: Pair, *, canaries: int, guesses: int, correct: int, significance: float = 0.05
) -> bool:
    """Tell whether so many correct guesses reject the claim that a run is no less private.

    Args:
        pair: The claim.
        canaries: Number of canaries, whether or not they were guessed.
        guesses: Number of guesses, fixed before the scores are known.
        correct: Correct ones among them.
        significance: Probability of rejecting a true claim, at most.
    """
    right = significance * correct / canaries
    wrong = significance * (guesses - correct) / canaries
    for fewer in range(correct - 1, -1, -1):
        more = max(wrong, pair.least(right))
        if more == wrong:  # Neither number changes from here on.
            break
        right = min(1.0, right + fewer / (guesses - fewer) * (more - wrong))
        wrong = more
    return right + wrong > guesses / canaries


def epsilon_bound(
    family: Family,
    *,
    canaries: int,
    guesses: int,
    correct: int,
    delta: float,
    significance: float = 0.05,
    most: float = 64.0,
    precision: float = 1e-5,
) -> float:
    """The epsilon at `delta` of the least private claim of a family that is rejected.

    *Guarantee:* If a run is no less private than a pair of the family, the bound is above the
    epsilon of this pair with a probability of at most `significance`.
    """
    scale = largest_rejected(
        lambda scale: rejects(
            family(scale), canaries=canaries, guesses=guesses, correct=correct,
            significance=significance,
        ),
        most=most, precision=precision,
    )  # fmt: skip
    return family(scale).epsilon(delta) if scale else 0.0
