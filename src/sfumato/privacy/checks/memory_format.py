"""The check of the memory format: channels_last, unless it changes a model's gradients.

A memory format must not change them, but kernels have had faults: in PyTorch 2.11 average pooling
with padding on CUDA gives wrong gradients in `channels_last` (pytorch#188344), for one example and
in a batch alike, so that no comparison of examples can find it.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor, nn

from sfumato.privacy.checks.model_under_test import without_zeros
from sfumato.privacy.checks.random_inputs import random_rows
from sfumato.privacy.numerics.distance import distance
from sfumato.privacy.numerics.model_state import Still, copied, undisturbed
from sfumato.privacy.numerics.precision import any_algorithm, full_precision, widest

_SUSPICIOUS = 1e-2
"""A difference that rounding seldom makes. A larger one is measured again, with random numbers held
constant, beside the error that rounding makes in the contiguous memory format."""

_ROUNDING = 4
"""Errors that are this many times those of the contiguous memory format are more than rounding."""


def difference(model: nn.Module, like: Tensor) -> float:
    """Difference of a model's gradients between channels_last and the contiguous memory format.

    Runs on random images and copies of the model.

    Args:
        model: The model, on its device; it is left as it was.
        like: Images whose shape and type to use; their values are not.

    Returns:
        The largest difference, relative to the largest number of its gradient; 0 if it is no more
        than rounding, or if the model does not run in channels_last.
    """
    usual, last = torch.contiguous_format, torch.channels_last
    with undisturbed(model), full_precision(like.device), any_algorithm():
        try:
            both = [_gradients(model, like, order, False) for order in (usual, last)]
            found = _apart(*both)
            if found <= _SUSPICIOUS:
                return 0.0
            both = [_gradients(model, like, order, True) for order in (usual, last)]
        except Exception:  # Other checks report a model that does not run at all.
            return 0.0
        try:
            # A kernel may be wrong in one precision alone, so only the reference is wider.
            exact = _gradients(model, like.to(widest(like.device)), usual, True)
        except Exception:  # The model runs in its own precision only.
            return found
    rounding, found = (_apart(exact, own) for own in both)
    return found if found > max(_SUSPICIOUS, _ROUNDING * rounding) else 0.0


def _apart(first: list[Tensor], second: list[Tensor]) -> float:
    """The largest difference of gradients, relative to the largest number of the first."""
    pairs = zip(first, second, strict=True)
    return max((distance(a, b.to(a.dtype)) for a, b in pairs), default=0.0)


def fault(model: nn.Module, like: Tensor) -> str:
    """A sentence about a model whose gradients differ in channels_last, or an empty string."""
    if not (found := difference(model, like)):
        return ""
    return (
        "In channels_last, the fast memory format, the gradients of this model differ by up to "
        f"{found:.0%}: one of its layers is wrong there, or PyTorch {torch.__version__} is."
    )


def _gradients(
    model: nn.Module, like: Tensor, order: torch.memory_format, still: bool
) -> list[Tensor]:
    """The gradients of a random sum of outputs, for all parameters and for the images."""
    model = copied(model).to(dtype=like.dtype).eval()
    model.to(memory_format=order)  # type: ignore[call-overload]
    images = random_rows(like, 2).contiguous(memory_format=order).requires_grad_()
    with without_zeros(model), torch.enable_grad():
        with Still() if still else nullcontext():  # type: ignore[no-untyped-call]
            outputs = model(images)
        weights = random_rows(outputs.detach(), len(outputs), seed=1)
        wanted = [images, *(p for p in model.parameters() if p.requires_grad)]
        found = torch.autograd.grad((outputs * weights).sum(), wanted, allow_unused=True)
    return [grad for grad in found if grad is not None]
