"""Canaries in gradient space: examples of the largest gradient, each in coordinates of its own.

A canary is one of the examples that the sampler draws, numbered after all others. A coin decides
whether it is in; whenever it is drawn and in, it has a gradient so large that any clipping rule
shortens it, in coordinates that no other canary has. It goes through the mechanism as every example
does: the rule's weight, the sum, the noise, the release. What it leaves in its coordinates is the
most that one example can leave, so guesses of its coin are as good as the guarantee allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sfumato.errors import UserError
from sfumato.privacy.accounting.accountants import Step
from sfumato.privacy.clipping import ClippingRule
from sfumato.privacy.numerics.precision import widest
from sfumato.privacy.numerics.randomness import Randomness
from sfumato.privacy.sampling import PhysicalBatch

_LARGE = 1e4
"""The norm of a canary's gradient in one tensor over the larger of 1 and C, so that it is clipped
to the whole sensitivity, but for 1e-6 of it with `Automatic`."""


@dataclass(frozen=True, eq=False)
class Canaries:
    """Canaries of one model.

    Attributes:
        first: The index of the first canary in the sampler: the number of other examples.
        included: `(canaries,)`, the coins.
        places: For each tensor that holds any, `(canaries,)` positions in it, -1 for none.
        shapes: The shapes of all trained tensors, by name, in the mechanism's order.
        norm: The norm of a canary's gradient in each tensor that it has a place in.
        shares: What a canary adds in each of these tensors over all that it adds.
        reach: What a canary adds over the sensitivity: 1, or less where groups of parameters are
            clipped apart and canaries have no place in some.
    """

    first: int
    included: Tensor
    places: Mapping[str, Tensor]
    shapes: Mapping[str, torch.Size]
    norm: float
    shares: Mapping[str, Tensor]
    reach: float = 1.0

    @classmethod
    def place(
        cls,
        parameters: Mapping[str, Tensor],
        *,
        count: int,
        examples: int,
        clipping: ClippingRule,
        randomness: Randomness,
    ) -> Canaries:
        """Draw coins and coordinates.

        Args:
            parameters: The trained parameters, by name.
            count: Number of canaries.
            examples: Number of other examples: the sampler has `examples + count`.
            clipping: The mechanism's rule. One that clips groups of parameters apart lets a canary
                reach its sensitivity only with coordinates in every group: canaries then have one
                in every tensor that has enough for all.
            randomness: Source of coins and coordinates, which need not be secret, but must be
                independent of the mechanism's.

        Raises:
            UserError: There are too few coordinates.
        """
        shapes = {name: p.shape for name, p in parameters.items()}
        rule = clipping.bind(list(shapes), list(shapes.values()))
        if rule.sensitivity == float("inf"):
            raise UserError(
                "A canary needs a clipping rule: without one it has no largest gradient."
            )
        total = sum(shape.numel() for shape in shapes.values())
        if count < 1 or total < count:
            raise UserError(
                f"Each of {count} canaries needs a coordinate of its own, and the model has "
                f"{total} trained parameters: choose a number from 1 to {total}."
            )
        source = randomness.generator(0, "canaries")
        roomy = [name for name, shape in shapes.items() if shape.numel() >= count]
        if rule.uniform or not roomy:
            places = _in_the_largest(shapes, count, source)
        else:
            places = {
                name: torch.randperm(shapes[name].numel(), generator=source)[:count]
                for name in roomy
            }
        norm = _LARGE * max(1.0, rule.sensitivity)
        columns = [_squared(places.get(name), norm, count) for name in shapes]
        squared = torch.stack(columns, 1)
        added = rule.weights(squared) * squared.sqrt()
        length = torch.linalg.vector_norm(added, dim=1, keepdim=True)
        shares = {name: (added / length)[:, list(shapes).index(name)] for name in places}
        coins = randomness.stream(0, "coins").trials(count, 0.5)
        reach = min(1.0, float(length.mean()) / rule.sensitivity)
        return cls(examples, coins, places, shapes, norm, shares, reach)

    @property
    def count(self) -> int:
        """Number of canaries, in or out."""
        return len(self.included)

    def batch(
        self, draw: Tensor, parameters: Mapping[str, Tensor]
    ) -> tuple[PhysicalBatch, CanaryGradients]:
        """The canaries of a draw that are in, as the mechanism takes a physical batch.

        Args:
            draw: Indices of a draw; those of other examples are passed over.
            parameters: The trained parameters, by name.

        Raises:
            UserError: They are others than those that the canaries have their places in.
        """
        if {name: p.shape for name, p in parameters.items()} != dict(self.shapes):
            raise UserError(
                "The canaries were placed in other parameters than those that are trained now: "
                "place them after freezing or replacing any."
            )
        drawn = draw[draw >= self.first].cpu()
        drawn = drawn[self.included[drawn - self.first]]
        device = next(iter(parameters.values())).device
        batch = PhysicalBatch(drawn, torch.ones(len(drawn)), 0, len(drawn))
        return batch, CanaryGradients(self, (drawn - self.first).to(device))

    @torch.no_grad()
    def read(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Sums `(canaries,)` over each canary's coordinates of tensors such as weights.

        They are weighted by what a canary adds there, which is best for telling it from noise. A
        tensor that is not given counts as zero.
        """
        found = torch.zeros(self.count, dtype=torch.float64)
        for name, places in self.places.items():
            if name not in tensors:
                continue
            there = places >= 0
            index = places[there].to(tensors[name].device)
            values = tensors[name].detach().reshape(-1)[index].cpu().double()
            found[there] += values * self.shares[name][there]
        return found

    def losses(
        self,
        gradients: Mapping[str, Tensor],
        others: Tensor,
        *,
        step: Step,
        clipping: ClippingRule,
        batch: float,
    ) -> Tensor:
        """Privacy losses `(canaries,)` of one release in the coordinates of each canary.

        They are log((1 - q) + q N(x; 1, z²) / N(x; 0, z²)) of what the release holds there beside
        the other examples: the best score for somebody who knows these and whether they were drawn,
        as a guarantee allows, but neither the coins of canaries nor whether they were drawn.

        Args:
            gradients: The released gradients, by name.
            others: The sums of the other examples, as `PrivateGradients.accumulate_canaries`
                returns them if canaries come last.
            step: The release.
            clipping: The rule that was used for it.
            batch: The expected batch, by which they were divided.
        """
        noise = clipping.gradient_noise(step.noise_multiplier)
        x = (self.read(gradients) * batch - others) / clipping.sensitivity
        exponent = (self.reach * x - self.reach**2 / 2) / max(noise, 1e-9) ** 2
        drawn = torch.tensor(step.q, dtype=torch.float64).log() + exponent
        missed = torch.tensor(1 - step.q, dtype=torch.float64).log()
        return torch.logaddexp(missed, drawn)


