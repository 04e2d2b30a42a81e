"""Choice of the engine for a model, by checks that run before its first batch counts.

They run on random inputs and targets, so no private example is involved, and leave the model and
the global random states as they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sfumato.errors import UserError
from sfumato.privacy.checks.engine_trial import MOVES, Trial, objection, outputs_by_size
from sfumato.privacy.checks.loss_isolation import refuse_mixing_loss
from sfumato.privacy.checks.model_isolation import (
    refuse_mixing_alike,
    refuse_mixing_at,
    refuse_mixing_model,
)
from sfumato.privacy.checks.model_under_test import (
    Comparison,
    Draws,
    double_of,
    how_to_compare,
    narrowest,
    without_zeros,
)
from sfumato.privacy.checks.refusals import refuse_mixing_layers
from sfumato.privacy.engines.engine import Engine
from sfumato.privacy.engines.objective import Objective
from sfumato.privacy.engines.one_at_a_time import OneAtATime
from sfumato.privacy.engines.operators import Operators
from sfumato.privacy.engines.vectorised import Vectorised
from sfumato.privacy.numerics.model_state import undisturbed
from sfumato.privacy.numerics.precision import any_algorithm, full_precision

_ENOUGH = 32
"""Number of examples for the check of a pass that is only the reference of another."""


@dataclass(frozen=True)
class Choice:
    """The engine for a model.

    Attributes:
        engine: The fastest engine that is right.
        narrowest: The least precise floating-point type that the model computes in.
        passed_over: Faster engines by name, with the reason why each is not right.
        repeats: Whether the model draws no random numbers.
    """

    engine: Engine
    narrowest: torch.dtype
    passed_over: dict[str, str] = field(default_factory=dict)
    repeats: bool = False


@contextmanager
def _checking(objective: Objective, device: torch.device) -> Iterator[None]:
    """Leave no trace in the model, and compute in full precision.

    Parameters that are zero have other values meanwhile: they would hide everything behind them.
    """
    model = objective.model
    with (
        undisturbed(model, objective.loss),
        without_zeros(model),
        full_precision(device),
        any_algorithm(),
    ):
        yield


def choose_engine(
    objective: Objective,
    x: Tensor,
    y: Tensor,
    *,
    check: bool = True,
    compiled: bool = False,
    at_size: bool = True,
) -> Choice:
    """Return the fastest engine that is right for a model on batches like this one.

    Args:
        objective: The model, its loss and its views.
        x: Inputs like those to come; their values are not used.
        y: Targets likewise.
        check: Compare engines with one example at a time; if not, the first that runs is taken.
        compiled: Whether the engine only serves as the reference of a compiled one, which is
            compared at full size itself.
        at_size: Check batches of full size too. If not, a model that repeats itself is checked in
            small ones and in one of images that are alike, and a batch of full size is still to be
            compared with itself.

    Raises:
        UserError: If one example can reach another.
    """
    refuse_mixing_layers(objective.model)
    passed_over: dict[str, str] = {}
    with _checking(objective, x.device):
        draws = Draws.for_objective(objective, x, y)
        own = narrowest(objective.model, draws.x(objective.views))
        comparison: Comparison = "not at all"
        if check:
            comparison = how_to_compare(objective.model, draws.x(3))
            refuse_mixing_loss(objective, draws, x.shape[0])
            at_size = at_size or comparison != "as it is"
            rows = x.shape[0] if at_size else 0
            refuse_mixing_model(objective, draws, rows, random=comparison != "as it is")
            if not at_size:
                refuse_mixing_alike(objective, draws, x.shape[0])
        size = min(y.shape[0], _ENOUGH) if compiled else y.shape[0] if at_size else 3
        trial = _trial(objective, draws, size if check else 3, own, comparison)
        for engine in _candidates(objective, draws.x(objective.views)):
            said = objection(trial, engine, (2, 3) if at_size else (3,))
            if check and at_size and y.shape[0] > size and isinstance(engine, Operators):
                said = said or outputs_by_size(trial, draws.x(x.shape[0]))
            if said is None:
                passed_over.pop(engine.name, None)
                return Choice(engine, own, passed_over, comparison == "as it is")
            if said.startswith(MOVES) and isinstance(engine, Vectorised):
                # The model ran on one example at a time, so the cause is the loss or kept state.
                raise UserError(
                    f"This model cannot be trained with differential privacy: {said}, even if "
                    "each runs through the model alone. Look at the loss, and at what model and "
                    "loss keep between calls."
                )
            passed_over[engine.name] = said
        if check and not at_size:
            refuse_mixing_at(objective, draws, x.shape[0])
    return Choice(OneAtATime(objective), own, passed_over)


def refuse_mixing_outputs(objective: Objective, x: Tensor, y: Tensor) -> None:
    """Refuse a model that lets one example reach the outputs of another.

    This is the part of the checks that a model needs whose outputs are used, but no gradients.

    Args:
        objective: The model.
        x: Inputs like those to come, as many as run at once; their values are not used.
        y: Targets likewise.

    Raises:
        UserError: If one example can reach another.
    """
    refuse_mixing_layers(objective.model)
    with _checking(objective, x.device):
        draws = Draws.for_objective(objective, x, y)
        random = how_to_compare(objective.model, draws.x(3)) != "as it is"
        refuse_mixing_model(objective, draws, x.shape[0], random=random, gradients=False)


def _candidates(objective: Objective, x: Tensor) -> Iterator[Engine]:
    """Engines to try, the fastest first.

    A model may use an operator in a manner that requires its gradients to be materialised.
    """
    operators = Operators(objective)
    yield operators
    if operators.keeps_books(x):
        yield Operators(objective, book_keeping=False)
    yield Vectorised(objective)


def _trial(
    objective: Objective,
    draws: Draws,
    examples: int,
    computed_in: torch.dtype,
    comparison: Comparison,
) -> Trial:
    """The trial on a random batch of so many examples, at least three."""
    size = max(3, examples)
    x, y = draws.x(size * objective.views), draws.y(size)

    def double() -> Objective | None:
        return double_of(objective, draws.x(objective.views), draws.y(1))

    return Trial(objective, x, y, computed_in, comparison, double)


def holds_at_size(
    engine: Engine, x: Tensor, y: Tensor, computed_in: torch.dtype, *, at_size: bool = True
) -> bool:
    """Tell whether an engine chosen for batches of another size is right for those of this one.

    Args:
        engine: The engine.
        x: Inputs of this size; their values are not used.
        y: Targets likewise.
        computed_in: The least precise type that the model computes in.
        at_size: As in `choose_engine`.

    Raises:
        UserError: If one example can reach another in batches of this size.
    """
    objective = engine.objective
    with _checking(objective, x.device):
        draws = Draws.for_objective(objective, x, y)
        refuse_mixing_loss(objective, draws, x.shape[0])
        if not at_size:
            refuse_mixing_alike(objective, draws, x.shape[0])
            return True
        if x.shape[0] > 1:
            refuse_mixing_at(objective, draws, x.shape[0])
        comparison = how_to_compare(objective.model, draws.x(3))
        trial = _trial(objective, draws, y.shape[0], computed_in, comparison)
        small = (y.shape[0],) if y.shape[0] <= 3 else ()
        return objection(trial, engine, small) is None
