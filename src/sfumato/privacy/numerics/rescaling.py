"""Inputs and rescaled output gradients of a layer, safe to multiply in float32.

Deferred per-example gradients (`engines.book_keeping`, `engines.stored_gradients`) compute a
weighted sum as one product of the layer's inputs and its output gradients, each times its example's
weight. The norm of an example may be small while its factors are not: a huge input beside a
rescaled gradient too small for float32, or the reverse.
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = 1e15
"""Examples with a larger input, or a larger rescaled output gradient, add nothing. Below it, a
product is at most 1e30 and a sum of 10^8 of them is finite; and a rescaled gradient below float32's
smallest normal number, 1e-38, which is rounded to few bits, belongs to a product below 1e-23."""


def rescaled(x: Tensor, d: Tensor, weights: Tensor, views: int) -> tuple[Tensor, Tensor]:
    """Inputs, and output gradients times the weight of their example, both in float32 at least.

    Args:
        x: Inputs `(rows, ...)`.
        d: Output gradients `(rows, ...)`.
        weights: `(examples,)`.
        views: Rows per example.

    Guarantee: An example of weight zero, or one whose numbers are out of range or not finite, is
    zero in both, so it adds exactly nothing. This depends on the example alone.
    """
    x, d = (t.to(torch.promote_types(t.dtype, torch.float32)) for t in (x, d))
    d = d * _rows(weights, views, d).to(d.dtype)
    lost = ~((weights != 0) & _within(x, views) & _within(d, views))
    x, d = (torch.where(_rows(lost, views, t), 0.0, t) for t in (x, d))
    return x, d


def _rows(each: Tensor, views: int, like: Tensor) -> Tensor:
    """One value per example, for every row, in a shape that broadcasts."""
    return each.repeat_interleave(views).view(like.shape[0], *(1,) * (like.dim() - 1))


def _within(t: Tensor, views: int) -> Tensor:
    """The examples `(examples,)` all of whose numbers are finite and in range."""
    flat = t.flatten(1)
    if t.is_complex() or not flat.shape[1]:
        rows = (flat.abs() <= LARGEST).all(1)
    else:
        # The largest number is NaN where one is, and a comparison with NaN is false.
        rows = (flat.amax(1) <= LARGEST) & (flat.amin(1) >= -LARGEST)
    return rows.view(t.shape[0] // views, views).all(1)
