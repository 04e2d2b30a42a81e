"""The sum of one draw: clipped gradients of examples, or of units with several images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from sfumato.errors import UserError
from sfumato.privacy.clipping import SMALLEST_WEIGHT, ClippingRule
from sfumato.privacy.draws.draw_count import DrawCount
from sfumato.privacy.engines.results import Gradients, PerExampleGradients
from sfumato.privacy.numerics.precision import widest
from sfumato.privacy.numerics.totals import Totals
from sfumato.privacy.statistics import BatchStatistics
from sfumato.privacy.units.image_units import UnitBatch


@dataclass(frozen=True, eq=False)
class Contribution:
    """The contribution of some examples to a sum.

    Attributes:
        sums: The sum of their clipped gradients, for each parameter.
        observed: What the clipping rule observed of them.
        statistics: Their statistics.
    """

    sums: list[Tensor]
    observed: Tensor | None
    statistics: BatchStatistics

    @classmethod
    def of(
        cls, gradients: PerExampleGradients, y: Tensor, drawn: Tensor, rule: ClippingRule
    ) -> Contribution:
        """Clip and add the gradients of examples.

        Guarantee: Each example adds at most the rule's sensitivity; one that was not drawn, or
        whose gradient is not finite, adds exactly nothing.

        Args:
            gradients: Per-example gradients.
            y: The targets.
            drawn: Mask of the examples that count.
            rule: The clipping rule.
        """
        squared = gradients.squared_norms()
        scales = rule.weights(squared)
        scales = torch.where(scales < SMALLEST_WEIGHT, 0.0, scales)
        if rule.uniform:
            scales = scales[:, :1]
        sums = gradients.weighted_sum(scales * drawn.unsqueeze(1))
        observed = rule.observe(squared, drawn)
        statistics = BatchStatistics.of(
            gradients, y, drawn=drawn, clipped=rule.clipped(squared), squared=squared
        )
        return cls(sums, observed, statistics)

    def copied(self) -> Contribution:
        """The same with sums of its own: those of gradients last until the next are computed."""
        return replace(self, sums=[_wide(t, copy=True) for t in self.sums])

    def __add__(self, other: Contribution) -> Contribution:
        sums = [_wide(a) + _wide(b) for a, b in zip(self.sums, other.sums, strict=True)]
        observed = self.observed
        if observed is not None and other.observed is not None:
            observed = observed + other.observed
        return Contribution(sums, observed, self.statistics + other.statistics)


@dataclass(frozen=True, eq=False)
class OpenUnit:
    """A unit of which more images may come: its gradient is not clipped yet.

    Attributes:
        unit: Its number.
        images: Number of its images so far.
        sums: The sum of their gradients.
        loss: The sum of their losses.
        output: Output of the first image, for statistics.
        target: Target of the first image.
    """

    unit: int
    images: int
    sums: list[Tensor]
    loss: Tensor
    output: Tensor | None
    target: Tensor

    def clipped(self, parameters: Mapping[str, nn.Parameter], rule: ClippingRule) -> Contribution:
        """The mean over the images, clipped as one."""
        shapes = tuple(p.shape for p in parameters.values())
        means = [(t / self.images).unsqueeze(0) for t in self.sums]
        loss = (self.loss / self.images).view(1)
        found = Gradients(tuple(parameters), shapes, means, loss, self.output)
        drawn = torch.ones(1, dtype=torch.bool, device=loss.device)
        return Contribution.of(found, self.target, drawn, rule)


@dataclass
class ClippedSum:
    """The sum of the contributions of one draw, as far as it has been accumulated.

    Attributes:
        totals: The sums; None before the first example.
        rule: The clipping rule, and the sensitivity that it had.
        observed: What the rule observed.
        statistics: Statistics of the examples.
        draw: Count of the examples.
        by_unit: Whether images come with their units; None before the first.
        last: The unit that more images may come of.
    """

    totals: Totals | None = None
    rule: tuple[ClippingRule, float] | None = None
    observed: Tensor | None = None
    statistics: BatchStatistics = field(default_factory=BatchStatistics)
    draw: DrawCount = field(default_factory=DrawCount)
    by_unit: bool | None = None
    last: OpenUnit | None = None

    @property
    def empty(self) -> bool:
        """Tell whether nothing has been accumulated."""
        return self.totals is None and self.last is None

    def check_rule(self, rule: ClippingRule) -> None:
        """Refuse another rule than the sum was begun with: noise is scaled to one sensitivity."""
        if self.rule not in (None, (rule, rule.sensitivity)):
            raise RuntimeError("the clipping rule was changed between accumulate and release")

    def check_kind(self, *, by_unit: bool) -> None:
        """Refuse images with units beside images without."""
        if self.by_unit not in (None, by_unit):
            raise UserError(
                "Images were accumulated with units and without, for one release: give the units "
                "of all of them, or of none."
            )

    def check_parameters(self, parameters: dict[str, nn.Parameter]) -> None:
        """Refuse other parameters than the sum was begun with."""
        if self.totals is not None:
            self.totals.check_fits(parameters)

    def add(
        self, contribution: Contribution, parameters: dict[str, nn.Parameter], rule: ClippingRule
    ) -> None:
        """Add a contribution."""
        self.check_parameters(parameters)
        totals = Totals(parameters) if self.totals is None else self.totals
        observed = contribution.observed
        if observed is not None and self.observed is not None:
            observed = self.observed + observed
        statistics = self.statistics + contribution.statistics
        totals.add(tuple(parameters), contribution.sums)
        self.totals, self.rule = totals, (rule, rule.sensitivity)
        self.statistics, self.observed = statistics, observed

    def add_units(
        self,
        batch: UnitBatch,
        gradients: PerExampleGradients,
        parameters: dict[str, nn.Parameter],
        rule: ClippingRule,
    ) -> None:
        """Add a batch of units; the last one stays open, since more images of it may come.

        Guarantee: The images of a unit are averaged before they are clipped, those of earlier
        batches among them. What was clipped is kept, whatever is computed next: a captured graph
        returns the same tensors each time.

        Args:
            batch: The images, in parts.
            gradients: Gradients of the parts, each the mean over its images.
            parameters: The trained parameters.
            rule: The clipping rule.
        """
        self.totals = Totals(parameters) if self.totals is None else self.totals
        if not len(batch.units):
            return
        parts = torch.bincount(batch.unit, minlength=len(batch.units))
        goes_on = self.last is not None and self.last.unit == int(batch.units[0])
        open_ones = parts > 1
        open_ones[-1] = True
        open_ones[0] = open_ones[0] or goes_on
        home = gradients.losses.device
        whole = ~open_ones[batch.unit]
        found = None
        if self.last is not None and not goes_on:
            found = self.last.clipped(parameters, rule).copied()
        if bool(whole.any()):
            own = Contribution.of(gradients, batch.y, whole.to(home), rule)
            found = own.copied() if found is None else found + own
        last = self.last if goes_on else None
        for k in open_ones.nonzero().flatten().tolist():
            last = _joined(last if k == 0 else None, k, batch, gradients)
            if k < len(batch.units) - 1:
                own = last.clipped(parameters, rule)
                found = own.copied() if found is None else found + own
        if found is not None:
            self.add(found, parameters, rule)
        self.rule, self.last = (rule, rule.sensitivity), last

    def close(self, parameters: dict[str, nn.Parameter], rule: ClippingRule) -> None:
        """Add the unit that is open."""
        if self.last is not None:
            self.add(self.last.clipped(parameters, rule), parameters, rule)
            self.last = None


def _joined(
    before: OpenUnit | None, k: int, batch: UnitBatch, gradients: PerExampleGradients
) -> OpenUnit:
    """The unit at a position of a batch, with its images of earlier batches."""
    home = gradients.losses.device
    own = (batch.unit == k).nonzero().flatten()
    counts = torch.zeros(len(batch.unit), dtype=torch.float64)
    counts[own] = batch.counts[own].double()
    weights = counts.to(home, widest(home))
    sums = [_wide(t, copy=True) for t in gradients.weighted_sum(weights.unsqueeze(1))]
    loss = (gradients.losses.to(weights.dtype)[own] * weights[own]).sum()
    images = int(batch.counts[own].sum())
    if before is not None:
        sums = [a + b for a, b in zip(before.sums, sums, strict=True)]
        return OpenUnit(
            before.unit, before.images + images, sums, before.loss + loss,
            before.output, before.target,
        )  # fmt: skip
    first, output = int(own[0]), gradients.outputs
    if output is not None:
        row = first * (len(output) // len(batch.unit))
        output = output[row : row + 1].clone()
    return OpenUnit(
        int(batch.units[k]), images, sums, loss, output, batch.y[first : first + 1].clone()
    )


def _wide(t: Tensor, *, copy: bool = False) -> Tensor:
    return t.to(widest(t.device), copy=copy)
