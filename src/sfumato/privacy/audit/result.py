"""The result of an audit: guesses about canaries, and the bounds that follow from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from typing import Any, Self

import numpy as np

from sfumato.discrimination import auroc
from sfumato.errors import UserError
from sfumato.privacy.accounting.accountants import AccountantName, Step, epsilon, merge
from sfumato.privacy.audit import f_dp, one_run, order_statistics
from sfumato.privacy.audit.lower_bound import epsilon_bound
from sfumato.privacy.audit.pairs import Array, History

CONFIDENCE = 0.95
SHARE = 5
"""A fifth of the canaries is guessed: a number that is fixed before there are scores."""

FEWEST = 10
"""Fewest canaries: fewer than two guesses reject nothing."""

_PRECISION = 1e-4
"""Relative precision of the noise at which a bound is found; it is never too large."""


@dataclass(frozen=True)
class AuditResult:
    """The findings of an audit.

    Attributes:
        canaries: Number of canaries m.
        included: Those whose coin decided that they were in.
        guesses: Number of guesses r, fixed in advance.
        correct: Correct ones among them.
        score: What the guesses were made from, in words.
        epsilon: The lower bound of epsilon by order statistics, at `confidence`.
        epsilon_f_dp: The same by the trade-off function of the claim.
        epsilon_one_run: The same by (epsilon, delta) alone.
        claim: Epsilon of the same steps by the accountant.
        delta: As in (epsilon, delta).
        accountant: The accountant of the claim.
        p_value: The probability of as many correct guesses or more if the claim is true, at most.
        confidence: The probability that `epsilon` is not above the true one, at least.
        auroc: Area under the ROC curve of the scores; 1/2 for scores that tell nothing.
    """

    canaries: int
    included: int
    guesses: int
    correct: int
    score: str
    epsilon: float
    epsilon_f_dp: float
    epsilon_one_run: float
    claim: float
    delta: float
    accountant: str
    p_value: float
    confidence: float
    auroc: float

    @property
    def exceeds(self) -> bool:
        """Tell whether the bound is above the claim, which is then false at this confidence."""
        return self.epsilon > self.claim

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Any) -> Self:
        """Read `to_dict` back, strictly.

        Raises:
            UserError: Something is missing, unknown, or of another type.
        """
        kinds = {f.name: {"int": int, "float": float, "str": str}[str(f.type)] for f in fields(cls)}
        sound = isinstance(content, dict) and content.keys() == kinds.keys()
        if not sound or any(
            type(content[name]) is not kind and not (kind is float and type(content[name]) is int)
            for name, kind in kinds.items()
        ):
            raise UserError("The result of an audit is damaged or was edited.")
        return cls(**{name: kind(content[name]) for name, kind in kinds.items()})


def judge(
    scores: Sequence[float] | Array,
    included: Sequence[bool] | Array,
    steps: Sequence[Step],
    *,
    delta: float,
    accountant: AccountantName = "pld",
    score: str = "given",
) -> AuditResult:
    """Guess the coins of the canaries with the most telling scores, and bound epsilon.

    *Guarantee:* If the run that the scores come from is as private as `steps` say, the bound is
    above the claim with a probability of at most 1 - `CONFIDENCE`. The number of guesses, and how
    many of them are "in", follow from the number of canaries and the steps, not from the scores;
    the bound by order statistics is the one that counts, the others are for comparison.

    Args:
        scores: One for each canary, larger for those that are likelier in.
        included: The coins.
        steps: The releases that the canaries took part in.
        delta: As in (epsilon, delta).
        accountant: The accountant of the claim.
        score: What the scores are, in words.

    Raises:
        UserError: There are too few canaries, or the steps claim nothing.
    """
    values = np.nan_to_num(np.asarray(scores, dtype=np.float64))
    coins = np.asarray(included, dtype=bool)
    count = len(values)
    if count < FEWEST or coins.shape != values.shape:
        raise UserError(
            f"An audit needs at least {FEWEST} canaries, and a score and a coin for each, not "
            f"{count} scores and {coins.size} coins."
        )
    claim = epsilon(steps, delta=delta, accountant=accountant)
    if not 0 < claim < math.inf:
        raise UserError("There is no claim to audit: nothing was released, or without noise.")
    pair, guesses = History(merge(steps)), count // SHARE
    correct = _correct(values, coins, guesses, pair.share_in(guesses / count))
    found: Any = {"canaries": count, "guesses": guesses, "correct": correct}
    tested = found | {"delta": delta, "significance": 1 - CONFIDENCE}
    family = cache(pair.scaled)  # Both searches begin with the same scales.
    return AuditResult(
        **found,
        included=int(coins.sum()),
        score=score,
        epsilon=epsilon_bound(order_statistics.rejects, family, **tested, precision=_PRECISION),
        epsilon_f_dp=epsilon_bound(f_dp.rejects, family, **tested, precision=_PRECISION),
        epsilon_one_run=one_run.epsilon_bound(**tested),
        claim=claim,
        delta=delta,
        accountant=accountant,
        p_value=order_statistics.p_value(pair, **found),
        confidence=CONFIDENCE,
        auroc=float(np.nan_to_num(auroc(values, coins), nan=0.5)),
    )


def _correct(scores: Array, coins: Array, guesses: int, share_in: float) -> int:
    """Correct ones among guesses "in" for the highest scores and "out" for the lowest."""
    order = np.argsort(-scores, kind="stable")
    ins = round(guesses * share_in)
    highest, lowest = order[:ins], order[len(order) - (guesses - ins) :]
    return int(coins[highest].sum() + (~coins[lowest]).sum())
