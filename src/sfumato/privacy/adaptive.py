"""Adaptive quantile clipping (Andrew et al., 2021): C follows a quantile of the gradients' norms.

Each step also releases, with noise of its own, the number of its examples whose norm is at most C.
This count moves C by a factor for the next step: `C ← C · exp(−rate · (b − quantile))`, where b is
the noisy fraction.

**Privacy cost.** Let example i add its clipped gradient g_i (norm at most C) to one sum and
c_i = [norm ≤ C] − 1/2 to another. Centring makes |c_i| = 1/2 where a bare indicator would have 1.
The step releases Σg_i + N(0, (z_g C)² I) and Σc_i + N(0, σ_b²), from the same draw. Divide the
first by z_g C and the second by σ_b: both carry unit noise, and together they are one Gaussian
release of the vectors (g_i/(z_g C), c_i/σ_b), whose squared norms are at most

    1/z² = 1/z_g² + 1/(2 σ_b)².

So one example moves the joint release by at most 1/z standard deviations of its noise: a step is
the Poisson-subsampled Gaussian mechanism with multiplier z, exactly. With m groups of parameters
there are m counts, each moved by at most 1/2, so by √m/2 together; each gets noise of √m σ_b, and
the counts together cost what a single one would. The budget fixes z, the user fixes σ_b, and z_g
follows: it is slightly more than z. C_t is computed from earlier releases only, so steps
compose like any others.

**Under Poisson sampling** the drawn size is itself private, so the noisy count is divided by the
expected batch B, never by what was drawn: b = (Σc_i + noise)/B + 1/2. Its expectation is the true
fraction among all examples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sfumato.errors import UserError
from sfumato.privacy.accounting.accountants import joint_noise_multiplier
from sfumato.privacy.clipping import ClippingRule, check_clip, weights_by_group
from sfumato.privacy.numerics.parameter_groups import (
    group_parameters,
    norms_by_group,
    on_device,
    split_evenly,
)

REACH = 1e6
"""Largest factor between C and its initial value: no sequence of noise makes C 0 or infinite."""


@dataclass(frozen=True)
class AdaptiveQuantile(ClippingRule):
    """Clip to C, where C follows the `quantile` of the norms.

    Attributes:
        clip: Initial C. With groups, the root of the sum of the squares of the initial C_i.
        quantile: The fraction of examples that should be left unclipped.
        rate: Step size of C: a step changes it by at most a factor of about exp(rate).
        count_noise: σ_b, the standard deviation of the noise on the count of examples. With m
            groups each count gets √m times as much.
        by_layer: Whether every layer has a C of its own.
        split: How `clip` is split at the start: `uniform` or `dimension`.
        groups: For each parameter its group; set by `bind`.
        start: The initial C_i; set by `bind`.
        limits: The C_i now.

    Guarantee: An example adds at most `sensitivity` to the sum of gradients and at most 1/2 to each
    count; noise of `gradient_noise(z)` and `observation_noise` makes a release the Gaussian
    mechanism with noise multiplier z or more. An example whose gradient is not finite adds nothing
    to either.
    """

    clip: float
    count_noise: float
    quantile: float = 0.5
    rate: float = 0.2
    by_layer: bool = False
    split: str = "uniform"
    groups: tuple[int, ...] = ()
    start: tuple[float, ...] = ()
    limits: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_clip(self.clip)
        if not 0 < self.count_noise < math.inf:
            raise UserError(
                f"The noise on the count must be a positive number, not {self.count_noise}."
            )
        if not 0 < self.quantile < 1:
            raise UserError(f"The quantile must lie between 0 and 1, not {self.quantile}.")
        if not 0 < self.rate < math.inf:
            raise UserError(f"The rate of the clipping norm must be positive, not {self.rate}.")

    @property
    def sensitivity(self) -> float:
        """The root of the sum of the present C_i²."""
        return math.hypot(*self.limits) if self.limits else self.clip

    @property
    def uniform(self) -> bool:
        """Tell whether all layers have one C, so that one weight holds for all parameters."""
        return not self.by_layer

    def bind(self, names: Sequence[str], shapes: Sequence[torch.Size]) -> AdaptiveQuantile:
        """The rule for these parameters; if the groups are the same as before, the C_i stay."""
        groups = group_parameters(names) if self.by_layer else (0,) * len(names)
        shares = split_evenly(groups, shapes, self.split)
        start = tuple(self.clip * math.sqrt(share) for share in shares)
        limits = self.limits if len(self.limits) == len(start) else start
        return replace(self, groups=groups, start=start, limits=limits)

    def weights(self, squared_norms: Tensor) -> Tensor:
        """`min(1, C_i / norm of the group)`."""
        return weights_by_group(squared_norms, self.groups, self.limits)

    def gradient_noise(self, total: float) -> float:
        """z_g, from z and the noise of the counts; rounding never makes it smaller than z requires.

        Raises:
            UserError: If the counts alone cost as much as the step may.
        """
        if total == 0:
            return 0.0
        counts = self.count_multiplier
        rest = 1 / total**2 - 1 / counts**2
        if rest <= 0:
            raise UserError(
                f"Noise of {self.count_noise:g} on the count of unclipped examples is too little: "
                f"the count alone would cost more than a step may. Raise privacy.count_noise above "
                f"{total / 2:.3g}; a twentieth of the batch is usual."
            )
        noise = 1 / math.sqrt(rest)
        while joint_noise_multiplier(noise, counts) < total:
            noise = math.nextafter(noise, math.inf)
        return noise

    @property
    def count_multiplier(self) -> float:
        """The noise multiplier of the counts alone: √m σ_b over √m / 2."""
        return 2 * self.count_noise

    def observe(self, squared_norms: Tensor, drawn: Tensor) -> Tensor:
        """Σ([norm ≤ C_i] − 1/2) for each group, over drawn examples whose norms are finite."""
        norms = norms_by_group(squared_norms, self.groups, len(self.limits))
        below = (norms <= on_device(tuple(self.limits), norms.device, norms.dtype)).to(
            norms.dtype
        ) - 0.5
        counted = drawn.to(norms.device) & torch.isfinite(norms).all(1)
        return (below * counted.unsqueeze(1)).sum(0)

    @property
    def observation_noise(self) -> float:
        """σ_b, or √m times as much for each of m counts."""
        return self.count_noise * math.sqrt(max(1, len(self.limits)))

    def after(self, noisy: Tensor, batch: float) -> AdaptiveQuantile:
        """The rule with each C_i moved towards its quantile."""
        moved = []
        for limit, start, count in zip(self.limits, self.start, noisy.tolist(), strict=True):
            fraction = count / batch + 0.5
            push = max(-50.0, min(50.0, -self.rate * (fraction - self.quantile)))
            low, high = start / REACH, start * REACH
            moved.append(min(max(limit * math.exp(push), low), high))
        return replace(self, limits=tuple(moved))

    def state(self) -> dict[str, Any]:
        """The C_i, for a checkpoint."""
        return {"limits": list(self.limits)}

    def restored(self, state: Mapping[str, Any]) -> AdaptiveQuantile:
        """The rule with other C_i."""
        return replace(self, limits=tuple(float(limit) for limit in state["limits"]))

    def describe(self, unit: str = "image") -> str:
        """The rule in words."""
        each = f"each {unit}'s gradient scaled to norm at most C, which starts"
        if self.by_layer:
            each = (
                f"the part of each {unit}'s gradient in each of {len(self.limits)} layers scaled "
                "to norm at most a C of its own, which together start"
            )
        return (
            f"{each} at {self.clip:g} and follow{'' if self.by_layer else 's'} the "
            f"{self.quantile:g}-quantile of the norms through a count released with noise of "
            f"standard deviation {self.observation_noise:g}; σ below is that of the count and the "
            "gradients together"
        )
