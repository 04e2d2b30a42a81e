"""Copies from the CPU to a device."""

from __future__ import annotations

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: str | torch.device) -> Tensor:
    """Copy a tensor to a device without waiting for work that the device has been given before.

    A copy from ordinary memory to a GPU would keep the host until the GPU is idle, which then has
    nothing to do while the host prepares what comes next.
    """
    if torch.device(device).type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
