"""Random images with labels, and a small network for them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sfumato import models


def images(
    n: int = 9, channels: int = 1, size: int = 16, classes: int = 3
) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, channels, size, size, generator=g)
    return x, torch.randint(0, classes, (n,), generator=g)


def scaled(**options: object) -> nn.Module:
    torch.manual_seed(1)
    return models.create(
        "scale-resnet9", classes=3, channels=1, size=16, layout=(4, 8, 8), groups=2, **options
    )
