"""What a run tells whoever watches it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

BETWEEN = 10.0
"""Seconds between two words on work that comes before the first step."""


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


def counting(say: Callable[[str], None], what: str, total: int) -> Callable[[int], None]:
    """A function to call with how many more images are done, which says so now and then."""
    done, said = 0, time.monotonic()

    def count(more: int) -> None:
        nonlocal done, said
        done += more
        if time.monotonic() - said > BETWEEN:
            said = time.monotonic()
            say(f"{what}: {done:,} of {total:,} images.")

    return count


class Silent:
    """Keeps it all to itself."""

    def say(self, message: str) -> None:
        """Drop the message."""

    def show(self, progress: Progress) -> None:
        """Drop the progress."""
