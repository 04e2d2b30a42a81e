"""Book-keeping on the CPU: a layer's inputs and output gradients instead of its gradients.

Where an output has few spatial positions and filters are large, the norm of an example's filter
gradient is cheap to compute from products of patches (Li et al., 2021), and the weighted sum is one
product of patches and rescaled output gradients (Bu et al., 2022). Per-example gradients are then
never materialised. A linear layer on vectors has one position, and its weight matrix is nearly
always larger than the two vectors together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.kernels import definitions
from sfumato.kernels.definitions import GHOST_LONGEST, Geometry
from sfumato.privacy.engines.convolution_gradients import conv_weight_gradients
from sfumato.privacy.engines.leaves import NotPerOperator
from sfumato.privacy.engines.products import LINEAR, Equation, matrix_gradients
from sfumato.privacy.engines.results import Deferred, Examples, rows_of
from sfumato.privacy.engines.stored_gradients import at_least_float32
from sfumato.privacy.numerics.rescaling import rescaled

_SMALLEST = 1 << 16
"""Gradients of filters with fewer entries are materialised."""

_SMALLEST_MATRIX = 1 << 12
"""The same for weight matrices of linear layers, whose gradients are cheaper to defer."""

_MOST_POSITIONS = 8
"""The gradient of a matrix that more vectors of an example multiply in one use is materialised:
computing the sum in float64 costs more than storing it."""

_MOST_USES = 8
"""The vectors of all uses may need at most four times the memory of the matrix's gradients."""

_AT_ONCE = 1 << 22
"""Numbers in float64 at once, 32 MiB."""


