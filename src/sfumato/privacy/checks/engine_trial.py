"""The trial of an engine on random batches: agreement with the reference, and isolation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import torch
from torch import Tensor

from sfumato.errors import UserError
from sfumato.memory import out_of_memory
from sfumato.privacy.checks.agreement import (
    CLOSE,
    bookkeeping_error,
    error_table,
    rounding,
    tolerance,
)
from sfumato.privacy.checks.isolation import LOOSE, SUMS, Change, look, without
from sfumato.privacy.checks.model_under_test import Comparison, held
from sfumato.privacy.checks.random_inputs import CUT, KINDS, replacement
from sfumato.privacy.engines.engine import Engine
from sfumato.privacy.engines.leaves import NotPerOperator
from sfumato.privacy.engines.objective import Objective
from sfumato.privacy.engines.one_at_a_time import one_at_a_time
from sfumato.privacy.engines.results import Gradients, rows_of
from sfumato.privacy.numerics.distance import distance
from sfumato.privacy.numerics.model_state import Snapshot, even_draws, seed
from sfumato.privacy.numerics.precision import widened

MOVES = "changing one example moves the gradients of others"
"""Beginning of an objection to an engine that lets one example reach another."""

_SIZE = "the number of examples in a batch moves the {} by {:.1e}"

_Run = Callable[[Tensor, Tensor], Gradients]


@dataclass
class Trial:
    """A random batch, and three of its examples with which engines are compared.

    Attributes:
        objective: The model, its loss and its views.
        x: Random inputs of three examples or more.
        y: Random targets.
        computed_in: The least precise type of the computation.
        comparison: The mode in which the model can be compared with itself.
        double: Returns the objective with a copy of the model in float64, if there can be one.
        confirmed: Whether small batches agreed closely, or were compared in float64 too.
    """

    objective: Objective
    x: Tensor
    y: Tensor
    computed_in: torch.dtype
    comparison: Comparison
    double: Callable[[], Objective | None]
    confirmed: bool = True
    _state: Snapshot = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._state = Snapshot(self.objective.model, self.objective.loss)

    @property
    def picks(self) -> list[int]:
        """The first, the middle and the last example."""
        return [0, len(self.y) // 2, len(self.y) - 1]

    def few(self, examples: int) -> tuple[Tensor, Tensor]:
        """A batch of the first two or of all three examples that are compared."""
        picks = self.picks[:examples]
        return rows_of(self.x, picks, self.objective.views), self.y[picks]

    @cached_property
    def reference(self) -> Gradients:
        """The gradients of the three examples, one at a time."""
        x, y = self.few(3)
        own, state = self.objective, self._state
        with held(own.model, self.comparison):
            try:
                return one_at_a_time(own.model, x, y, loss=own.loss, views=own.views, state=state)
            finally:
                state.restore()

    @cached_property
    def wide(self) -> Trial | None:
        """The trial on the three examples in float64, if the model runs in it."""
        if (twin := self.double()) is None:
            return None
        x, y = map(widened, self.few(3))
        return Trial(twin, x, y, torch.float64, self.comparison, lambda: None)

    def run(self, engine: Engine, x: Tensor, y: Tensor) -> Gradients:
        """Gradients by an engine, each time from the same state."""
        seed(self.objective.model)
        try:
            with even_draws(self.objective.model):
                return engine.gradients(x.clone(), y)
        finally:
            self._state.restore()

    def run_held(self, engine: Engine, x: Tensor, y: Tensor) -> Gradients:
        """The same in the mode in which the model can be compared with itself."""
        with held(self.objective.model, self.comparison):
            return self.run(engine, x, y)


def objection(trial: Trial, engine: Engine, sizes: Iterable[int]) -> str | None:
    """The reason why an engine is not right for a model, or None.

    In small batches of these sizes, up to three, and in one of full size, the gradients are
    compared with the reference, and no example's gradient may move with another's.
    """
    try:
        few: Gradients | None = None
        for examples in sizes:
            said, few = _few(trial, engine, examples)
            if said:
                return said
        if len(trial.y) > 3:
            return _full(trial, engine, few) or None
    except UserError:
        raise
    except NotPerOperator as reason:
        return str(reason)
    except Exception as error:
        if out_of_memory(error):
            raise
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
    return None


def _few(trial: Trial, engine: Engine, examples: int) -> tuple[str, Gradients]:
    """An objection to an engine in a small batch, or an empty string, and the gradients."""
    x, y = trial.few(examples)
    ours = trial.run(engine, x, y)
    changes: list[Change] = [{examples - 1: KINDS[-1]}]
    if examples == 3:
        # A model may sort rows, and only such examples change the order. Each row stays once.
        changes = [{1: CUT, 2: KINDS[-1]}, {0: "zeros", 1: "large"}, {0: CUT, 2: "opposite"}]
    views = trial.objective.views

    def run(x: Tensor, y: Tensor) -> Gradients:
        return trial.run(engine, x, y)

    said = _moves_with(run, x, y, changes, views, ours, partial(_in_double, trial, engine))
    if said or trial.comparison == "not at all":
        return said, ours
    if trial.comparison != "as it is":
        ours = trial.run_held(engine, x, y)
    reference = trial.reference.some(slice(examples))
    sums = bookkeeping_error(ours, reference)
    if _worst(ours, reference, sums, fraction=1e-3) <= CLOSE:
        return "", ours
    wide = trial.wide
    trial.confirmed = wide is not None
    said = _differs(trial, _worst(ours, reference, sums))
    if not said and wide is not None:
        ours_wide = wide.run_held(engine.on(wide.objective), *wide.few(examples))
        reference = wide.reference.some(slice(examples))
        sums = bookkeeping_error(ours_wide, reference)
        said = _differs(wide, _worst(ours_wide, reference, sums))
    return said, ours


def _worst(
    ours: Gradients, reference: Gradients, sums: float = 0.0, *, fraction: float | None = None
) -> float:
    """The largest error of any gradient, or of norms and sums."""
    table = error_table(ours, reference, fraction=fraction)
    return max(sums, float(table.max()) if table.numel() else 0.0)


def _differs(trial: Trial, worst: float) -> str:
    """A sentence if gradients are further from the reference than rounding explains."""
    if worst <= tolerance(trial.computed_in, confirmed=trial.confirmed):
        return ""
    return f"the gradients differ from the reference by {worst:.1e}"


def _full(trial: Trial, engine: Engine, few: Gradients | None) -> str:
    """An objection to an engine in the batch of full size, or an empty string.

    Args:
        trial: The batch.
        engine: The engine under test.
        few: Its gradients of the three examples in a batch of their own, if they are known.
    """
    if trial.comparison == "not at all":
        return ""

    def run(x: Tensor, y: Tensor) -> Gradients:
        return trial.run_held(engine, x, y)

    ours = run(trial.x, trial.y)
    some = ours.some(trial.picks)
    if said := _differs(trial, _worst(some, trial.reference)):
        return said
    if trial.x.dtype != torch.float64:
        few = run(*trial.few(3)) if few is None else few
        if said := _by_size(trial, engine, some, few):
            return said
    changes = [{len(trial.y) // 3: KINDS[-1]}]
    views = trial.objective.views
    wide = partial(_in_double, trial, engine)
    return _moves_with(run, trial.x, trial.y, changes, views, ours, wide)


def _by_size(trial: Trial, engine: Engine, some: Gradients, few: Gradients) -> str:
    """A sentence if three examples differ in a batch of their own by more than rounding.

    Outputs are continuous, so rounding moves them little. Gradients jump where an activation lies
    at a kink: if they differ, the same batch in float64 decides, where this hardly ever happens.

    Args:
        trial: The batch.
        engine: The engine under test.
        some: Results of the three examples in the batch of full size.
        few: Their results in a batch of their own.
    """
    allowed = rounding(trial.computed_in)
    moved = 0.0
    if some.outputs is not None and few.outputs is not None:
        moved = distance(few.outputs, some.outputs)
    if not moved <= allowed:
        return _SIZE.format("outputs", moved)
    each = [max(row, default=0.0) for row in error_table(some, few).tolist()]
    if max(each) <= allowed:
        return ""
    if (wide := trial.wide) is None:
        # A kink affects some examples, a dependence on the batch size affects all.
        return "" if min(each) <= allowed else _SIZE.format("gradients", min(each))
    twin = engine.on(wide.objective)
    found = wide.run_held(twin, widened(trial.x), widened(trial.y)).some(trial.picks)
    moved = _worst(found, wide.reference)
    return "" if moved <= tolerance(torch.float64) else _SIZE.format("gradients", moved)


def outputs_by_size(trial: Trial, x: Tensor) -> str | None:
    """A sentence if the outputs of some examples differ in a larger batch, or None."""
    if trial.comparison == "not at all":
        return None
    model, views = trial.objective.model, trial.objective.views
    examples = len(x) // views
    picks = [0, examples // 2, examples - 1]
    with held(model, trial.comparison):
        few = look(model, rows_of(x, picks, views), None).outputs
        many = rows_of(look(model, x, None).outputs, picks, views)
    moved = distance(few, many)
    return None if moved <= rounding(trial.computed_in) else _SIZE.format("outputs", moved)


def _moves_with(
    run: _Run,
    x: Tensor,
    y: Tensor,
    changes: Sequence[Change],
    views: int,
    baseline: Gradients,
    in_double: Callable[[Tensor, Tensor, Sequence[Change]], str | None] | None = None,
) -> str:
    """A sentence if other examples' norms and losses move when some examples are replaced.

    A kernel that adds in any order may return the same bits twice and others once, so differences
    that rounding may make are looked for in float64, where they are a million times smaller.

    Args:
        run: Gradients of a batch.
        x: Inputs.
        y: Targets.
        changes: Examples to replace at once, each by a kind of replacement.
        views: Rows per example.
        baseline: The gradients of the batch as it is.
        in_double: The same in float64, or None where the model does not run in it.
    """
    norms, losses = baseline.squared_norms(), baseline.losses
    del baseline
    moved = 0.0
    waiting = list(changes)
    while waiting:
        change = waiting.pop(0)
        changed = x
        for j, kind in change.items():
            for row in range(j * views, (j + 1) * views):
                changed = replacement(changed, row, kind)
        try:
            after = run(changed, y)
        except Exception as error:
            if out_of_memory(error):
                raise
            # A model may refuse one of several replacements.
            waiting += [{j: kind} for j, kind in change.items()] if len(change) > 1 else []
            continue
        others = without(y.shape[0], *change).to(norms.device)
        moved = max(
            moved,
            distance(norms[others], after.squared_norms()[others]),
            distance(losses[others], after.losses[others]),
        )
    if moved == 0:
        return ""
    repeats = distance(norms, run(x, y).squared_norms()) == 0
    rounds = LOOSE.get(x.dtype if x.is_floating_point() else losses.dtype, 1e-2)
    if moved <= (SUMS if repeats else rounds):
        return ""
    if moved <= rounds and in_double is not None and (said := in_double(x, y, changes)) is not None:
        return said
    return f"{MOVES} by {moved:.1e}"


def _in_double(
    trial: Trial, engine: Engine, x: Tensor, y: Tensor, changes: Sequence[Change]
) -> str | None:
    """The result of `_moves_with` in float64, or None if the model does not run in it."""
    if x.dtype == torch.float64 or (wide := trial.wide) is None:
        return None
    run = partial(wide.run_held, engine.on(wide.objective))
    x, y = widened(x), widened(y)
    return _moves_with(run, x, y, changes, trial.objective.views, run(x, y))
