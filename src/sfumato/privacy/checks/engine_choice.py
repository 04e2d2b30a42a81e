"""Choice of the engine for a model, by checks that run before its first batch counts.

They run on random inputs and targets, so no private example is involved, and leave the model and
the global random states as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sfumato.errors import UserError
from sfumato.memory import out_of_memory
from sfumato.privacy.checks.agreement import (
    bookkeeping_error,
    errors,
    rounding,
    tolerance,
)
from sfumato.privacy.checks.isolation import LOOSE, look, without
from sfumato.privacy.checks.loss_isolation import refuse_mixing_loss
from sfumato.privacy.checks.model_isolation import refuse_mixing_at, refuse_mixing_model
from sfumato.privacy.checks.model_under_test import (
    Comparison,
    Draws,
    converted,
    double_of,
    held,
    how_to_compare,
    narrowest,
    widened,
    without_zeros,
)
from sfumato.privacy.checks.random_inputs import CUT, KINDS, replacement
from sfumato.privacy.checks.refusals import refuse_mixing_layers
from sfumato.privacy.engines.engine import Engine
from sfumato.privacy.engines.leaves import NotPerOperator
from sfumato.privacy.engines.objective import Objective
from sfumato.privacy.engines.one_at_a_time import OneAtATime
from sfumato.privacy.engines.operators import Operators
from sfumato.privacy.engines.results import Gradients
from sfumato.privacy.engines.vectorised import Vectorised
from sfumato.privacy.numerics.distance import distance
from sfumato.privacy.numerics.model_state import Snapshot, seed, undisturbed
from sfumato.privacy.numerics.precision import any_algorithm, full_precision

_MOVES = "changing one example moves the gradients of others"

_SIZE = "the number of examples in a batch moves the {} by {:.1e}"

_SUMS = 1e-12
"""Relative difference of norms that the order of sums in float64 explains, on any device."""

_ENOUGH = 32
"""Number of examples for the check of a pass that is only the reference of another."""


@dataclass(frozen=True)
class Choice:
    """The engine for a model.

    Attributes:
        engine: The fastest engine that is right.
        narrowest: The least precise floating-point type that the model computes in.
        passed_over: Faster engines by name, with the reason why each is not right.
    """

    engine: Engine
    narrowest: torch.dtype
    passed_over: dict[str, str] = field(default_factory=dict)

    @property
    def found_mixing(self) -> bool:
        """Tell whether examples moved each other's gradients where they ran together."""
        return any(reason.startswith(_MOVES) for reason in self.passed_over.values())


@dataclass
class _Trial:
    """An engine under test, with everything that its comparisons need.

    Attributes:
        engine: The engine.
        draws: Random inputs and targets.
        dtype: The type that inputs are converted to.
        computed_in: The least precise type of the computation.
        comparison: The mode in which the model can be compared with itself.
        confirmed: Whether the engine is compared in float64 too.
        double: Returns the objective with a copy of the model in float64, if there can be one.
    """

    engine: Engine
    draws: Draws
    dtype: torch.dtype
    computed_in: torch.dtype
    comparison: Comparison
    confirmed: bool
    double: Callable[[], Objective | None]

    @property
    def objective(self) -> Objective:
        return self.engine.objective

    def batch(self, examples: int) -> tuple[Tensor, Tensor]:
        """Random inputs and targets for some examples."""
        x = self.draws.x(examples * self.objective.views)
        return converted(x, self.dtype), converted(self.draws.y(examples), self.dtype)


@contextmanager
def _checking(objective: Objective, device: torch.device) -> Iterator[None]:
    """Leave no trace in the model, and compute in full precision.

    Parameters that are zero have other values meanwhile: they would hide everything behind them.
    """
    model = objective.model
    with undisturbed(model), without_zeros(model), full_precision(device), any_algorithm():
        yield