@dataclass
class DeferredFilters:
    """Inputs and output gradients that determine a convolution's per-example filter gradients.

    Attributes:
        x: The inputs `(rows, in, H, W)`.
        d: The gradients of the outputs `(rows, out, H', W')`.
        weight: The filters, for their shape.
        at: The convolution's geometry, and the views.
    """

    x: Tensor
    d: Tensor
    weight: Tensor
    at: Geometry

    def tensor(self) -> Tensor:
        """The gradients `(examples, out, in, *kernel)`."""
        at = self.at
        return conv_weight_gradients(
            self.x, self.d, kernel=at.kernel, stride=at.stride, padding=at.padding,
            dilation=at.dilation, groups=1, views=at.views,
        )  # fmt: skip

    def squared_norms(self) -> Tensor:
        """Squared norms `(examples,)` from products of patches, rounded up.

        Guarantee: Never below the squared norms of what `weighted_sum` adds, in whose precision the
        terms of spatial positions may cancel less well.
        """
        length = self.at.views * self.d.shape[2] * self.d.shape[3]
        later = length * torch.finfo(at_least_float32(self.d).dtype).eps
        return definitions.ghost_norms(self.x, self.d, None, self.at, later=later)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """One product of the patches of the inputs and the rescaled output gradients, in float64.

        Guarantee: An example contributes its gradient times its weight, exactly nothing if its
        weight is zero. In float64 the order of examples does not matter.
        """
        used = weights.nonzero().flatten().tolist()
        if used and 2 * len(used) <= len(weights):
            return self.some(used).weighted_sum(weights[used])
        x, d = rescaled(self.x, self.d, weights, self.at.views)
        at, positions = self.at, d.shape[2] * d.shape[3]
        total = x.new_zeros(d.shape[1], self.weight[0].numel(), dtype=torch.float64)
        rows = max(1, _AT_ONCE // max(1, positions * total.shape[1]))
        for inputs, gradients in zip(torch.split(x, rows), torch.split(d, rows), strict=True):
            patches = F.unfold(inputs, at.kernel, at.dilation, at.padding, at.stride)
            by_place = patches.transpose(1, 2).reshape(-1, total.shape[1])
            total += gradients.transpose(0, 1).flatten(1).double() @ by_place.double()
        return total.view(self.weight.shape)

    def with_uses(self, others: Sequence[Deferred]) -> DeferredFilters:
        """These gradients: a convolution that is used again is not deferred."""
        if others:
            raise NotPerOperator("an operator is called otherwise than it was at first")
        return self

    def some(self, examples: Examples) -> DeferredFilters:
        """The gradients of some examples only."""
        x, d = (rows_of(t, examples, self.at.views) for t in (self.x, self.d))
        return DeferredFilters(x, d, self.weight, self.at)


@dataclass
class DeferredProduct:
    """Inputs and output gradients that determine the per-example gradients of a product's weight.

    Attributes:
        x: The inputs `(vectors, groups, in)`.
        d: The gradients of the products `(vectors, groups, out)`.
        views: Vectors per example, of all of its views, spatial positions and uses of the weight.
        shape: The shape of the weight.
        equation: The product.
    """

    x: Tensor
    d: Tensor
    views: int
    shape: tuple[int, ...]
    equation: Equation = LINEAR

    def with_uses(self, others: Sequence[Deferred]) -> DeferredProduct:
        """The sum of these gradients and those of other uses of the weight in such products."""
        if not others:
            return self
        uses = [self, *(use for use in others if isinstance(use, DeferredProduct))]
        alike = all(use.equation.arrangement == self.equation.arrangement for use in uses)
        if len(uses) <= len(others) or not alike:
            raise NotPerOperator("an operator is called otherwise than it was at first")
        x = torch.cat([use._views(use.x) for use in uses], 1)
        d = torch.cat([use._views(use.d) for use in uses], 1)
        return replace(self, x=x.flatten(0, 1), d=d.flatten(0, 1), views=x.shape[1])

    def _views(self, t: Tensor) -> Tensor:
        return t.reshape(-1, self.views, *t.shape[1:])

    def tensor(self) -> Tensor:
        """The gradients `(examples, *shape)`."""
        d, x = (self._views(at_least_float32(t)) for t in (self.d, self.x))
        return self.equation.gradients(d, x, self.shape)

    def squared_norms(self) -> Tensor:
        """Squared norms `(examples,)` from products of inputs and of gradients, rounded up."""
        if self.views == 1:
            norms: Tensor = torch.linalg.vector_norm(self.x, dim=2, dtype=torch.float64)
            norms = norms * torch.linalg.vector_norm(self.d, dim=2, dtype=torch.float64)
            return norms.square().sum(1)
        groups, inputs, outputs = *self.x.shape[1:], self.d.shape[2]
        stored = groups * (inputs * outputs + self.views * (self.views + inputs))
        step = max(1, _AT_ONCE // stored)
        xs, ds = (torch.split(self._views(t), step) for t in (self.x, self.d))
        parts = [self._norms(x.double(), d.double()) for x, d in zip(xs, ds, strict=True)]
        return torch.cat(parts).square()

    def _norms(self, x: Tensor, d: Tensor) -> Tensor:
        """Norms of some examples, rounded up."""
        inputs, outputs = x.shape[3], d.shape[3]
        if self.views * (inputs + outputs) > inputs * outputs:
            norms: Tensor = torch.linalg.vector_norm(matrix_gradients(d, x).flatten(1), dim=1)
        else:
            pairs = _pairs(x) * _pairs(d)
            norms = pairs.flatten(1).sum(1).clamp_min(0).sqrt()
        # Where views cancel, the sum taken later in the gradients' own precision may be larger.
        each = torch.linalg.vector_norm(x, dim=3) * torch.linalg.vector_norm(d, dim=3)
        most = torch.linalg.vector_norm(each, dim=2).sum(1)
        rounding = torch.finfo(torch.promote_types(self.d.dtype, torch.float32)).eps
        return norms.add(most, alpha=self.views * rounding)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """One product of the inputs and the rescaled gradients, in float64.

        Guarantee: An example contributes its gradient times its weight, exactly nothing if its
        weight is zero.
        """
        x, d = (t.double().unsqueeze(0) for t in rescaled(self.x, self.d, weights, self.views))
        return self.equation.gradients(d, x, self.shape)[0]

    def some(self, examples: Examples) -> DeferredProduct:
        """The gradients of some examples only."""
        x, d = (rows_of(t, examples, self.views) for t in (self.x, self.d))
        return replace(self, x=x, d=d)


def _pairs(t: Tensor) -> Tensor:
    """Products of all pairs of an example's vectors: `(examples, groups, vectors, vectors)`."""
    own = t.transpose(1, 2)
    return own @ own.transpose(2, 3)


def conv_pays(weight: Tensor, length: int) -> bool:
    """Tell whether deferring a convolution's gradients is cheaper than materialising them.

    Args:
        weight: The filters.
        length: Spatial positions of the output, of all views of an example.
    """
    few = length <= GHOST_LONGEST and 4 * length <= min(weight[0].numel(), weight.shape[0])
    return few and weight.numel() >= _SMALLEST


def product_pays(sizes: tuple[int, int, int], positions: int, uses: int = 1) -> bool:
    """Tell whether deferring a weight's gradients is cheaper than materialising them.

    Args:
        sizes: Groups, outputs and inputs of the product.
        positions: Vectors that one example multiplies with the weight.
        uses: Calls that these are spread over, each of which would be added to what is stored.
    """
    groups, outputs, inputs = sizes
    numbers = groups * outputs * inputs
    if positions > _MOST_POSITIONS * uses or numbers < _SMALLEST_MATRIX:
        return False
    return min(uses, _MOST_USES) * numbers >= 2 * positions * groups * (inputs + outputs)
