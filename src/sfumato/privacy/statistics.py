"""What happened in a step, for the eyes of whoever trains."""

from __future__ import annotations

from torch import Tensor


class BatchStatistics:
    """Counts and losses of a step, computed on private examples without noise: not for release.

    They stay on the device until one of them is read, so that a step need not wait for the last.

    Args:
        numbers: Examples, summed loss, correct, clipped and not finite ones, in this order; nothing
            happened if None.
    """

    def __init__(self, numbers: Tensor | None = None) -> None:
        self._numbers = numbers
        self._read: list[float] | None = None

    def __add__(self, other: BatchStatistics) -> BatchStatistics:
        mine, theirs = self._numbers, other._numbers
        if mine is None or theirs is None:
            return BatchStatistics(theirs if mine is None else mine)
        return BatchStatistics(mine + theirs.to(mine.device))

    def _at(self, place: int) -> float:
        if self._read is None:
            self._read = [0.0] * 5 if self._numbers is None else self._numbers.tolist()
        return self._read[place]

    @property
    def examples(self) -> int:
        """Drawn examples."""
        return int(self._at(0))

    @property
    def loss(self) -> float:
        """Sum of the losses of those whose gradient is finite."""
        return self._at(1)

    @property
    def correct(self) -> int:
        """Examples whose first view is classified correctly."""
        return int(self._at(2))

    @property
    def clipped(self) -> int:
        """Examples whose gradient was shortened."""
        return int(self._at(3))

    @property
    def not_finite(self) -> int:
        """Examples left out because their gradient is not finite."""
        return int(self._at(4))

    def __repr__(self) -> str:
        names = ("examples", "loss", "correct", "clipped", "not_finite")
        return f"BatchStatistics({', '.join(f'{name}={getattr(self, name)}' for name in names)})"
