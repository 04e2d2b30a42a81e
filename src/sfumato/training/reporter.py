"""What a run tells whoever watches it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Progress:
    """Where a run stands after a step.

    Attributes:
        step: Steps done.
        steps: Steps in all.
        epsilon: Spent so far (an upper bound), infinite without privacy.
        loss: Mean loss of recent batches, if it is shown.
        accuracy: On validation images if there are any, else on recent batches.
        views_per_second: Augmented images processed per second.
        seconds_left: Estimated time to the end; None before there is anything to go by.
    """

    step: int
    steps: int
    epsilon: float
    loss: float | None
    accuracy: float | None
    views_per_second: float
    seconds_left: float | None


class Reporter(Protocol):
    """Receives messages and progress."""

    def say(self, message: str) -> None:
        """A sentence for the user."""
        ...

    def show(self, progress: Progress) -> None:
        """Progress after a step."""
        ...


class Silent:
    """Keeps it all to itself."""

    def say(self, message: str) -> None:
        """Drop the message."""

    def show(self, progress: Progress) -> None:
        """Drop the progress."""
