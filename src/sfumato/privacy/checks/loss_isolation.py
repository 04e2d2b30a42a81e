"""The check of a loss by itself: change one target or output, and compare the other examples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from sfumato.errors import UserError
from sfumato.memory import out_of_memory
from sfumato.privacy.checks.accepted_targets import accepts, in_double, with_tensors
from sfumato.privacy.checks.isolation import LOOSE, SUMS, look, without
from sfumato.privacy.checks.model_under_test import Draws
from sfumato.privacy.checks.random_inputs import random_rows
from sfumato.privacy.engines.objective import Objective
from sfumato.privacy.numerics.distance import distance
from sfumato.privacy.numerics.model_state import Snapshot, seed
from sfumato.privacy.numerics.precision import widened

_SURE = 30.0
"""An output that makes one class certain."""

_TARGETS = (
    "look for targets of shape (n,) beside outputs of shape (n, 1), which targets.view_as(outputs) "
    "mends, and for class weights or means that are taken of the batch"
)
_OUTPUTS = "look for means, maxima or conditions that are taken of the whole batch"

Seen = tuple[Tensor, Tensor]
"""The loss of each row and its derivative by the outputs."""

_Change = tuple[Tensor, Tensor]
"""A mask of rows that are left as they are, and the changed batch of targets or outputs."""

_KEEPS = (
    "The loss keeps what it has seen in '{}', so that the loss of one example depends on others: "
    "use one that keeps nothing."
)


def refuse_mixing_loss(objective: Objective, draws: Draws, rows: int) -> None:
    """Change one row, in batches of 2, of 5 and of `rows`, and compare the losses of the others.

    Targets are of all classes, of one class, and half of them of a value that the loss treats as it
    does no other: missing, or at the end of what real ones are; outputs are the model's, and
    certain of one class. Where units have several images, rows are these, whichever their units.

    Raises:
        UserError: The loss of a row depends on another's target or output, or on what came before.
    """
    outputs = look(objective.model, draws.x(5), None).outputs
    loss, normal = draws.loss, draws.targets(1)
    objective = replace(objective, loss=loss)
    special = [
        target
        for target in _special(draws)
        if accepts(loss, outputs[:2], torch.cat([normal, target]), of=1)
    ]
    for size in sorted({2, 5, max(2, rows)}):
        y, some = draws.targets(size), outputs[torch.arange(size, device=outputs.device) % 5]
        if some.is_floating_point():
            varied = some + 0.1 * random_rows(some, size) * some.abs().mean()
            some = varied if accepts(loss, varied, y) else some
        alike = y[:1].expand_as(y).clone()
        _refuse(objective, some, y, _other_targets(y, y), targets=True)
        _refuse(objective, some, alike, _other_targets(alike, y), targets=True)
        _refuse(objective, some, y, _sure(some), targets=False)
        for value in special:
            mixed = y.clone()
            mixed[1::2] = value
            other = torch.cat([value, y])
            _refuse(objective, some, mixed, _other_targets(mixed, other), targets=True)
    every = torch.cat([normal, *special, *_labels(draws)])
    some = outputs[torch.arange(len(every), device=outputs.device) % 5]
    first = without(len(every), 0).logical_not()
    _refuse(objective, some, normal.expand_as(every).clone(), [(first, every)], targets=True)


_MOST_LABELS = 1000
"""The most labels to try: of more, an evenly spread part is tried."""

_RARE_LABELS = (-1, -2, -100, 255)
"""Whole numbers that stand for no label."""

_RARE_NUMBERS = (0.0, 1.0, -1.0, 5.0, -5.0, 1e3, -1e3, 1e6, float("nan"))
"""The ends of usual ranges, and numbers beyond those that a loss may treat as errors."""


def _special(draws: Draws) -> Iterator[Tensor]:
    """Single targets that a loss may treat as it does no other, in the shape of real ones."""
    like = draws.like_y
    if like.is_complex() or not like.numel():
        return
    values: list[float] = [0, 1]
    if like.is_floating_point():
        values = [*_RARE_NUMBERS]
    elif like.dtype != torch.bool:
        ends = torch.iinfo(like.dtype)
        values = [n for n in _RARE_LABELS if ends.min <= n <= ends.max]
    if not draws.ctc:
        yield from (torch.full_like(like[:1], value) for value in values)
    if like.dtype != torch.bool:
        known = like.nan_to_num(0.0) if like.is_floating_point() else like
        yield known.amin(0, keepdim=True)
        yield known.amax(0, keepdim=True)


def _labels(draws: Draws) -> Iterator[Tensor]:
    """The labels that targets are drawn from, as single targets."""
    labels, like = draws.labels or range(0), draws.like_y
    if not (like.is_floating_point() or like.is_complex() or like.dtype == torch.bool):
        for label in labels[:: max(1, -(-len(labels) // _MOST_LABELS))]:
            yield torch.full_like(like[:1], label)


def _refuse(
    objective: Objective,
    outputs: Tensor,
    y: Tensor,
    changes: Iterable[_Change],
    *,
    targets: bool,
) -> None:
    """Refuse a loss of which others move where some targets, or some outputs, are changed."""
    try:
        (before, kept), (again, _) = (_seen(objective, outputs, y) for _ in range(2))
    except UserError:
        raise
    except Exception:
        return  # The error is reported where the loss is used.
    if before[0].shape != y.shape[:1]:
        return
    exact = all(torch.equal(a, b) for a, b in zip(before, again, strict=True))
    for others, changed in changes:
        try:
            after, also = _seen(objective, *((outputs, changed) if targets else (changed, y)))
        except UserError:
            raise
        except Exception:
            continue  # A loss may refuse outputs that a suitable model never returns.
        if name := kept.first_difference(also):
            raise UserError(_KEEPS.format(name))
        others = others.to(outputs.device)
        moved = max(distance(a[others], b[others]) for a, b in zip(before, after, strict=True))
        rounds = moved <= LOOSE.get(outputs.dtype, 0.0)
        given = ((outputs, y), (outputs, changed) if targets else (changed, y))
        if rounds and moved > 0 and _vanishes_in_double(objective, given, others):
            continue
        if moved > (0.0 if exact else LOOSE.get(outputs.dtype, 1e-2)):
            what, hint = ("target", _TARGETS) if targets else ("output", _OUTPUTS)
            raise UserError(
                f"The loss of one example moves with the {what} of another, so this cannot be "
                f"trained with differential privacy: {hint}."
            )


def _vanishes_in_double(
    objective: Objective, given: Sequence[tuple[Tensor, Tensor]], others: Tensor
) -> bool:
    """Tell whether others move by rounding alone, as where another number of rows is multiplied."""
    try:
        twin = replace(objective, loss=with_tensors(objective.loss, in_double))
        before, after = (_seen(twin, widened(o), widened(y))[0] for o, y in given)
    except Exception as error:
        if out_of_memory(error):
            raise
        return False  # The loss does not run in float64.
    pairs = zip(before, after, strict=True)
    return max(distance(a[others], b[others]) for a, b in pairs) <= SUMS


def _other_targets(y: Tensor, other: Tensor) -> Iterator[_Change]:
    """Batches in which the first or the last example has another example's target."""
    for j in sorted({0, len(y) - 1}):
        found = next((row for row in other if not _same(row, y[j])), None)
        if found is not None:
            changed = y.clone()
            changed[j] = found
            yield without(len(y), j), changed


