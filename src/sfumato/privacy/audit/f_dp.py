"""A lower bound of epsilon by trade-off functions (Mahloujifar, Melis and Chaudhuri, 2024).

"Auditing f-differential privacy in one run", Algorithm 3. The claim is a whole trade-off function
rather than one (epsilon, delta), which rules out more. For a number of correct guesses the
probabilities of all other numbers are bounded by one another through the trade-off function; if no
probabilities that add up fit the significance, the claim is rejected.
"""

from __future__ import annotations

from sfumato.privacy.audit.pairs import Pair


def rejects(
    pair: Pair, *, canaries: int, guesses: int, correct: int, significance: float = 0.05
) -> bool:
    """Tell whether so many correct guesses reject the claim that a run is as private as `pair`.

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
