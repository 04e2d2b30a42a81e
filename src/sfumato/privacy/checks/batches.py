"""Batches that gradients cannot be taken of, refused with a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from sfumato.errors import UserError
from sfumato.memory import out_of_memory
from sfumato.privacy.engines.objective import Objective, cross_entropy
from sfumato.privacy.engines.unit_loss import of_images
from sfumato.privacy.numerics.model_state import undisturbed

_IGNORED = -100
"""Target that stands for no class in cross-entropy."""

_REENTRANT = (
    "The model calls torch.utils.checkpoint with use_reentrant=True, which works with "
    ".backward() alone: give it use_reentrant=False."
)


def check_inputs(x: object, y: object, views: int) -> None:
    """Raise a `UserError` for inputs that gradients cannot be taken of."""
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        kinds = f"{type(x).__name__} and {type(y).__name__}"
        raise UserError(f"Inputs and targets must be tensors, not {kinds}.")
    if torch.is_inference_mode_enabled() or x.is_inference() or y.is_inference():
        raise UserError(
            "Gradients cannot be taken in torch.inference_mode, nor of tensors made in it."
        )
    if not x.dim() or not y.dim():
        raise UserError("Inputs and targets must have one row or more for each example.")
    if x.shape[0] != y.shape[0] * views:
        raise UserError(
            f"{y.shape[0]} targets with {views} views each need {y.shape[0] * views} rows, not "
            f"{x.shape[0]}: give one target for each example, and all rows of its inputs."
        )


def check_device(x: Tensor, y: Tensor, parameters: dict[str, nn.Parameter]) -> None:
    """Refuse a batch that is not where the model is."""
    places = {p.device for p in parameters.values()}
    there = next(iter(places)) if len(places) == 1 else x.device
    if {x.device, y.device} != {there}:
        raise UserError(
            f"The model is on {there}, the inputs on {x.device} and the targets on {y.device}: "
            f"move them to one device, as in x.to('{there}')."
        )


@contextmanager
def explained(objective: Objective, x: Tensor, y: Tensor) -> Iterator[None]:
    """Turn PyTorch's errors about the types of a batch and its labels into sentences.

    On a GPU a label out of range ends the process's CUDA context, and no sentence comes.

    Raises:
        UserError: If the batch explains the error; otherwise the error itself.
    """
    try:
        yield
    except (IndexError, RuntimeError, ValueError) as error:
        if out_of_memory(error):
            raise
        words = _of_inputs(objective, x, str(error)) or _of_labels(objective, x, y)
        words = words or (_REENTRANT if "use_reentrant" in str(error) else "")
        if not words:
            raise
        raise UserError(words) from error


def _of_inputs(objective: Objective, x: Tensor, error: str) -> str:
    """A sentence on inputs of another type than the weights, if that is the error."""
    types = {p.dtype for p in objective.model.parameters() if p.is_floating_point()}
    if x.dtype in types or not types or "type" not in error or "target" in error:
        return ""
    weights = str(next(iter(types))).removeprefix("torch.")
    given = str(x.dtype).removeprefix("torch.")
    advice = f"x.to(torch.{weights})" if x.is_floating_point() else "x.float() / 255 for images"
    return f"The inputs are {given}, but the weights {weights}: convert them, as in {advice}."


def _of_labels(objective: Objective, x: Tensor, y: Tensor) -> str:
    """A sentence on labels that cross-entropy does not take; empty for other losses."""
    loss, y = of_images(objective.loss, y)
    if loss is not cross_entropy or not y.numel():
        return ""
    kind = str(y.dtype).removeprefix("torch.")
    whole = "one whole number per example, from 0 to the number of classes minus one"
    if y.dim() != 1 and not y.is_floating_point():
        return (
            f"The labels have shape {tuple(y.shape)}: cross-entropy takes {whole}, as y.flatten() "
            "or, where each class has a column, y.argmax(1)."
        )
    if y.dim() == 1 and y.dtype not in (torch.int64, torch.uint8):
        return f"The labels are {kind}: cross-entropy takes {whole}, as y.long()."
    if y.is_floating_point():
        return ""
    classes, known = _classes(objective.model, x), y.long().flatten()
    if classes is None:
        return ""
    wrong = known[((known < 0) | (known >= classes)) & (known != _IGNORED)]
    if not len(wrong):
        return ""
    return (
        f"There is a label {int(wrong[0])}, but the model has {classes} outputs: number the "
        f"classes from 0 to {classes - 1}, or give the model more outputs."
    )


def _classes(model: nn.Module, x: Tensor) -> int | None:
    """The number of a model's outputs, if it can be told."""
    try:
        with undisturbed(model), torch.no_grad():
            outputs = model(x[:1])
    except Exception:  # The model itself may be what fails.
        return None
    is_row = isinstance(outputs, Tensor) and outputs.dim() == 2
    return int(outputs.shape[1]) if is_row else None
