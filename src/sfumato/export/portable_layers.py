"""Layers in place of those that exported programs cannot hold, with the same outputs.

ONNX has no adaptive pooling and hardly any complex numbers, and a program may not depend on how
many images it is given, as a transform in parts of 16 images does.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.nn.real_scattering import RealScattering
from sfumato.nn.scattering import Scattering


class RegionPool(nn.Module):
    """Adaptive pooling by equal windows, or as a reduction of slices, for images of one size.

    Args:
        output: Height and width of the result, or one number for both; None leaves a side as it is.
        maximum: Whether to take the largest value of each region, or the mean.
    """

    def __init__(self, output: Any, *, maximum: bool) -> None:
        super().__init__()
        sides = (output, output) if isinstance(output, int) else tuple(output)
        self.output: tuple[int | None, ...] = sides
        self.maximum = maximum

    def forward(self, x: Tensor) -> Tensor:
        """The pooled images."""
        sides = [int(side) for side in x.shape[-2:]]
        output = [wanted or side for wanted, side in zip(self.output, sides, strict=True)]
        if not any(side % wanted for side, wanted in zip(sides, output, strict=True)):
            kernel = [side // wanted for side, wanted in zip(sides, output, strict=True)]
            return F.max_pool2d(x, kernel) if self.maximum else F.avg_pool2d(x, kernel)
        for axis, wanted in zip((-2, -1), output, strict=True):
            x = self._pooled(x, axis, wanted)
        return x

    def _pooled(self, x: Tensor, axis: int, wanted: int) -> Tensor:
        # The regions of one axis do not depend on the other, and all of one region have the same
        # number of values, so that the mean of means is the mean.
        side = int(x.shape[axis])
        regions = []
        for k in range(wanted):
            first, end = k * side // wanted, -(-(k + 1) * side // wanted)
            region = x.narrow(axis, first, end - first)
            regions.append(
                region.amax(axis, keepdim=True) if self.maximum else region.mean(axis, keepdim=True)
            )
        return torch.cat(regions, axis)


def portable(network: nn.Module) -> nn.Module:
    """A copy of a network, on the CPU and without gradients, whose layers can be exported."""
    found = copy.deepcopy(network).cpu().eval().requires_grad_(False)
    for parent in list(found.modules()):
        for name, layer in parent.named_children():
            if (other := _substitute(layer)) is not None:
                setattr(parent, name, other)
    return found


def _substitute(layer: nn.Module) -> nn.Module | None:
    if type(layer) is Scattering:
        return RealScattering.of(layer)
    if isinstance(layer, nn.AdaptiveMaxPool2d) and not layer.return_indices:
        return RegionPool(layer.output_size, maximum=True)
    if isinstance(layer, nn.AdaptiveAvgPool2d):
        return RegionPool(layer.output_size, maximum=False)
    return None
