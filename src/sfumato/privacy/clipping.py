"""Clipping rules: from the norms of an example's gradient to the weight it enters the sum with.

A rule is frozen. One that changes during a run (`sfumato.privacy.adaptive`) says what it would be
after a release, and the mechanism takes that one from there on.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sfumato.errors import UserError, nearest
from sfumato.privacy.numerics.parameter_groups import (
    group_parameters,
    norms_by_group,
    on_device,
    split_evenly,
)

MARGIN = 2.0**-16
"""Rounding head-room, 1.5e-5: examples are scaled to C·(1 − MARGIN), so C itself is never exceeded.
Norms take 8e-6 of it (`summing`); the rest is for the order in which up to 10^5 examples are added
up in float64, which an example can change by at most 2 · 10^10 roundings of 2^-53 C."""

SMALLEST_WEIGHT = 1e-37
"""Weights below it are zero: float32 holds smaller ones with fewer than 24 bits, and an example of
such a weight, rounded up, would add more than C."""

SMALLEST = 1e-12
"""The smallest clipping norm and gamma: far below, float32 cannot hold what they scale."""

SPLITS = ("uniform", "dimension")


class ClippingRule(ABC):
    """Turns squared norms per parameter into weights, and states its sensitivity.

    An own rule defines `sensitivity` and `weights`; the rest has defaults for rules that treat all
    parameters alike and never change.
    """

    @property
    @abstractmethod
    def sensitivity(self) -> float:
        """Bound on the norm of what one example adds to the sum."""

    @abstractmethod
    def weights(self, squared_norms: Tensor) -> Tensor:
        """Weights `(examples, parameters)` from squared norms of the same shape."""

    @property
    def uniform(self) -> bool:
        """Whether an example's weight is the same for all its parameters."""
        return False

    def bind(self, names: Sequence[str], shapes: Sequence[torch.Size]) -> ClippingRule:
        """The rule for these parameters, in the order of the columns of `squared_norms`."""
        return self

    def clipped(self, squared_norms: Tensor) -> Tensor:
        """Which examples `(examples,)` are shortened."""
        return (self.weights(squared_norms) < 1).any(1)

    def gradient_noise(self, total: float) -> float:
        """The noise multiplier left for the gradients if a whole release is to have `total`."""
        return total

    def observe(self, squared_norms: Tensor, drawn: Tensor) -> Tensor | None:
        """A sum over drawn examples that the rule wants released with noise, if any."""
        return None

    @property
    def observation_noise(self) -> float:
        """Standard deviation of the noise on what `observe` returns."""
        return 0.0

    def after(self, noisy: Tensor, batch: float) -> ClippingRule:
        """The rule after a release, given the noisy observation and the expected batch."""
        return self

    def state(self) -> dict[str, Any]:
        """Plain numbers that change from release to release; empty if nothing does."""
        return {}

    def restored(self, state: Mapping[str, Any]) -> ClippingRule:
        """The rule in a state that `state` gave."""
        return self

    def describe(self) -> str:
        """The rule in words, for people who read a privacy statement."""
        return f"{type(self).__name__}, sensitivity {self.sensitivity:g}"


def check_clip(clip: float) -> None:
    """Refuse a clipping norm that is not a positive, finite number."""
    if not SMALLEST <= clip < math.inf:
        raise UserError(f"The clipping norm must be a positive number, not {clip}.")


def alike(scale: Tensor, squared_norms: Tensor) -> Tensor:
    """One weight per example for all its parameters, zero where a norm is not finite."""
    finite = torch.isfinite(squared_norms.sum(1))
    scale = torch.where(finite, scale, torch.zeros_like(scale))
    return scale.unsqueeze(1).expand_as(squared_norms)


@dataclass(frozen=True)
class Flat(ClippingRule):
    """Scale the whole gradient of an example to norm at most `clip` (Abadi et al., 2016).

    Guarantee: Whatever the gradients hold, the weighted gradient of one example has Euclidean norm
    at most `clip`; an example whose norm is not finite gets weight zero.
    """

    clip: float

    def __post_init__(self) -> None:
        check_clip(self.clip)

    @property
    def sensitivity(self) -> float:
        """The clipping norm."""
        return self.clip

    @property
    def uniform(self) -> bool:
        """Yes."""
        return True

    def weights(self, squared_norms: Tensor) -> Tensor:
        """`min(1, C / norm)`, the same for every parameter of an example."""
        norm = squared_norms.sum(1).sqrt()
        return alike((self.clip * (1 - MARGIN) / norm).clamp(max=1), squared_norms)

    def clipped(self, squared_norms: Tensor) -> Tensor:
        """Those of weight below one."""
        return squared_norms.sum(1).sqrt() > self.clip * (1 - MARGIN)

    def describe(self) -> str:
        """In words."""
        return f"each image's gradient scaled to norm at most C = {self.clip:g}"


@dataclass(frozen=True)
class Normalised(ClippingRule):
    """Clip to `clip` and divide by it: `g · min(1/C, 1/norm)` (De et al., 2022).

    The update of a clipped example does not depend on C, so C and the learning rate can be chosen
    apart from each other.

    Guarantee: The weighted gradient of one example has Euclidean norm at most 1.
    """

    clip: float

    def __post_init__(self) -> None:
        check_clip(self.clip)

    @property
    def sensitivity(self) -> float:
        """One, whatever `clip` is."""
        return 1.0

    @property
    def uniform(self) -> bool:
        """Yes."""
        return True

    def weights(self, squared_norms: Tensor) -> Tensor:
        """`1 / max(C, norm)`, the same for every parameter of an example."""
        norm = squared_norms.sum(1).sqrt()
        return alike((1 - MARGIN) / norm.clamp(min=self.clip), squared_norms)

    def clipped(self, squared_norms: Tensor) -> Tensor:
        """Those with a norm above C."""
        return squared_norms.sum(1).sqrt() > self.clip

    def describe(self) -> str:
        """In words."""
        return (
            f"each image's gradient scaled to norm at most C = {self.clip:g} and divided by C, so "
            "to norm at most 1"
        )


