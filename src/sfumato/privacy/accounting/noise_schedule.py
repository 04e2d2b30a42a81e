"""Noise that changes over the steps of a run (Dynamic DP-SGD, Du et al., 2021).

Du et al. lower the clipping norm and the noise multiplier from step to step, so that late steps,
whose gradients are small, drown less. Here the noise multiplier is constant within each of a few
pieces of the run: the privacy-loss distributions of the pieces compose to a tight bound, at a cost
that grows with the number of different noise multipliers. The clipping norm is free to change at
every step, as noise is scaled to it.

*Guarantee:* the schedule is fixed before the first step and looks at no data, which is what the
composition of different steps asks for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sfumato.errors import UserError
from sfumato.privacy.accounting.accountants import Step, merge

PIECES = 12
"""Most noise multipliers of a run: composing each takes a tenth of a second or two."""


@dataclass(frozen=True)
class NoiseSchedule:
    """Noise multipliers over the steps of a run.

    Attributes:
        ends: The last step (from 1) of each piece, increasing.
        multipliers: The noise multiplier of each piece.
    """

    ends: tuple[int, ...]
    multipliers: tuple[float, ...]

    @property
    def steps(self) -> int:
        """The total number of steps."""
        return self.ends[-1]

    def at(self, step: int) -> float:
        """The noise multiplier of step `step` (from 1)."""
        return self.multipliers[int(np.searchsorted(self.ends, step))]

    def history(self, q: float, steps: int | None = None) -> tuple[Step, ...]:
        """The events of the first `steps` steps."""
        upto = self.steps if steps is None else steps
        found, begin = [], 0
        for end, multiplier in zip(self.ends, self.multipliers, strict=True):
            if (count := min(end, upto) - begin) > 0:
                found.append(Step(q, multiplier, count))
            begin = end
        return merge(found)

    def scaled(self, factor: float) -> NoiseSchedule:
        """The schedule times a factor, rounded up to six significant digits."""
        return NoiseSchedule(self.ends, tuple(_rounded_up(factor * m) for m in self.multipliers))


def decaying(steps: int, ratio: float, *, pieces: int = PIECES) -> NoiseSchedule:
    """`ratio^(−t/T)` in pieces of equal length, each with its value in the middle.

    Args:
        steps: T, the total number of steps.
        ratio: The noise at the start over that at the end; below 1 the noise grows.
        pieces: The largest number of different noise multipliers.
    """
    if not 0.01 <= ratio <= 100:
        raise UserError(f"The noise may change by a factor of 0.01 to 100 in a run, not {ratio:g}.")
    count = 1 if ratio == 1 else min(pieces, steps)
    ends = tuple(round(steps * (k + 1) / count) for k in range(count))
    begins = (0, *ends[:-1])
    middles = ((a + b) / 2 / steps for a, b in zip(begins, ends, strict=True))
    return NoiseSchedule(ends, tuple(ratio**-middle for middle in middles))


def _rounded_up(value: float) -> float:
    exponent = math.floor(math.log10(value)) - 5
    return float(f"{math.ceil(value / 10.0**exponent - 1e-9)}e{exponent}")
