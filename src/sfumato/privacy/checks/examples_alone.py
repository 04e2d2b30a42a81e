"""Examples of a batch compared with themselves alone, by outputs and gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sfumato.errors import UserError
from sfumato.privacy.checks.agreement import rounding, tolerance
from sfumato.privacy.checks.model_under_test import double_of
from sfumato.privacy.engines.compiled import Fused
from sfumato.privacy.engines.one_at_a_time import one_at_a_time
from sfumato.privacy.engines.results import Gradients, PerExampleGradients, rows_of
from sfumato.privacy.engines.unit_loss import UnitLoss
from sfumato.privacy.engines.unit_targets import joined, parted
from sfumato.privacy.numerics.distance import distance
from sfumato.privacy.numerics.model_state import Snapshot, undisturbed
from sfumato.privacy.numerics.precision import full_precision, widened

if TYPE_CHECKING:
    from sfumato.privacy.per_example import PerExample

_CANCELLED = 100.0
"""Rounding errors of cancelled terms that may be left in the gradient of an example."""


@dataclass
class Alone:
    """A few examples, and their gradients when each runs alone."""

    picks: Tensor
    rows: Tensor
    targets: Tensor
    gradients: Gradients


def run_alone(engine: PerExample, x: Tensor, y: Tensor, picks: Tensor) -> Alone | None:
    """The gradients of picked examples that run alone, from the state in which the batch will run.

    None for a compiled pass, whose precision is lower than its reference's, and where the examples
    of a batch run one at a time anyway.
    """
    if engine.precision_for(x) is not None or engine.method == "loop" or not engine.trainable:
        return None
    views = engine.views
    rows = x[(picks.unsqueeze(1) * views + torch.arange(views)).flatten().to(x.device)]
    targets = y[picks.to(y.device)]
    with full_precision(x.device):
        found = one_at_a_time(engine.model, rows, targets, loss=engine.loss, views=views)
    return Alone(picks, rows, targets, found)


def agree(
    engine: PerExample,
    found: Gradients | Fused,
    norms: Tensor,
    alone: Alone,
    x: Tensor,
    y: Tensor,
) -> bool:
    """Tell whether examples have the same outputs and gradients in the batch and alone.

    Up to rounding; where they differ by more, an activation may lie at a kink or terms may have
    cancelled, and the same batch in float64 decides. Where the model does not run in float64,
    outputs must agree up to rounding and gradients roughly.
    """
    same = outputs_agree = _outputs_agree(engine, found, alone)
    least = 1e-2 * float(norms.sum(1).sqrt().nan_to_num(0, 0, 0).max())
    exactly, roughly = rounding(engine.narrowest), tolerance(engine.narrowest, confirmed=True)
    for k, pick in enumerate(alone.picks.tolist()):
        ours, wanted = _one(found, pick), _one(alone.gradients, k)
        off, length = _difference(ours, wanted), _length(wanted)
        if not (math.isfinite(length) or math.isfinite(_length(ours))):
            continue  # Not finite, so it adds nothing.
        same = same and off <= exactly * max(least, length)
        if off <= roughly * max(least, length):
            continue
        if not off <= _CANCELLED * torch.finfo(engine.narrowest).eps * _slope(engine, alone):
            return False
    if same:
        return True
    in_double = _agree_in_double(engine, alone, x, y, least)
    return outputs_agree if in_double is None else in_double


def _outputs_agree(engine: PerExample, found: PerExampleGradients, alone: Alone) -> bool:
    """Tell whether examples have the same outputs in the batch and alone, up to rounding."""
    if found.outputs is None or alone.gradients.outputs is None:
        return True
    ours = rows_of(found.outputs, alone.picks.tolist(), engine.views)
    finite = ours.isfinite() & alone.gradients.outputs.isfinite()
    wanted = alone.gradients.outputs.where(finite, 0)
    return distance(wanted, ours.where(finite, 0)) <= rounding(engine.narrowest)


def _agree_in_double(
    engine: PerExample, alone: Alone, x: Tensor, y: Tensor, least: float
) -> bool | None:
    """Compare the batch with its examples alone in float64; None if float64 fails."""
    views = engine.views
    with undisturbed(engine.model, engine.loss), full_precision(x.device):
        twin = double_of(engine.objective, x[:views], y[:1])
        if twin is None or engine.engine is None:
            return None
        state = Snapshot(twin.model)
        try:
            wide, targets = (widened(t) for t in engine.as_run(x, y))
            ours = engine.engine.on(twin).gradients(wide, targets).some(alone.picks.tolist())
            state.restore()
            wanted = one_at_a_time(
                twin.model, widened(alone.rows), widened(alone.targets),
                loss=engine.loss, views=views,
            )  # fmt: skip
        except UserError:
            raise
        except Exception:
            return None
    for k in range(len(alone.picks)):
        one, other = _one(ours, k), _one(wanted, k)
        off, length = _difference(one, other), _length(other)
        if not (math.isfinite(length) or math.isfinite(_length(one))):
            continue
        if off <= tolerance(torch.float64) * max(least, length):
            continue
        if not off <= _CANCELLED * torch.finfo(torch.float64).eps * _slope(engine, alone):
            return False
    return True


def _slope(engine: PerExample, alone: Alone) -> float:
    """The norm of these examples' gradients for targets that the network did not predict.

    The gradient of a confident prediction is mostly the rounding error of terms that cancel; their
    size is this norm.
    """
    outputs, targets = alone.gradients.outputs, alone.targets
    if targets.is_floating_point() or outputs is None or outputs.dim() != 2:
        return 0.0
    there = None
    if isinstance(engine.loss, UnitLoss):
        targets, there = parted(targets)
    # A loss may read fewer classes than there are outputs.
    classes = max(2, int(targets.max()) + 1)
    others = ((targets + 1) % min(classes, outputs.shape[1])).to(targets.dtype)
    others = others if there is None else joined(others, there)
    with undisturbed(engine.model, engine.loss), full_precision(alone.rows.device):
        found = one_at_a_time(
            engine.model, alone.rows, others, loss=engine.loss, views=engine.views
        )
    return float(found.squared_norms().sum(1).sqrt().nan_to_num(0, 0, 0).max())


def _one(found: Gradients | Fused, example: int) -> list[Tensor]:
    """The gradients of one example."""
    weight = torch.ones(1, 1, dtype=torch.float64, device=found.losses.device)
    return found.some([example]).weighted_sum(weight)


def _difference(a: list[Tensor], b: list[Tensor]) -> float:
    """The norm of the difference of gradients."""
    return _length([s - t for s, t in zip(a, b, strict=True)])


def _length(gradients: list[Tensor]) -> float:
    """The norm of gradients."""
    norms = [torch.linalg.vector_norm(t, dtype=torch.float64) for t in gradients]
    return float(torch.stack(norms).norm()) if norms else 0.0