def choose_engine(
    objective: Objective, x: Tensor, y: Tensor, *, check: bool = True, compiled: bool = False
) -> Choice:
    """Return the fastest engine that is right for a model on batches like this one.

    Args:
        objective: The model, its loss and its views.
        x: Inputs like those to come; their values are not used.
        y: Targets likewise.
        check: Compare engines with one example at a time; if not, the first that runs is taken.
        compiled: Whether the engine only serves as the reference of a compiled one, which is
            compared at full size itself.

    Raises:
        UserError: If one example can reach another.
    """
    refuse_mixing_layers(objective.model)
    passed_over: dict[str, str] = {}
    with _checking(objective, x.device):
        draws = Draws.for_objective(objective, x, y)
        own = narrowest(objective.model, draws.x(objective.views))
        comparison: Comparison = "not at all"
        twin: Objective | None = None
        if check:
            refuse_mixing_loss(objective, draws, x.shape[0])
            refuse_mixing_model(objective, draws, x.shape[0])
            comparison = how_to_compare(objective.model, draws.x(3))
            twin = double_of(objective, draws.x(objective.views), draws.y(1))
        last = y.shape[0] if not compiled else min(y.shape[0], _ENOUGH)
        large = last if check and y.shape[0] > 3 else None
        for engine in _candidates(objective, draws.x(objective.views)):
            trial = _Trial(
                engine, draws, draws.like_x.dtype, own, comparison, twin is not None, lambda: twin
            )
            objection = _objection_in_double(trial) if twin is not None else None
            objection = objection or _objection(trial, (2, 3, *([large] if large else [])))
            if large and y.shape[0] > large and isinstance(engine, Operators):
                objection = objection or _outputs_by_size(trial, y.shape[0])
            if objection is None:
                passed_over.pop(engine.name, None)
                return Choice(engine, own, passed_over)
            if objection.startswith(_MOVES) and isinstance(engine, Vectorised):
                # The model ran on one example at a time, so the cause is the loss or kept state.
                raise UserError(
                    f"This model cannot be trained with differential privacy: {objection}, even if "
                    "each runs through the model alone. Look at the loss, and at what model and "
                    "loss keep between calls."
                )
            passed_over[engine.name] = objection
    return Choice(OneAtATime(objective), own, passed_over)


def _candidates(objective: Objective, x: Tensor) -> Iterator[Engine]:
    """Engines to try, the fastest first.

    A model may use an operator in a manner that requires its gradients to be materialised.
    """
    operators = Operators(objective)
    yield operators
    if operators.keeps_books(x):
        yield Operators(objective, book_keeping=False)
    yield Vectorised(objective)


def _objection_in_double(trial: _Trial) -> str | None:
    """The reason why an engine is not right for the copy of the model in float64, or None."""
    twin = trial.double()
    assert twin is not None
    wide = torch.float64
    return _objection(
        _Trial(
            trial.engine.on(twin), trial.draws, wide, wide, trial.comparison, True, trial.double
        ),
        (2, 3),
    )


def holds_at_size(engine: Engine, x: Tensor, y: Tensor, computed_in: torch.dtype) -> bool:
    """Tell whether an engine chosen for batches of another size is right for those of this one.

    Args:
        engine: The engine.
        x: Inputs of this size; their values are not used.
        y: Targets likewise.
        computed_in: The least precise type that the model computes in.

    Raises:
        UserError: If one example can reach another in batches of this size.
    """
    objective = engine.objective
    with _checking(objective, x.device):
        draws = Draws.for_objective(objective, x, y)
        refuse_mixing_loss(objective, draws, x.shape[0])
        if x.shape[0] > 1:
            refuse_mixing_at(objective, draws, x.shape[0])
        trial = _Trial(
            engine, draws, x.dtype, computed_in, how_to_compare(objective.model, draws.x(3)), True,
            lambda: double_of(objective, draws.x(objective.views), draws.y(1)),
        )  # fmt: skip
        return _objection(trial, (y.shape[0],)) is None


def _objection(trial: _Trial, sizes: Iterable[int]) -> str | None:
    """The reason why an engine is not right for a model, or None.

    Up to three examples are compared with the reference one by one. In larger batches a sample of
    examples is compared, whose gradients must be the same, up to rounding, in a batch of their own.
    In each size, no example's gradient may move with another's.
    """
    objective = trial.objective
    state = Snapshot(objective.model)
    run = _runner(trial.engine, state)
    try:
        for examples in sizes:
            x, y = trial.batch(examples)
            if examples <= 3:
                changes = [(examples - 1, KINDS[-1])]
                if examples == 3 and trial.dtype == trial.draws.like_x.dtype:
                    # A model may sort rows, and only such examples change the order.
                    changes += [(0, "zeros"), (0, CUT), (2, CUT), (1, "large"), (2, "opposite")]
                if said := _moves_with(run, x, y, changes, objective.views, run(x, y)):
                    return said
            if trial.comparison != "not at all":
                with held(objective.model, trial.comparison):
                    if said := _compared(trial, run, x, y, state):
                        return said
    except UserError:
        raise
    except NotPerOperator as reason:
        return str(reason)
    except Exception as error:
        if out_of_memory(error):
            raise
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
    return None


_Run = Callable[[Tensor, Tensor], Gradients]