class CanaryGradients:
    """Per-example gradients of canaries: of one norm, in their own coordinates.

    Args:
        canaries: The canaries.
        numbers: Those that were drawn, counted from zero, on the device of the parameters.
    """

    outputs: Tensor | None = None

    def __init__(self, canaries: Canaries, numbers: Tensor) -> None:
        self._canaries, self._numbers = canaries, numbers
        self.names = tuple(canaries.shapes)
        self.losses = torch.zeros(len(numbers), device=numbers.device)

    @cached_property
    def _places(self) -> dict[str, Tensor]:
        here = self._numbers.cpu()
        return {n: p[here].to(self._numbers.device) for n, p in self._canaries.places.items()}

    def squared_norms(self) -> Tensor:
        """Squared norms `(canaries, parameters)`."""
        wide = widest(self._numbers.device)
        columns = [
            _squared(self._places.get(name), self._canaries.norm, len(self._numbers)).to(
                self._numbers.device, wide
            )
            for name in self.names
        ]
        return torch.stack(columns, 1)

    def weighted_sum(self, weights: Tensor) -> list[Tensor]:
        """The weighted sum; one column of weights serves all parameters."""
        sums = []
        for column, (name, shape) in enumerate(self._canaries.shapes.items()):
            total = torch.zeros(shape.numel(), device=self._numbers.device)
            if (places := self._places.get(name)) is not None:
                own = weights[:, min(column, weights.shape[1] - 1)] * self._canaries.norm
                there = places >= 0
                total[places[there]] = own[there].to(total.dtype)
            sums.append(total.view(shape))
        return sums


def _in_the_largest(
    shapes: Mapping[str, torch.Size], count: int, source: torch.Generator
) -> dict[str, Tensor]:
    """One coordinate for each canary, in as few tensors as hold them all, the largest first.

    There the gradients of the other examples are spread over most coordinates.
    """
    order = sorted(shapes, key=lambda name: -shapes[name].numel())
    room, used = 0, 0
    while room < count:
        room += shapes[order[used]].numel()
        used += 1
    drawn, start = torch.randperm(room, generator=source)[:count], 0
    places: dict[str, Tensor] = {}
    for name in order[:used]:
        end = start + shapes[name].numel()
        here = (drawn >= start) & (drawn < end)
        places[name] = torch.where(here, drawn - start, -1)
        start = end
    return places


def _squared(places: Tensor | None, norm: float, count: int) -> Tensor:
    """Squared norms `(count,)` of gradients with these places in a tensor."""
    if places is None:
        return torch.zeros(count, dtype=torch.float64)
    return torch.where(places >= 0, norm**2, 0.0).to(torch.float64)
