"""Runs that start from other runs: what the start has seen, and noise that makes room for it.

A run whose first weights were trained on the same images releases the start's noisy steps and then
its own, so the two histories compose: they are one list of `Step`s, in whatever order. The
questions here are those of `calibration`, asked after a history that has already been spent.

*Guarantee:* `accountants.epsilon` of the history followed by every answer is at most the target,
with the same accountant. Composition is adaptive: the second run may depend on all that the first
released.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sfumato.errors import UserError
from sfumato.privacy.accounting import accountants
from sfumato.privacy.accounting.accountants import SEARCH_POINTS, AccountantName, Step, merge
from sfumato.privacy.accounting.calibration import noise_multiplier_for

DIGITS = 4
"""Significant digits of a solved noise multiplier, at least."""

CURVE_POINTS = 16
"""Most step counts that `curve_after` computes: each composes two histories."""

_LARGEST = 1000
"""At how many times the noise of a run on its own what is left counts as too little to train."""


@dataclass(frozen=True)
class Exposure:
    """A data set that weights depend on, and what stands between the two.

    Attributes:
        data: Its name.
        public: Whether a user declared that it is public.
        steps: Noisy steps taken on it; empty if it was used without noise.
        epsilon: What these cost, by accountant, as the run that took them reported it.
        delta: As in (epsilon, delta).
        seeded: Whether that noise follows from a stated seed.
        drawn: Whether a program drew the images at random, so that nobody is in them.
        also: Other names that these images, or some of the steps' images, were known by.
        looked: What was decided by looking at some of them without noise, in sentences.
    """

    data: str
    public: bool = False
    steps: tuple[Step, ...] = ()
    epsilon: Mapping[str, float] = field(default_factory=dict)
    delta: float = 0.0
    seeded: bool = False
    drawn: bool = False
    also: tuple[str, ...] = ()
    looked: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All names."""
        return (self.data, *self.also)

    @property
    def noisy(self) -> bool:
        """Whether noise protects the data."""
        return bool(self.steps)

    @property
    def bare(self) -> bool:
        """Whether nothing does, and nobody said that nothing need."""
        return not self.steps and not self.public

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a file."""
        return {
            "data": self.data,
            "public": self.public,
            "steps": steps_to_list(self.steps),
            "epsilon": dict(self.epsilon),
            "delta": self.delta,
            "seeded": self.seeded,
            **({"drawn": True} if self.drawn else {}),
            **({"also": list(self.also)} if self.also else {}),
            **({"looked": list(self.looked)} if self.looked else {}),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Exposure:
        """Back from plain values."""
        return cls(
            data=str(content["data"]),
            public=content["public"] is True,
            steps=steps_from_list(content["steps"]),
            epsilon={str(k): float(v) for k, v in content["epsilon"].items()},
            delta=float(content["delta"]),
            seeded=content["seeded"] is not False,
            drawn=content.get("drawn") is True,
            also=tuple(map(str, content.get("also", ()))),
            looked=tuple(map(str, content.get("looked", ()))),
        )


def steps_to_list(steps: Sequence[Step]) -> list[list[float]]:
    """A history as lists of sampling probability, noise multiplier and count."""
    return [[step.q, step.noise_multiplier, step.count] for step in merge(steps)]


def steps_from_list(content: Sequence[Sequence[float]]) -> tuple[Step, ...]:
    """Back from `steps_to_list`."""
    return tuple(Step(float(q), float(sigma), int(count)) for q, sigma, count in content)


def noise_multiplier_after(
    history: Sequence[Step],
    *,
    epsilon: float,
    delta: float,
    q: float,
    steps: int,
    accountant: AccountantName = "pld",
) -> float:
    """The smallest noise multiplier that keeps `history` and `steps` more steps within budget.

    It is rounded up to four significant digits or more: one unit less in the last would not fit.

    Raises:
        UserError: If the history leaves nothing of the budget.
    """
    alone = noise_multiplier_for(
        epsilon=epsilon, delta=delta, q=q, steps=steps, accountant=accountant
    )
    if not history:
        return alone
    _check_room(history, epsilon, delta, accountant)
    exponent = math.floor(math.log10(alone)) + 1 - DIGITS

    def total(units: int) -> list[Step]:
        return [*history, Step(q, float(f"{units}e{exponent}"), steps)]

    fits, surely = _tests(total, epsilon, delta, accountant)
    first = too_little = round(alone / 10.0**exponent) - 1
    enough = 2 * first
    while not surely(enough):
        if enough > _LARGEST * first:
            spent = accountants.epsilon(history, delta=delta, accountant=accountant)
            raise UserError(
                f"The start has spent epsilon {spent:.4g} of {epsilon:g} on these images, and what "
                f"is left is too little for {steps} steps. Raise epsilon."
            )
        too_little, enough = enough, 2 * enough
    units = _refined(fits, _bisected(surely, good=enough, bad=too_little), bad=first)
    return float(f"{units}e{exponent}")


def steps_after(
    history: Sequence[Step],
    *,
    epsilon: float,
    delta: float,
    q: float,
    noise_multiplier: float,
    most: int,
    accountant: AccountantName = "pld",
) -> int:
    """The largest number of steps, at most `most`, that fits into the budget after `history`.

    Raises:
        UserError: If not even one does.
    """
    _check_room(history, epsilon, delta, accountant)

    def total(count: int) -> list[Step]:
        return [*history, Step(q, noise_multiplier, count)]

    fits, surely = _tests(total, epsilon, delta, accountant)
    if fits(most):
        return most
    if not fits(1):
        raise UserError(
            f"Not even one step with a noise multiplier of {noise_multiplier:g} fits into what the "
            f"start has left of epsilon = {epsilon:g}. Raise the noise or epsilon."
        )
    return _refined(fits, _bisected(surely, good=1, bad=most), bad=most)


def curve_after(
    history: Sequence[Step],
    step: Step,
    counts: Sequence[int],
    *,
    delta: float,
    accountant: AccountantName = "pld",
) -> list[float]:
    """Epsilon of `history` and each of several numbers of steps, as `accountants.curve` has it.

    All values are upper bounds and never decrease with the count, and the last is exact.
    """
    if not history or not counts:
        return accountants.curve(step, counts, delta=delta, accountant=accountant)
    ordered = sorted({int(count) for count in counts})
    places = np.linspace(0, len(ordered) - 1, min(CURVE_POINTS, len(ordered))).round().astype(int)
    anchors = [ordered[place] for place in places]
    values: list[float] = []
    ceiling = accountants.epsilon(
        _followed(history, step, anchors[-1]), delta=delta, accountant=accountant
    )
    for count in anchors[:-1]:
        spent = _quick(_followed(history, step, count), delta, accountant)
        values.append(max([min(ceiling, spent), *values[-1:]]))
    values.append(ceiling)
    return [values[int(np.searchsorted(anchors, int(count)))] for count in counts]


def _followed(history: Sequence[Step], step: Step, count: int) -> list[Step]:
    more = [Step(step.q, step.noise_multiplier, count)] if count else []
    return [*history, *more]


def _check_room(
    history: Sequence[Step], epsilon: float, delta: float, accountant: AccountantName
) -> None:
    spent = accountants.epsilon(history, delta=delta, accountant=accountant)
    if spent >= epsilon:
        raise UserError(
            f"The start has already spent epsilon {spent:.4g} on these images (at delta = "
            f"{delta:g}), which leaves nothing of the budget of {epsilon:g}. Raise epsilon, or "
            "start from a run that spent less."
        )


def _quick(history: Sequence[Step], delta: float, accountant: AccountantName) -> float:
    """An upper bound of epsilon, quick and a little loose."""
    if accountant == "rdp" or any(step.noise_multiplier == 0 for step in history):
        return accountants.epsilon(history, delta=delta, accountant=accountant)
    return accountants.pld_epsilon(merge(history), delta, SEARCH_POINTS)


Fits = Callable[[int], bool]


def _tests(
    total: Callable[[int], list[Step]], epsilon: float, delta: float, accountant: AccountantName
) -> tuple[Fits, Fits]:
    """Whether n fits, by the accountant itself and by a quicker bound that may miss a fit."""

    def fits(n: int) -> bool:
        return accountants.epsilon(total(n), delta=delta, accountant=accountant) <= epsilon

    def surely(n: int) -> bool:
        return _quick(total(n), delta, accountant) <= epsilon

    return fits, surely


def _bisected(fits: Fits, *, good: int, bad: int) -> int:
    """The last integer from `good` (which is not tried) towards `bad` that fits."""
    while abs(good - bad) > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def _refined(fits: Fits, n: int, *, bad: int) -> int:
    """The last integer towards `bad` (which is not tried) that fits, starting near it at `n`."""
    towards = 1 if bad > n else -1
    stride = 1
    while not fits(n):
        bad, n = n, max(1, n - towards * stride)
        stride *= 2
    stride = 1
    while abs(bad - n) > stride:
        if not fits(n + towards * stride):
            bad = n + towards * stride
            break
        n += towards * stride
        stride *= 2
    return _bisected(fits, good=n, bad=bad)
