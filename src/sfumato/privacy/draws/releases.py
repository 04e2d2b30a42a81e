"""The releases of a mechanism so far, and the privacy that they have spent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sfumato.privacy.accounting.accountants import AccountantName, Step, merge
from sfumato.privacy.accounting.accountants import epsilon as account
from sfumato.privacy.accounting.budget import check_delta
from sfumato.privacy.noise import GaussianNoise
from sfumato.privacy.sampling import PoissonSampler


class Releases:
    """A sequence of Poisson-subsampled Gaussian releases.

    Events are recorded as they happen, so changing the noise or the sampler later does not rewrite
    them.

    Args:
        sampler: Source of the draws.
        noise: The noise of a whole release.
    """

    def __init__(self, sampler: PoissonSampler, noise: GaussianNoise) -> None:
        self.sampler, self.noise = sampler, noise
        self._history: list[Step] = []

    @property
    def step_event(self) -> Step:
        """The privacy event of one release."""
        return Step(q=self.sampler.rate, noise_multiplier=self.noise.multiplier)

    @property
    def history(self) -> list[Step]:
        """Everything released so far, equal releases counted together."""
        return list(merge(self._history))

    @history.setter
    def history(self, steps: Sequence[Step]) -> None:
        """Go on after what an interrupted run has released."""
        self._history = list(steps)

    @property
    def released(self) -> int:
        """The number of releases so far."""
        return sum(step.count for step in self._history)

    @released.setter
    def released(self, count: int) -> None:
        """Go on after `count` releases of this same event."""
        self._history = [replace(self.step_event, count=count)] if count else []

    def epsilon(self, *, delta: float, accountant: AccountantName = "pld") -> float:
        """Privacy spent so far; delta must be below one in the number of examples."""
        check_delta(delta, self.sampler.examples)
        return account(self.history, delta=delta, accountant=accountant)

    def count(self, event: Step) -> None:
        """Record one more release."""
        self._history = list(merge([*self._history, event]))
