"""Messages and progress of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True)
class Progress:
    """Progress of a run after a step.

    Attributes:
        step: Steps done.
        steps: Total number of steps.
        epsilon: Spent so far (an upper bound), infinite without privacy.
        loss: Mean loss of recent batches, if it is shown.
        accuracy: On validation images if there are any, else on recent batches.
        views_per_second: Augmented images processed per second.
        seconds_left: Estimated remaining time; None before it can be estimated.
    """

    step: int
    steps: int
    epsilon: float
    loss: float | None
    accuracy: float | None
    views_per_second: float
    seconds_left: float | None


@runtime_checkable
class Reporter(Protocol):
    """Receiver of messages and progress."""

    def say(self, message: str) -> None:
        """Receive a sentence for the user."""
        ...

    def show(self, progress: Progress) -> None:
        """Receive the progress after a step."""
        ...


class Silent:
    """A reporter that drops everything."""

    def say(self, message: str) -> None:
        """Drop the message."""

    def show(self, progress: Progress) -> None:
        """Drop the progress."""


class WithoutRepeats:
    """A reporter that passes on a sentence only once, and all progress.

    Args:
        to: The reporter that receives them.
    """

    def __init__(self, to: Reporter) -> None:
        self._to = to
        self._said: set[str] = set()

    def say(self, message: str) -> None:
        """Pass the message on, unless the same was said before."""
        if message not in self._said:
            self._said.add(message)
            self._to.say(message)

    def show(self, progress: Progress) -> None:
        """Pass the progress on."""
        self._to.show(progress)