def _same(a: Tensor, b: Tensor) -> bool:
    """Tell whether two targets are equal, NaN to NaN."""
    return bool(((a == b) | (a != a) & (b != b)).all())


def _sure(outputs: Tensor) -> Iterator[_Change]:
    """Outputs in which the first or the last row is certain of the first or of the last class."""
    if not outputs.is_floating_point():
        return
    for j in sorted({0, len(outputs) - 1}):
        for place in (0, -1):
            changed = outputs.clone()
            changed[j] = 0
            changed[j].view(-1)[place] = _SURE
            yield without(len(outputs), j), changed


def _seen(objective: Objective, outputs: Tensor, targets: Tensor) -> tuple[Seen, Snapshot]:
    """Run the loss from a fixed random state; return its results and its state, then restore it."""
    state = Snapshot(objective.loss)
    leaf = outputs.detach().clone().requires_grad_(outputs.is_floating_point())
    seed(objective.model)
    try:
        with torch.enable_grad():
            # A loss may change outputs, which autograd forbids on a leaf, and targets in place.
            own = objective.loss(leaf * 1 if leaf.requires_grad else leaf, targets.clone())
            (slope,) = torch.autograd.grad(own.sum(), [leaf], allow_unused=True)
        after = Snapshot(objective.loss)
    finally:
        state.restore()
    return (own.detach(), torch.zeros_like(leaf) if slope is None else slope), after
