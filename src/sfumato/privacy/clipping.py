"""Clipping rules: from the norms of an example's gradient to its weight in the sum.

A rule is frozen. One that changes during a run (`sfumato.privacy.adaptive`) returns its successor
after a release, which the mechanism uses from then on.
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
"""Margin for rounding, 1.5e-5: examples are scaled to C·(1 − MARGIN), so C itself is never
exceeded. Norms take 8e-6 of it (`engines.results`); the rest is for the order in which up to 10^5
examples are summed in float64, which an example can change by at most 2 · 10^10 roundings of 2^-53
C."""

SMALLEST_WEIGHT = 1e-37
"""Weights below it become zero: float32 holds smaller ones with fewer than 24 bits, and an example
of such a weight, rounded up, would add more than C."""

SMALLEST = 1e-12
"""The smallest clipping norm and gamma: float32 cannot hold the products of much smaller ones."""

SPLITS = ("uniform", "dimension")


class ClippingRule(ABC):
    """Map from squared norms per parameter to weights, with a stated sensitivity.

    A custom rule defines `sensitivity` and `weights`; the rest has defaults for rules that treat
    all parameters alike and never change.
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
        """Tell whether an example's weight is the same for all its parameters."""
        return False

    def bind(self, names: Sequence[str], shapes: Sequence[torch.Size]) -> ClippingRule:
        """The rule for these parameters, in the order of the columns of `squared_norms`."""
        return self

    def clipped(self, squared_norms: Tensor) -> Tensor:
        """Mask `(examples,)` of the examples that are shortened."""
        return (self.weights(squared_norms) < 1).any(1)

    def gradient_noise(self, total: float) -> float:
        """The noise multiplier of the gradients if a whole release has the multiplier `total`."""
        return total

    def observe(self, squared_norms: Tensor, drawn: Tensor) -> Tensor | None:
        """A sum over drawn examples that is to be released with noise, or None."""
        return None

    def observe_nothing(self, parameters: int, device: torch.device) -> Tensor | None:
        """The observation of an empty draw, for a number of parameters."""
        none = torch.zeros(0, parameters, dtype=torch.float64, device=device)
        return self.observe(none, torch.zeros(0, dtype=torch.bool, device=device))

    @property
    def observation_noise(self) -> float:
        """Standard deviation of the noise on the sum that `observe` returns."""
        return 0.0

    def after(self, noisy: Tensor, batch: float) -> ClippingRule:
        """The rule after a release, given the noisy observation and the expected batch."""
        return self

    def state(self) -> dict[str, Any]:
        """Plain numbers that change from release to release; empty if none do."""
        return {}

    def restored(self, state: Mapping[str, Any]) -> ClippingRule:
        """The rule in a state that `state` returned."""
        return self

    def describe(self, unit: str = "image") -> str:
        """The rule in words, for readers of a privacy statement.

        Args:
            unit: The word for what neighbouring data sets differ by.
        """
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
        """Tell whether an example's weight is the same for all its parameters, which it is."""
        return True

    def weights(self, squared_norms: Tensor) -> Tensor:
        """`min(1, C / norm)`, the same for every parameter of an example."""
        norm = squared_norms.sum(1).sqrt()
        return alike((self.clip * (1 - MARGIN) / norm).clamp(max=1), squared_norms)

    def clipped(self, squared_norms: Tensor) -> Tensor:
        """Mask of the examples with a weight below one."""
        return squared_norms.sum(1).sqrt() > self.clip * (1 - MARGIN)

    def describe(self, unit: str = "image") -> str:
        """The rule in words."""
        return f"each {unit}'s gradient scaled to norm at most C = {self.clip:g}"


@dataclass(frozen=True)
class Normalised(ClippingRule):
    """Clip to `clip` and divide by it: `g · min(1/C, 1/norm)` (De et al., 2022).

    The update of a clipped example does not depend on C, so C and the learning rate can be chosen
    independently.

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
        """Tell whether an example's weight is the same for all its parameters, which it is."""
        return True

    def weights(self, squared_norms: Tensor) -> Tensor:
        """`1 / max(C, norm)`, the same for every parameter of an example."""
        norm = squared_norms.sum(1).sqrt()
        return alike((1 - MARGIN) / norm.clamp(min=self.clip), squared_norms)

    def clipped(self, squared_norms: Tensor) -> Tensor:
        """Mask of the examples with a norm above C."""
        return squared_norms.sum(1).sqrt() > self.clip

    def describe(self, unit: str = "image") -> str:
        """The rule in words."""
        return (
            f"each {unit}'s gradient scaled to norm at most C = {self.clip:g} and divided by C, so "
            "to norm at most 1"
        )


@dataclass(frozen=True)
class Automatic(ClippingRule):
    """Divide by the norm plus a constant: `g / (norm + gamma)` (Bu et al., 2022). There is no C.

    Guarantee: The weighted gradient of one example has Euclidean norm below 1.
    """

    gamma: float = 0.01

    def __post_init__(self) -> None:
        if not SMALLEST <= self.gamma < math.inf:
            raise UserError(f"gamma must be a positive number, not {self.gamma}; 0.01 is usual.")

    @property
    def sensitivity(self) -> float:
        """One, whatever `gamma` is."""
        return 1.0

    @property
    def uniform(self) -> bool:
        """Tell whether an example's weight is the same for all its parameters, which it is."""
        return True

    def weights(self, squared_norms: Tensor) -> Tensor:
        """`1 / (norm + gamma)`, the same for every parameter of an example."""
        norm = squared_norms.sum(1).sqrt()
        return alike((1 - MARGIN) / (norm + self.gamma), squared_norms)

    def clipped(self, squared_norms: Tensor) -> Tensor:
        """Mask of the examples whose gradient becomes shorter."""
        return squared_norms.sum(1).sqrt() + self.gamma > 1

    def describe(self, unit: str = "image") -> str:
        """The rule in words."""
        return f"each {unit}'s gradient divided by its norm plus {self.gamma:g}, so to norm below 1"


@dataclass(frozen=True)
class GroupWise(ClippingRule):
    """Clip groups of parameters separately, group i to C_i, where the sum of C_i² is C².

    Attributes:
        clip: C, the bound on the whole gradient.
        split: `uniform` gives each of m groups C/√m; `dimension` gives a group with d of D numbers
            C·√(d/D).
        patterns: Name patterns such as `stage1.*`; a parameter is in the group of the first pattern
            that matches, and parameters that match none form one more group. Without patterns each
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
        """The root of the sum of the C_i²: C, up to rounding."""
        return math.hypot(*self.limits) if self.shares else self.clip

    @property
    def uniform(self) -> bool:
        """Tell whether an example's weight is the same for all its parameters: with one group."""
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

    def describe(self, unit: str = "image") -> str:
        """The rule in words."""
        by = "group of parameters" if self.patterns else "layer"
        return (
            f"the part of each {unit}'s gradient in each {by} ({len(self.shares)} in all) scaled "
            f"apart, so that the whole has norm at most C = {self.clip:g}"
        )


@dataclass(frozen=True)
class Unclipped(ClippingRule):
    """Leave every finite gradient as it is: for runs without privacy."""

    @property
    def sensitivity(self) -> float:
        """Infinity: nothing is bounded."""
        return float("inf")

    @property
    def uniform(self) -> bool:
        """Tell whether an example's weight is the same for all its parameters, which it is."""
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
