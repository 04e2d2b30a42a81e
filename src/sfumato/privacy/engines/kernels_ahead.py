"""The kernels of norms and sums of a compiled pass, compiled while its backward pass is.

They run after the backward pass, and no trace tells their shapes before.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sfumato.kernels.custom_operators import ahead
from sfumato.privacy.engines.stored_gradients import Filters, Slot, Together


def compile_ahead(
    slots: Sequence[Slot], together: Together, inputs: dict[int, Tensor], examples: int
) -> None:
    """Start compiling the kernels of all slots, without waiting for them.

    Args:
        slots: The slots of the pass.
        together: The small tensors among them.
        inputs: The inputs that slots need, by the identity of the slot.
        examples: The physical batch size.
    """
    weights = torch.empty(examples, device="meta")
    for slot in slots:
        if isinstance(slot, Filters):
            _filters(slot, inputs.get(id(slot)), weights)
    if together.slots:
        small = together.slots[0].value
        rows = torch.empty(examples, together.numbers, dtype=small.dtype, device="meta")
        ahead("segment_norms", small.device, rows, together.starts)
        ahead("row_sum", small.device, rows, weights)


def _filters(slot: Filters, x: Tensor | None, weights: Tensor) -> None:
    device, at = slot.value.device, slot.geometry
    if slot.gradient is not None:
        ahead("row_sum", device, slot.gradient, weights)
    elif x is not None and slot.output is not None:
        images = slot.images(x), slot.images(slot.output)
        ahead("weighted_sum", device, *images, weights, at.numbers, at.views)
    if slot.centred is not None and slot.factors is not None:
        ahead("filter_pullback", device, slot.centred, slot.centred, slot.factors)
        if slot.statistics is not None:
            rounding = torch.finfo(slot.value.dtype).eps / 2
            entries = slot.centred[0].numel()
            ahead("filter_norms", device, slot.statistics, slot.factors, entries, rounding)