def _compared(trial: _Trial, run: _Run, x: Tensor, y: Tensor, state: Snapshot) -> str:
    """A sentence if the gradients of a batch differ from those of the reference, else empty."""
    examples = y.shape[0]
    ours = run(x, y)
    picks = range(examples) if examples <= 3 else (0, examples // 2, examples - 1)
    some, reference = ours.some(list(picks)), _alone(trial.objective, x, y, picks, state)
    worst = max(errors(some, reference).values(), default=0.0)
    if examples <= 3:
        worst = max(worst, bookkeeping_error(ours, reference))
    if not worst <= tolerance(trial.computed_in, confirmed=trial.confirmed):
        return f"the gradients differ from the reference by {worst:.1e}"
    if examples <= 3:
        return ""
    if trial.dtype != torch.float64 and (said := _by_size(trial, run, x, y, picks, some)):
        return said
    changes = [(examples // 3, KINDS[-1])]
    return _moves_with(run, x, y, changes, trial.objective.views, ours)


def _runner(engine: Engine, state: Snapshot) -> _Run:
    """A function that takes gradients by an engine, each time from the same state."""

    def run(x: Tensor, y: Tensor) -> Gradients:
        seed(engine.objective.model)
        try:
            return engine.gradients(x.clone(), y)
        finally:
            state.put_back()

    return run


def _by_size(
    trial: _Trial, run: _Run, x: Tensor, y: Tensor, picks: Sequence[int], ours: Gradients
) -> str:
    """A sentence if picked examples differ in a batch of their own by more than rounding.

    Outputs are continuous, so rounding moves them little. Gradients jump where an activation lies
    at a kink: if they differ, the same batch in float64 decides, where this hardly ever happens.

    Args:
        trial: The engine under test.
        run: From inputs and targets to gradients.
        x: A batch of the size in use.
        y: Its targets.
        picks: The examples that are compared.
        ours: Their results in that batch.
    """
    allowed = rounding(trial.computed_in)
    few = run(_rows_of(x, picks, trial.objective.views), y[list(picks)])
    moved = 0.0
    if ours.outputs is not None and few.outputs is not None:
        moved = distance(few.outputs, ours.outputs)
    if not moved <= allowed:
        return _SIZE.format("outputs", moved)
    each = [
        max(errors(ours.some([k]), few.some([k])).values(), default=0.0) for k in range(len(picks))
    ]
    if max(each) <= allowed:
        return ""
    twin = trial.double()
    if twin is None:
        # A kink affects some examples, a dependence on the batch size affects all.
        return "" if min(each) <= allowed else _SIZE.format("gradients", min(each))
    with held(twin.model, trial.comparison):
        state = Snapshot(twin.model)
        wide, targets = widened(x), widened(y)
        found = _runner(trial.engine.on(twin), state)(wide, targets).some(list(picks))
        moved = max(errors(found, _alone(twin, wide, targets, picks, state)).values(), default=0.0)
    return "" if moved <= tolerance(torch.float64) else _SIZE.format("gradients", moved)


def _outputs_by_size(trial: _Trial, examples: int) -> str | None:
    """A sentence if the outputs of some examples differ in a batch of full size, or None."""
    if trial.comparison == "not at all":
        return None
    model, views = trial.objective.model, trial.objective.views
    x, picks = trial.draws.x(examples * views), (0, examples // 2, examples - 1)
    with held(model, trial.comparison):
        few = look(model, _rows_of(x, picks, views), None).outputs
        many = _rows_of(look(model, x, None).outputs, picks, views)
    moved = distance(few, many)
    return None if moved <= rounding(trial.computed_in) else _SIZE.format("outputs", moved)


def _rows_of(x: Tensor, picks: Iterable[int], views: int) -> Tensor:
    return torch.cat([x[i * views : (i + 1) * views] for i in picks])


def _moves_with(
    run: _Run,
    x: Tensor,
    y: Tensor,
    changes: Iterable[tuple[int, str]],
    views: int,
    baseline: Gradients,
) -> str:
    """A sentence if other examples' norms and losses move when one example is replaced."""
    norms, losses = baseline.squared_norms(), baseline.losses
    del baseline
    moved = 0.0
    for j, kind in changes:
        changed = x
        for row in range(j * views, (j + 1) * views):
            changed = replacement(changed, row, kind)
        try:
            after = run(changed, y)
        except Exception as error:
            if out_of_memory(error):
                raise
            continue
        others = without(y.shape[0], j).to(norms.device)
        moved = max(
            moved,
            distance(norms[others], after.squared_norms()[others]),
            distance(losses[others], after.losses[others]),
        )
    if moved == 0:
        return ""
    repeats = distance(norms, run(x, y).squared_norms()) == 0
    loose = _SUMS if repeats else LOOSE.get(x.dtype, 1e-2)
    return f"{_MOVES} by {moved:.1e}" if moved > loose else ""


def _alone(
    objective: Objective, x: Tensor, y: Tensor, picks: Iterable[int], state: Snapshot
) -> Gradients:
    rows = _rows_of(x, picks, objective.views)
    try:
        return OneAtATime(objective).gradients(rows, y[list(picks)])
    finally:
        state.put_back()
