"""Book-keeping on the CPU: a layer's inputs and output gradients instead of its gradients.

Where an output has few spatial positions and filters are large, the norm of an example's filter
gradient is cheap to compute from products of patches (Li et al., 2021), and the weighted sum is one
product of patches and rescaled output gradients (Bu et al., 2022). Per-example gradients are then
never materialised. A linear layer on vectors has one position, and its weight matrix is nearly
always larger than the two vectors together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.kernels import definitions
from sfumato.kernels.definitions import GHOST_LONGEST, Geometry
from sfumato.privacy.engines.autograd_functions import matrix_gradients
from sfumato.privacy.engines.convolution_gradients import conv_weight_gradients
from sfumato.privacy.engines.results import Examples, rows_of
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

    def some(self, examples: Examples) -> DeferredFilters:
        """The gradients of some examples only."""
        x, d = (rows_of(t, examples, self.at.views) for t in (self.x, self.d))
        return DeferredFilters(x, d, self.weight, self.at)


@dataclass
class DeferredMatrix:
    """Inputs and output gradients that determine the per-example gradients of a linear layer.

    Attributes:
        x: The inputs `(rows, in)`.
        d: The gradients of the outputs `(rows, out)`.
        views: Rows per example, of all of its views, spatial positions and uses of the layer.
    """

    x: Tensor
    d: Tensor
    views: int

    @classmethod
    def of_uses(cls, uses: Sequence[DeferredMatrix]) -> DeferredMatrix:
        """The gradients of a matrix that is used once or several times."""
        if len(uses) == 1:
            return uses[0]
        x = torch.cat([use._views(use.x) for use in uses], 1)
        d = torch.cat([use._views(use.d) for use in uses], 1)
        return cls(x.flatten(0, 1), d.flatten(0, 1), x.shape[1])

    def _views(self, t: Tensor) -> Tensor:
        return t.reshape(-1, self.views, t.shape[1])

    def tensor(self) -> Tensor:
        """The gradients `(examples, out, in)`."""
        d, x = (self._views(at_least_float32(t)) for t in (self.d, self.x))
        return matrix_gradients(d, x)

    def squared_norms(self) -> Tensor:
        """Squared norms `(examples,)` from products of inputs and of gradients, rounded up."""
        if self.views == 1:
            norms: Tensor = torch.linalg.vector_norm(self.x, dim=1, dtype=torch.float64)
            norms = norms * torch.linalg.vector_norm(self.d, dim=1, dtype=torch.float64)
            return norms.square()
        stored = self.x.shape[1] * self.d.shape[1] + self.views * (self.views + self.x.shape[1])
        step = max(1, _AT_ONCE // stored)
        xs, ds = (torch.split(self._views(t), step) for t in (self.x, self.d))
        parts = [self._norms(x.double(), d.double()) for x, d in zip(xs, ds, strict=True)]
        return torch.cat(parts).square()

    def _norms(self, x: Tensor, d: Tensor) -> Tensor:
        """Norms of some examples, rounded up."""
        inputs, outputs = x.shape[2], d.shape[2]
        if self.views * (inputs + outputs) > inputs * outputs:
            norms: Tensor = torch.linalg.vector_norm(matrix_gradients(d, x), dim=(1, 2))
        else:
            pairs = torch.bmm(x, x.transpose(1, 2)) * torch.bmm(d, d.transpose(1, 2))
            norms = pairs.sum((1, 2)).clamp_min(0).sqrt()
        # Where views cancel, the sum taken later in the gradients' own precision may be larger.
        most = (torch.linalg.vector_norm(x, dim=2) * torch.linalg.vector_norm(d, dim=2)).sum(1)
        rounding = torch.finfo(torch.promote_types(self.d.dtype, torch.float32)).eps
        return norms.add(most, alpha=self.views * rounding)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """One product of the inputs and the rescaled gradients, in float64.

        Guarantee: An example contributes its gradient times its weight, exactly nothing if its
        weight is zero.
        """
        x, d = rescaled(self.x, self.d, weights, self.views)
        return d.transpose(0, 1).double() @ x.double()

    def some(self, examples: Examples) -> DeferredMatrix:
        """The gradients of some examples only."""
        x, d = (rows_of(t, examples, self.views) for t in (self.x, self.d))
        return DeferredMatrix(x, d, self.views)


def conv_pays(weight: Tensor, length: int) -> bool:
    """Tell whether deferring a convolution's gradients is cheaper than materialising them.

    Args:
        weight: The filters.
        length: Spatial positions of the output, of all views of an example.
    """
    few = length <= GHOST_LONGEST and 4 * length <= min(weight[0].numel(), weight.shape[0])
    return few and weight.numel() >= _SMALLEST


def matrix_pays(weight: Tensor, positions: int, uses: int = 1) -> bool:
    """Tell whether deferring a matrix's gradients is cheaper than materialising them.

    Args:
        weight: The matrix.
        positions: Vectors that one example multiplies with it.
        uses: Calls that these are spread over, each of which would be added to what is stored.
    """
    outputs, inputs = weight.shape
    if positions > _MOST_POSITIONS * uses or inputs * outputs < _SMALLEST_MATRIX:
        return False
    return min(uses, _MOST_USES) * inputs * outputs >= 2 * positions * (inputs + outputs)
