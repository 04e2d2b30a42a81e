"""The outputs of a mechanism with one example and without it, as far as tests of privacy need them.

A test of a claim needs a pair of distributions, P without the example and Q with it, by its
privacy loss log(Q/P) alone. A *family* of pairs has one for each scale, less private for larger
scales, so that a lower bound can be searched for among them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from scipy import optimize, special

from sfumato.privacy.accounting import accountants
from sfumato.privacy.accounting.accountants import SEARCH_POINTS, Step, merge

Array = np.ndarray[Any, Any]

_POINTS = 40_001
"""Grid points of a table of quantiles."""

_FAR = 38.0
"""Standard deviations beyond which the normal distribution underflows."""


class Pair(Protocol):
    """Distributions P and Q of an output, without an example and with it."""

    def mean_error(self, quantiles: Array) -> Array:
        """The rate of wrong guesses among those of more certainty than a quantile of it.

        A coin decides between P and Q. The best guess of the coin is the likelier of both, and it
        is wrong with probability 1 / (1 + exp|loss|): the larger |loss|, the more certain.
        """
        ...

    def least(self, mass: float) -> float:
        """The least probability without the example of an event that has `mass` with it.

        Or the other way round, whichever is less.
        """
        ...

    def share_in(self, share: float) -> float:
        """The part that guesses "with the example" have in this share of the most certain ones."""
        ...

    def epsilon(self, delta: float) -> float:
        """Epsilon at `delta`."""
        ...


Family = Callable[[float], Pair]
"""Pairs by their scale."""


@dataclass(frozen=True)
class Gaussian:
    """N(0, 1) and N(mu, 1): the Gaussian mechanism, and the limit of many small steps."""

    mu: float

    @cached_property
    def _table(self) -> tuple[Array, Array]:
        """Shares of guesses farther than a distance from the middle, and the distances."""
        far = np.linspace(_FAR + self.mu / 2, 0.0, _POINTS)
        return special.ndtr(-far - self.mu / 2) + special.ndtr(-far + self.mu / 2), far

    def mean_error(self, quantiles: Array) -> Array:
        """See `Pair`."""
        above, far = self._table
        share = 1 - np.asarray(quantiles)
        cut = np.interp(share, above, far)
        wrong = special.ndtr(-cut - self.mu / 2)
        return np.asarray(wrong / np.maximum(share, np.finfo(float).tiny))

    def least(self, mass: float) -> float:
        """See `Pair`."""
        return float(special.ndtr(special.ndtri(mass) - self.mu))

    def share_in(self, share: float) -> float:
        """One half: the two distributions are mirror images."""
        return 0.5

    def epsilon(self, delta: float) -> float:
        """See `Pair` (Balle and Wang, 2018)."""
        mu = self.mu

        def excess(epsilon: float) -> float:
            log_with = special.log_ndtr(mu / 2 - epsilon / mu)
            log_without = epsilon + special.log_ndtr(-mu / 2 - epsilon / mu)
            gap = math.exp(log_with) * -math.expm1(min(0.0, log_without - log_with))
            return gap - delta

        if mu == 0 or excess(0.0) <= 0:
            return 0.0
        high = 1.0
        while excess(high) > 0:
            high *= 2
        return float(optimize.brentq(excess, 0.0, high, xtol=1e-10))


@dataclass(frozen=True)
class History:
    """Releases as an accountant composes them: the distributions of their privacy loss.

    Attributes:
        steps: The releases.

    *Guarantee:* The distribution of losses dominates the true one, so a rate of wrong guesses is
    never above what these releases allow: a test with it rejects a true claim no more often than
    its significance says.
    """

    steps: tuple[Step, ...]

    def scaled(self, scale: float) -> History:
        """The same releases with noise divided by `scale`."""
        return History(
            tuple(replace(s, noise_multiplier=s.noise_multiplier / scale) for s in self.steps)
        )

    @cached_property
    def _masses(self) -> tuple[Array, Array, Array]:
        """Losses in increasing order, infinite ones included, with their masses in Q and in P."""
        pmf = accountants.compose_pld(merge(self.steps), SEARCH_POINTS)._pmf_remove.to_dense_pmf()
        losses = (pmf._lower_loss + np.arange(pmf.size)) * pmf._discretization
        with_, never = np.maximum(pmf._probs, 0.0), float(pmf._infinity_mass)
        with np.errstate(over="ignore", under="ignore"):
            without = np.where(with_ > 0, with_ * np.exp(-losses), 0.0)
        rest = max(0.0, 1 - float(without.sum()))
        return (
            np.concatenate([[-np.inf], losses, [np.inf]]),
            np.concatenate([[0.0], with_, [never]]),
            np.concatenate([[rest], without, [0.0]]),
        )

    @cached_property
    def _by_certainty(self) -> tuple[Array, Array, Array]:
        """Shares of the most certain guesses, of wrong ones, and of guesses "in" among them."""
        losses, with_, without = self._masses
        order = np.argsort(-np.abs(losses), kind="stable")
        a, b = with_[order], without[order]
        right = np.where(losses[order] > 0, a + b, 0.0)
        parts = (0.5 * (a + b), 0.5 * np.minimum(a, b), 0.5 * right)
        total = parts[0].sum()
        above, wrong, guessed = (np.concatenate([[0.0], part.cumsum()]) / total for part in parts)
        return above, wrong, guessed

    def mean_error(self, quantiles: Array) -> Array:
        """See `Pair`."""
        above, wrong, _ = self._by_certainty
        share = 1 - np.asarray(quantiles)
        rate = np.interp(share, above, wrong) / np.maximum(share, np.finfo(float).tiny)
        return np.asarray(rate)

    @cached_property
    def curve(self) -> tuple[Array, Array]:
        """The ROC curve of the best tests for the example: false and true positive rates."""
        _, with_, without = self._masses
        return (
            np.concatenate([[0.0], without[::-1].cumsum()]).clip(max=1.0),
            np.concatenate([[0.0], with_[::-1].cumsum()]).clip(max=1.0),
        )

    def least(self, mass: float) -> float:
        """See `Pair`."""
        false, true = self.curve
        return float(min(np.interp(mass, true, false), 1 - np.interp(1 - mass, false, true)))

    def share_in(self, share: float) -> float:
        """See `Pair`."""
        above, _, guessed = self._by_certainty
        return float(np.interp(share, above, guessed) / share)

    def epsilon(self, delta: float) -> float:
        """See `Pair`."""
        return accountants.epsilon(self.steps, delta=delta)


def family_of(steps: Sequence[Step]) -> Family:
    """The pairs of a history with noise divided by the scale; at scale 1 they are its own."""
    return History(merge(steps)).scaled
