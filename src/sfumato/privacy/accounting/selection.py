"""Private selection: the cost of releasing the best of a random number of runs.

A mechanism is run K times, independently, and the one output with the highest score is released. If
K were fixed, or known, every run would have to be paid for. If K is drawn from a distribution with
a wide spread and kept secret, releasing the best costs two or three times as much as one run, and
little more for a larger mean (Papernot & Steinke, 2022, "Hyperparameter tuning with Rényi
differential privacy"): theorem 2 for truncated negative binomial distributions (logarithmic and
geometric), theorem 6 for the Poisson distribution.

The formulas are those of dp_accounting's `RepeatAndSelectDpEvent`, for all orders at once; Rényi
divergences are the only accountant that has them.

*Guarantee:* all values are for the relation of `accountants`. They hold if the runs are independent
and their settings are drawn without looking at the data, if every run is the same list of steps, if
the score is computed from what a run releases and from data outside the guarantee, or is a count
with Gaussian noise of `score_noise` of examples that no run is trained on, and if neither K nor
anything of the other runs becomes known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
from dp_accounting.rdp import rdp_privacy_accountant
from scipy import optimize, special

from sfumato.errors import UserError, nearest
from sfumato.privacy.accounting import accountants
from sfumato.privacy.accounting.accountants import ORDERS, Step
from sfumato.privacy.accounting.group_privacy import MOST

Distribution = Literal["logarithmic", "geometric", "poisson"]
DISTRIBUTIONS: tuple[Distribution, ...] = get_args(Distribution)

LARGEST_MEAN = 1000.0
"""The largest mean number of runs."""

_MOST_RUNS = 1 << 20
"""More runs than this have a probability below e⁻⁹⁰ at the largest mean, and are not drawn."""

_ONE = 1e-8
"""A mean that exceeds 1 by less than this is 1: there is always one run."""


@dataclass(frozen=True)
class Selection:
    """The best of a random number of independent runs.

    Attributes:
        mean: Mean number of runs, from 1 to `LARGEST_MEAN`.
        distribution: Distribution of their number: `logarithmic`, `geometric` or `poisson`.
        score_noise: Standard deviation of the Gaussian noise on each run's score, a count of
            examples that no run is trained on; None if scores need none, because they are computed
            on data outside the guarantee.
    """

    mean: float
    distribution: Distribution = "logarithmic"
    score_noise: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.mean <= LARGEST_MEAN:
            raise UserError(
                f"The mean number of runs must be from 1 to {LARGEST_MEAN:g}, not {self.mean:g}."
            )
        if self.distribution not in DISTRIBUTIONS:
            raise UserError(
                f"Unknown distribution '{self.distribution}' of the number of runs: choose one of "
                f"{', '.join(DISTRIBUTIONS)}.{nearest(self.distribution, DISTRIBUTIONS)}"
            )
        if self.score_noise is not None and not 0 < self.score_noise < math.inf:
            raise UserError(f"The noise of a score is a number above 0, not {self.score_noise}.")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a file."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Selection:
        """Read `to_dict` back.

        Raises:
            UserError: If anything is missing, unknown, or of another type.
        """
        try:
            found = cls(**content)
            numbers = [found.mean, *([] if found.score_noise is None else [found.score_noise])]
            if all(type(value) in (int, float) for value in numbers):
                return found
        except TypeError:
            pass
        raise UserError("The choice among several runs that is stated here cannot be read.")

    @classmethod
    def of(cls, header: Mapping[str, Any]) -> Selection | None:
        """The choice that a ledger's first line states, if it states one.

        Raises:
            UserError: If it cannot be read.
        """
        return cls.from_dict(header["selection"]) if "selection" in header else None

    @property
    def gamma(self) -> float:
        """The parameter of the logarithmic or geometric distribution with this mean."""
        return 1 / self.mean if self.distribution == "geometric" else _logarithmic(self.mean)

    def number(self, uniform: float) -> int:
        """The number of runs that a uniform random number from [0, 1) stands for.

        *Guarantee:* The inverse of the distribution function, exact to the rounding of float64: no
        probability is off by more than 1e-12, which would have to be added to delta.
        """
        if self.mean - 1 < _ONE and self.distribution != "poisson":
            return 1
        first = 0 if self.distribution == "poisson" else 1
        k = np.arange(first, _MOST_RUNS, dtype=float)
        total = np.cumsum(np.exp(self._log_probabilities(k)))
        last = np.searchsorted(
            total, total[-1]
        )  # Rounding ends the sum a little below 1, or above.
        return first + int(min(last, np.searchsorted(total, uniform, side="right")))

    def _log_probabilities(self, k: Any) -> Any:
        if self.distribution == "poisson":
            return k * math.log(self.mean) - self.mean - special.gammaln(k + 1)
        rest = math.log1p(-self.gamma)
        if self.distribution == "geometric":
            return math.log(self.gamma) + (k - 1) * rest
        return k * rest - np.log(k) - math.log(-math.log(self.gamma))

    def epsilon(
        self,
        steps: Sequence[Step],
        *,
        delta: float,
        before: Sequence[Step] = (),
        orders: tuple[float, ...] = ORDERS,
    ) -> float:
        """The epsilon of releasing the best of runs that each take `steps`.

        Args:
            steps: The steps of one run; without any, nothing was run or chosen.
            delta: As in (epsilon, delta).
            before: Steps that were taken once, before all runs, such as those of their start.
            orders: Rényi orders; fewer give a larger epsilon.

        *Guarantee:* an upper bound, whatever the number of runs was.
        """
        accountants.check_delta_range(delta)
        divergences = self._divergences(steps, before, orders)
        if divergences is None:
            return math.inf
        return float(rdp_privacy_accountant.compute_epsilon(orders, divergences, delta)[0])

    def group_epsilon(
        self, steps: Sequence[Step], *, delta: float, size: int, before: Sequence[Step] = ()
    ) -> float:
        """The epsilon of `epsilon` for `size` examples together, infinite above `MOST`.

        *Guarantee:* an upper bound: (epsilon, delta) for one example gives (k·epsilon, delta·(e^
        (k·epsilon) − 1)/(e^epsilon − 1)) for k, here at the best of many smaller deltas.
        """
        accountants.check_delta_range(delta)
        divergences = self._divergences(steps, before, ORDERS)
        if divergences is None:
            return math.inf
        for smaller in delta * 10.0 ** -np.arange(0, 250, 0.25):
            # It rises as delta falls, so that the first which fits is the smallest.
            one = float(rdp_privacy_accountant.compute_epsilon(ORDERS, divergences, smaller)[0])
            if size * one > MOST:
                break
            if smaller * math.expm1(size * one) <= delta * math.expm1(one):
                return size * one
        return math.inf

    def floor(self, delta: float, *, orders: tuple[float, ...] = ORDERS) -> float:
        """The epsilon of the choice itself, however much noise the runs have."""
        nothing = self._selected(np.zeros(len(orders)), orders)
        return float(rdp_privacy_accountant.compute_epsilon(orders, nothing, delta)[0])

    def _divergences(
        self, steps: Sequence[Step], before: Sequence[Step], orders: tuple[float, ...]
    ) -> Any:
        """The Rényi divergences of the earlier steps and of the choice; None without noise."""
        history, earlier = accountants.merge(steps), accountants.merge(before)
        if accountants.without_noise([*history, *earlier]):
            return None
        total = accountants.compose_rdp(earlier, orders)
        if not history:
            return total
        one = accountants.compose_rdp(history, orders)
        if self.score_noise is not None:
            # An example is trained on or scored on, never both.
            one = np.maximum(one, np.asarray(orders) / (2 * self.score_noise**2))
        return total + self._selected(one, orders)

    def _selected(self, one: Any, orders: tuple[float, ...]) -> Any:
        """The Rényi divergences of the best of several runs, from those of one."""
        order = np.asarray(orders, dtype=float)
        spread = math.log(self.mean) / (order - 1)
        if self.distribution == "poisson":
            deltas = _smallest_deltas(order, one, np.log1p(1 / (order - 1)))
            return one + self.mean * deltas + spread
        shape = {"logarithmic": 0, "geometric": 1}[self.distribution]
        constant = (1 + shape) * np.min((1 - 1 / order) * one - math.log(self.gamma) / order)
        found = one + spread + constant
        # Divergences do not decrease with the order: each is at most those of higher orders.
        return np.minimum.accumulate(found[::-1])[::-1]


def covered_score_noise(steps: Sequence[Step]) -> float:
    """The smallest noise with which a score of held-out examples costs no more than the steps.

    The score of a run is then covered by the epsilon of its training, for which it is not raised:
    an example is either trained on or scored on.

    Args:
        steps: The steps of one run.

    Returns:
        The standard deviation of the Gaussian noise on a count of examples, rounded up to four
        digits.

    *Guarantee:* At every order of `ORDERS` the divergence of the noisy count is at most that of the
    steps.
    """
    one = accountants.compose_rdp(accountants.merge(steps), ORDERS)
    needed = math.sqrt(float(np.max(np.asarray(ORDERS) / (2 * one))))
    digit = 10.0 ** (math.floor(math.log10(needed)) - 3)
    return float(f"{(math.floor(needed / digit) + 1) * digit:.4g}")


@lru_cache(maxsize=64)
def _logarithmic(mean: float) -> float:
    """The gamma of the logarithmic distribution with a mean: (1/gamma − 1) / ln(1/gamma)."""
    if mean - 1 < _ONE:
        return 1.0

    def excess(gamma: float) -> float:
        return (1 / gamma - 1) / -math.log(gamma) - mean

    return float(optimize.brentq(excess, 1e-7, 1 - 1e-12, xtol=1e-16, rtol=1e-14))


def _smallest_deltas(orders: Any, divergences: Any, epsilons: Any) -> Any:
    """The delta at each of several epsilons (Canonne et al., 2020, proposition 12)."""
    with np.errstate(divide="ignore"):
        anywhere = 0.5 * np.log(-np.expm1(-divergences))  # By the divergence of order 1.
    gap = divergences - epsilons[:, None] + np.log1p(-1 / orders)
    logarithms = np.minimum(anywhere, (orders - 1) * gap - np.log(orders))
    return np.minimum(1.0, np.exp(logarithms.min(axis=1)))