@dataclass(frozen=True)
class Automatic(ClippingRule):
    """Divide by the norm plus a little: `g / (norm + gamma)` (Bu et al., 2022). There is no C.

    Guarantee: The weighted gradient of one example has Euclidean norm below 1.
    """

    gamma: float = 0.01

    def __post_init__(self) -> None:
        if not SMALLEST <= self.gamma < math.inf:
            raise UserError(f"gamma must be a positive number, not {self.gamma}; 0.01 is usual.")

    @property
    def sensitivity(self) -> float:
        """One."""
        return 1.0

    @property
    def uniform(self) -> bool:
        """Yes."""
        return True

    def weights(self, squared_norms: Tensor) -> Tensor:
        """`1 / (norm + gamma)`, the same for every parameter of an example."""
        norm = squared_norms.sum(1).sqrt()
        return alike((1 - MARGIN) / (norm + self.gamma), squared_norms)

    def clipped(self, squared_norms: Tensor) -> Tensor:
        """Those that come out shorter than they went in."""
        return squared_norms.sum(1).sqrt() + self.gamma > 1

    def describe(self) -> str:
        """In words."""
        return f"each image's gradient divided by its norm plus {self.gamma:g}, so to norm below 1"


@dataclass(frozen=True)
class GroupWise(ClippingRule):
    """Clip groups of parameters apart, group i to C_i, where the sum of C_i² is C².

    Attributes:
        clip: C, the bound on the whole gradient.
        split: `uniform` gives each of m groups C/√m; `dimension` gives a group with d of D
            parameters C·√(d/D).
        patterns: Name patterns such as `stage1.*`; a parameter is in the group of the first that
            matches, and those that none matches are a group of their own. Without patterns each
            layer (the module that owns the parameter) is a group.
        given: Relative sizes of the C_i, one per group, instead of `split`.
        groups: For each parameter its group; set by `bind`.
        shares: C_i²/C² of each group; set by `bind`.

    Guarantee: The part of one example's gradient in group i has norm at most C_i, so the whole has
    norm at most C. An example with any norm that is not finite gets weight zero everywhere.
    """

    clip: float
    split: str = "uniform"
    patterns: tuple[str, ...] = ()
    given: tuple[float, ...] = ()
    groups: tuple[int, ...] = ()
    shares: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_clip(self.clip)
        if self.split not in SPLITS:
            raise UserError(
                f"A clipping norm is split by {' or '.join(SPLITS)}, not '{self.split}'."
                f"{nearest(self.split, SPLITS)}"
            )
        if any(not 0 < size < math.inf for size in self.given):
            raise UserError(f"Clipping norms of groups must be positive, not {self.given}.")

    @property
    def sensitivity(self) -> float:
        """The root of the sum of the C_i²: C, as far as rounding goes."""
        return math.hypot(*self.limits) if self.shares else self.clip

    @property
    def uniform(self) -> bool:
        """Only if there is a single group."""
        return len(self.shares) == 1

    @property
    def limits(self) -> tuple[float, ...]:
        """The C_i."""
        return tuple(self.clip * math.sqrt(share) for share in self.shares)

    def bind(self, names: Sequence[str], shapes: Sequence[torch.Size]) -> GroupWise:
        """The rule for these parameters."""
        groups = group_parameters(names, self.patterns)
        shares = split_evenly(groups, shapes, self.split)
        if self.given:
            if len(self.given) != len(shares):
                raise UserError(
                    f"{len(self.given)} clipping norms were given for {len(shares)} groups of "
                    "parameters: give one for each."
                )
            total = sum(size**2 for size in self.given)
            shares = tuple(size**2 / total for size in self.given)
        return replace(self, groups=groups, shares=shares)

    def weights(self, squared_norms: Tensor) -> Tensor:
        """`min(1, C_i / norm of the group)`."""
        return weights_by_group(squared_norms, self.groups, self.limits)

    def describe(self) -> str:
        """In words."""
        by = "group of parameters" if self.patterns else "layer"
        return (
            f"the part of each image's gradient in each {by} ({len(self.shares)} in all) scaled "
            f"apart, so that the whole has norm at most C = {self.clip:g}"
        )


@dataclass(frozen=True)
class Unclipped(ClippingRule):
    """Let every finite gradient through as it is: for runs without privacy."""

    @property
    def sensitivity(self) -> float:
        """Unbounded."""
        return float("inf")

    @property
    def uniform(self) -> bool:
        """Yes."""
        return True

    def weights(self, squared_norms: Tensor) -> Tensor:
        """One for every finite example."""
        return alike(squared_norms.new_ones(squared_norms.shape[0]), squared_norms)


def weights_by_group(
    squared_norms: Tensor, groups: Sequence[int], limits: Sequence[float]
) -> Tensor:
    """`min(1, C_i / norm of group i)` for every column, zero for examples that are not finite."""
    norms = norms_by_group(squared_norms, groups, len(limits))
    bounds = on_device(tuple(limits), norms.device, norms.dtype) * (1 - MARGIN)
    scale = (bounds / norms).clamp(max=1)
    scale = torch.where(torch.isfinite(norms).all(1, keepdim=True), scale, torch.zeros_like(scale))
    return scale.index_select(1, on_device(tuple(groups), norms.device, torch.long))
