"""Book-keeping on the CPU: a convolution's inputs and output gradients instead of its gradients.

Where an output has few positions and filters are large, the norm of an example's filter gradient is
cheap to get from products of patches (Li et al., 2021), and the weighted sum is one ordinary
backward pass of the convolution on rescaled output gradients (Bu et al., 2022). The gradients of
single examples are then never written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sfumato.kernels import definitions
from sfumato.kernels.definitions import GHOST_LONGEST, Geometry
from sfumato.privacy.filters import conv_weight_gradients
from sfumato.privacy.paths import kind_of
from sfumato.privacy.planning import geometry_of, outputs_of
from sfumato.privacy.state import undisturbed

_SMALLEST = 1 << 16
"""Filters with fewer entries are as well written out."""


@dataclass
class DeferredFilters:
    """What a convolution's per-example filter gradients follow from.

    Attributes:
        x: The inputs `(rows, in, H, W)`.
        d: The gradients of the outputs `(rows, out, H', W')`.
        weight: The filters, for their shape.
        at: How the convolution walks, and the views.
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
        """Squared norms `(examples,)` from products of patches, rounded up."""
        rounding = definitions.ROUNDING_CPU
        return definitions.ghost_norms(self.x, self.d, None, self.at, rounding=rounding)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """The backward pass of the convolution on rescaled output gradients.

        Guarantee: Rescaling and sums are in float32 at least, so what an example adds is its
        gradient times its weight; one of weight zero adds exactly nothing.
        """
        rows = weights.repeat_interleave(self.at.views).view(-1, 1, 1, 1).to(self.d.dtype)
        d, x = self.d * rows, self.x
        dropped = rows == 0
        if bool(dropped.any()):
            d, x = (torch.where(dropped, 0.0, t) for t in (d, x))
        at = self.at
        total: Tensor = torch.ops.aten.convolution_backward(
            d, x, self.weight, None, at.stride, at.padding, at.dilation, False, (0, 0), 1,
            [False, True, False],
        )[1]  # fmt: skip
        return total


def pays(layer: nn.Conv2d, output: torch.Size, views: int) -> bool:
    """Whether deferring a convolution's gradients is cheaper than writing them.

    Args:
        layer: The convolution.
        output: The shape that it returns for one row.
        views: Rows per example.
    """
    length = views * output[2] * output[3]
    few = length <= GHOST_LONGEST and 4 * length <= min(layer.weight[0].numel(), layer.out_channels)
    return few and layer.weight.numel() >= _SMALLEST


def deferrable(
    model: nn.Module, ways: Sequence[tuple[str, nn.Module, str]], x: Tensor, views: int
) -> dict[nn.Module, tuple[Geometry, torch.Size]]:
    """The convolutions whose gradients are to be deferred, and what they return for one row.

    Args:
        model: The model.
        ways: Its modules with their names and ways, as `privacy.paths.assign` gives them.
        x: Inputs like those to come.
        views: Rows per example.
    """
    plain = [m for _, m, way in ways if way == "rule" and kind_of(m) is nn.Conv2d]
    if not plain:
        return {}
    owners = Counter(id(p) for m in model.modules() for p in m._parameters.values())
    with undisturbed(model):
        calls = outputs_of(model, x[:1])
    found: dict[nn.Module, tuple[Geometry, torch.Size]] = {}
    for module in plain:
        assert isinstance(module, nn.Conv2d)
        shapes = calls.get(module, [])
        if len(shapes) == 1 and owners[id(module.weight)] == 1 and module.weight.requires_grad:
            at = geometry_of(module, views)
            if at is not None and pays(module, shapes[0], views):
                found[module] = at, shapes[0]
    return found
