"""Copies from the CPU to a device."""

from __future__ import annotations

import pytest
import torch

from sfumato.device_copy import to_device


@pytest.mark.parametrize("values", [torch.arange(5), torch.zeros(0), torch.tensor([True, False])])
def test_a_copy_has_the_same_values(values: torch.Tensor) -> None:
    for device in ("cpu", *(["cuda"] if torch.cuda.is_available() else [])):
        found = to_device(values, device)
        assert found.device.type == device and torch.equal(found.cpu(), values)
