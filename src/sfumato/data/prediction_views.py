"""Test-time views of an image, over which a prediction is averaged.

Averaging uses released weights and the image itself alone, so it costs no privacy.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CHOICES = ("none", "flip", "shifts", "all")
_DIRECTIONS = ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0))
_SIXTEENTH = 16


def views(x: Tensor, kind: str) -> Iterator[Tensor]:
    """Views of a batch of images `(n, channels, height, width)`.

    Args:
        x: The images.
        kind: `none` for the images as they are, `flip` for these and their mirror images, `shifts`
            for five positions a sixteenth of the image apart (one, where that is less than a
            pixel), `all` for both.
    """
    if kind not in CHOICES:
        raise ValueError(f"{kind!r} is none of {', '.join(CHOICES)}")
    for turned in (x, x.flip(3)) if kind in ("flip", "all") else (x,):
        yield from _shifted(turned) if kind in ("shifts", "all") else (turned,)


def _shifted(x: Tensor) -> Iterator[Tensor]:
    height, width = map(int, x.shape[2:])  # Plain numbers, where the program is traced too.
    by = round(min(height, width) / _SIXTEENTH)
    if not by:
        yield x
        return
    wider = F.pad(x, (by, by, by, by), mode="replicate")
    for down, right in _DIRECTIONS:
        top, left = by * (1 + down), by * (1 + right)
        yield wider[:, :, top : top + height, left : left + width]


def averaged(network: nn.Module, x: Tensor, kind: str) -> Tensor:
    """The network's outputs, averaged over views of each image."""
    outputs = [network(view) for view in views(x, kind)]
    return outputs[0] if len(outputs) == 1 else torch.stack(outputs).mean(0)
