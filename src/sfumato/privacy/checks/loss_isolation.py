"""The check of a loss by itself: change one target or output, and compare the other examples."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from sfumato.errors import UserError
from sfumato.privacy.checks.isolation import LOOSE, look, without
from sfumato.privacy.checks.model_under_test import Draws, accepts, classes
from sfumato.privacy.checks.random_inputs import random_rows
from sfumato.privacy.engines.objective import Objective
from sfumato.privacy.numerics.distance import distance
from sfumato.privacy.numerics.model_state import Snapshot, seed

_SURE = 30.0
"""An output that makes one class certain."""

_TARGETS = (
    "look for targets of shape (n,) beside outputs of shape (n, 1), which targets.view_as(outputs) "
    "mends, and for class weights or means that are taken of the batch"
)
_OUTPUTS = "look for means, maxima or conditions that are taken of the whole batch"

Seen = tuple[Tensor, Tensor]
"""The loss of each row and its derivative by the outputs."""

_KEEPS = (
    "The loss keeps what it has seen in '{}', so that the loss of one example depends on others: "
    "use one that keeps nothing."
)


def refuse_mixing_loss(objective: Objective, draws: Draws, rows: int) -> None:
    """Change one row, in batches of 2, of 5 and of `rows`, and compare the losses of the others.

    Targets are of all classes, of one class, and half of them of a value that the loss treats as it
    does no other: missing, or at the end of what real ones are; outputs are the model's, and
    certain of one class.

    Raises:
        UserError: The loss of a row depends on another's target or output, or on what came before.
    """
    outputs = look(objective.model, draws.x(5), None).outputs
    special = [
        target
        for target in _special(draws.like_y, missing=classes(outputs, draws.like_y) is not None)
        if accepts(objective.loss, outputs[:1], target)
    ]
    for size in sorted({2, 5, max(2, rows)}):
        some = outputs[torch.arange(size, device=outputs.device) % 5]
        if some.is_floating_point():
            some = some + 0.1 * random_rows(some, size) * some.abs().mean()
        y = draws.y(size)
        _refuse(objective, some, y, targets=True)
        _refuse(objective, some, y[:1].expand_as(y).clone(), targets=True, other=y)
        _refuse(objective, some, y, targets=False)
        for value in special:
            mixed = y.clone()
            mixed[1::2] = value
            _refuse(objective, some, mixed, targets=True, other=torch.cat([value, y]))


def _special(like: Tensor, *, missing: bool) -> Iterator[Tensor]:
    """Single targets that a loss may treat as it does no other, in the shape of real ones.

    Args:
        like: Real targets.
        missing: Whether to try negative labels: losses of series read memory that is not theirs.
    """
    if like.dtype == torch.bool or like.is_complex() or not like.numel():
        return
    values: tuple[float, ...] = (0.0, 1.0, -1.0, float("nan"))
    if not like.is_floating_point():
        values = (-1, -100) if like.dtype.is_signed and missing else ()
    for value in values:
        yield torch.full_like(like[:1], value)
    known = like.nan_to_num(0.0) if like.is_floating_point() else like
    yield known.amin(0, keepdim=True)
    yield known.amax(0, keepdim=True)


def _refuse(
    objective: Objective, outputs: Tensor, y: Tensor, *, targets: bool, other: Tensor | None = None
) -> None:
    try:
        (before, kept), (again, _) = (_seen(objective, outputs, y) for _ in range(2))
    except UserError:
        raise
    except Exception:
        return  # The error is reported where the loss is used.
    if before[0].shape != y.shape[:1]:
        return
    exact = all(torch.equal(a, b) for a, b in zip(before, again, strict=True))
    changes = _other_targets(y, y if other is None else other) if targets else _sure(outputs)
    for j, changed in changes:
        try:
            after, also = _seen(objective, *((outputs, changed) if targets else (changed, y)))
        except UserError:
            raise
        except Exception:
            continue  # A loss may refuse outputs that a suitable model never returns.
        if name := kept.first_difference(also):
            raise UserError(_KEEPS.format(name))
        others = without(len(y), j).to(outputs.device)
        moved = max(distance(a[others], b[others]) for a, b in zip(before, after, strict=True))
        if moved > (0.0 if exact else LOOSE.get(outputs.dtype, 1e-2)):
            what, hint = ("target", _TARGETS) if targets else ("output", _OUTPUTS)
            raise UserError(
                f"The loss of one example moves with the {what} of another, so this cannot be "
                f"trained with differential privacy: {hint}."
            )


def _other_targets(y: Tensor, other: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Batches in which the first or the last example has another example's target."""
    for j in sorted({0, len(y) - 1}):
        found = next((row for row in other if not _same(row, y[j])), None)
        if found is not None:
            changed = y.clone()
            changed[j] = found
            yield j, changed


def _same(a: Tensor, b: Tensor) -> bool:
    """Tell whether two targets are equal, NaN to NaN."""
    return bool(((a == b) | (a != a) & (b != b)).all())


def _sure(outputs: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Outputs in which the first or the last row is certain of the first or of the last class."""
    if not outputs.is_floating_point():
        return
    for j in sorted({0, len(outputs) - 1}):
        for place in (0, -1):
            changed = outputs.clone()
            changed[j] = 0
            changed[j].view(-1)[place] = _SURE
            yield j, changed


def _seen(objective: Objective, outputs: Tensor, targets: Tensor) -> tuple[Seen, Snapshot]:
    """Run the loss from a fixed random state; return its results and its state, then restore it."""
    state = Snapshot(objective.loss)
    leaf = outputs.detach().clone().requires_grad_(outputs.is_floating_point())
    seed(objective.model)
    try:
        with torch.enable_grad():
            own = objective.loss(leaf, targets)
            (slope,) = torch.autograd.grad(own.sum(), [leaf], allow_unused=True)
        after = Snapshot(objective.loss)
    finally:
        state.restore()
    return (own.detach(), torch.zeros_like(leaf) if slope is None else slope), after
