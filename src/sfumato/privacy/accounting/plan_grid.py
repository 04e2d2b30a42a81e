"""Batches and numbers of steps that spend the same privacy budget, and what they give and cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sfumato.privacy.accounting.accountants import AccountantName
from sfumato.privacy.accounting.budget import noise_multiplier_for


@dataclass(frozen=True)
class Choice:
    """One place in the grid.

    Attributes:
        batch: Expected batch B.
        steps: Number of steps T.
        epochs: Passes over the training set.
        noise_multiplier: Sigma, solved for from the budget.
        effective_noise: Sigma / B, the noise on the mean gradient in units of C.
        signal_to_noise: B / sigma, of one step.
        signal_to_noise_run: B √T / sigma, of the sum of all steps if they all pointed one way.
        views: Views to process: B T K.
        minutes: Estimated time of training, if the speed is known.
    """

    batch: int
    steps: int
    epochs: float
    noise_multiplier: float
    effective_noise: float
    signal_to_noise: float
    signal_to_noise_run: float
    views: int
    minutes: float | None = None


def default_batches(examples: int) -> list[int]:
    """Up to four powers of two, the largest at most a quarter of the training set."""
    top = max(0, math.floor(math.log2(max(1, examples / 4))))
    return [2**k for k in range(max(0, top - 3), top + 1)]


def choice(
    batch: int,
    steps: int,
    examples: int,
    *,
    epsilon: float,
    delta: float,
    views: int = 1,
    accountant: AccountantName = "pld",
) -> Choice:
    """A batch and a number of steps under a budget, with their noise and signal-to-noise."""
    q = batch / examples
    sigma = noise_multiplier_for(
        epsilon=epsilon, delta=delta, q=q, steps=steps, accountant=accountant
    )
    return Choice(
        batch=batch,
        steps=steps,
        epochs=steps * q,
        noise_multiplier=sigma,
        effective_noise=sigma / batch,
        signal_to_noise=batch / sigma,
        signal_to_noise_run=batch * math.sqrt(steps) / sigma,
        views=batch * steps * views,
    )
