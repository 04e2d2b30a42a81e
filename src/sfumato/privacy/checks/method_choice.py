"""The checks that a model passes before its first batch counts.

They run on random inputs and targets, so no private example is involved, and leave the model and
the global random states as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from sfumato.errors import UserError
from sfumato.privacy.checks.agreement import bookkeeping_error, errors, picked, rounding, tolerance
from sfumato.privacy.checks.isolation import LOOSE, how_examples_mix, look, out_of_memory, without
from sfumato.privacy.checks.loss_isolation import refuse_mixing_loss
from sfumato.privacy.checks.mixing_layer import distance
from sfumato.privacy.checks.model_state import PROBE_SEED, Snapshot, seed, undisturbed
from sfumato.privacy.checks.model_under_test import (
    Comparison,
    Draws,
    copied,
    held,
    how_to_compare,
    is_random,
    narrowest,
    without_zeros,
)
from sfumato.privacy.checks.perturbed_batches import Plan, alike, image_plans
from sfumato.privacy.checks.random_inputs import CUT, KINDS, image_rows, replacement
from sfumato.privacy.checks.refusals import refuse_mixing_layers
from sfumato.privacy.engines.expanded_weights import NotPerLayer
from sfumato.privacy.engines.layered import METHODS, Layered
from sfumato.privacy.engines.one_at_a_time import one_at_a_time
from sfumato.privacy.engines.results import Gradients
from sfumato.privacy.numerics.precision import any_algorithm, full_precision

_MOVES = "changing one example moves the gradients of others"

_SIZE = "the number of examples in a batch moves the {} by {:.1e}"

_SUMS = 1e-12
"""Relative difference of norms that the order of sums in float64 explains, on any device."""

_ENOUGH = 32
"""Examples for which a pass is checked that serves as another's reference."""


def choose_method(engine: Layered, x: Tensor, y: Tensor) -> str:
    """The fastest method that is right for this model on batches like this one.

    Parameters that are zero have other values meanwhile: they would hide what is behind them.

    Raises:
        UserError: If one example can reach another.
    """
    model = engine.model
    refuse_mixing_layers(model)
    engine.passed_over.clear()
    with undisturbed(model), without_zeros(model), full_precision(x.device), any_algorithm():
        draws = Draws.for_model(model, engine.loss, x, y)
        engine.narrowest = narrowest(model, draws.x(engine.views))
        trials = [(engine, draws.like_x.dtype)]
        comparison: Comparison = "not at all"
        twin: Layered | None = None
        if engine.check:
            refuse_mixing_loss(engine, draws, x.shape[0])
            _refuse_mixing(engine, draws, x.shape[0])
            comparison = how_to_compare(model, draws.x(3))
            twin = double_of(engine, draws.x(engine.views), draws.y(1))
            trials = [*([(twin, torch.float64)] if twin else []), *trials]
        for method in METHODS[:-1]:
            for trial, dtype in trials:
                sizes: tuple[int, ...] = (2, 3)
                if trial is engine and engine.check and y.shape[0] > 3:
                    # With a compiled pass: that will be compared at full size itself.
                    sizes += (y.shape[0] if engine.precision is None else min(y.shape[0], _ENOUGH),)
                computed_in = engine.narrowest if trial is engine else dtype
                allowed = tolerance(computed_in, confirmed=len(trials) > 1)
                objection = _objection(
                    trial, method, draws, dtype, sizes, comparison, allowed, lambda: twin
                )
                if trial is engine and y.shape[0] > max(sizes) > 3 and method == "layers":
                    objection = objection or _outputs_by_size(engine, draws, y.shape[0], comparison)
                if objection and method == "layers" and trial.deferring:
                    # What the model does with a layer may only be possible if its gradients are.
                    for one, _ in trials:
                        one.defers = False
                    objection = _objection(
                        trial, method, draws, dtype, sizes, comparison, allowed, lambda: twin
                    )
                if objection and objection.startswith(_MOVES) and method == METHODS[-2]:
                    # The model ran on one example at a time, so it is the loss or what is kept.
                    raise UserError(
                        f"This model cannot be trained with differential privacy: {objection}, "
                        "even if each runs through the model alone. Look at the loss, and at what "
                        "model and loss keep between calls."
                    )
                if objection:
                    engine.passed_over[method] = objection
                    break
            else:
                return method
    return METHODS[-1]


def holds_at_size(engine: Layered, method: str, x: Tensor, y: Tensor) -> bool:
    """Tell whether a method chosen for batches of another size is right for those of this one.

    Raises:
        UserError: If one example can reach another in batches of this size.
    """
    model, dtype = engine.model, x.dtype
    if not engine.check:
        return True
    with undisturbed(model), without_zeros(model), full_precision(x.device), any_algorithm():
        draws = Draws.for_model(model, engine.loss, x, y)
        refuse_mixing_loss(engine, draws, x.shape[0])
        if x.shape[0] > 1:
            refuse_mixing_at(engine, draws, x.shape[0])
        comparison = how_to_compare(model, draws.x(3))
        allowed = tolerance(engine.narrowest, confirmed=True)
        sizes, double = (y.shape[0],), lambda: double_of(engine, draws.x(engine.views), draws.y(1))
        return _objection(engine, method, draws, dtype, sizes, comparison, allowed, double) is None


def found_mixing(engine: Layered) -> bool:
    """Whether examples moved each other's gradients where they ran through the model together."""
    return any(reason.startswith(_MOVES) for reason in engine.passed_over.values())


def _refuse_mixing(engine: Layered, draws: Draws, rows: int) -> None:
    """Change one example, in small batches and in one of full size, and look at the others.

    Raises:
        UserError: One example moves another's output or gradient, or the state of the model.
    """
    model, five = engine.model, draws.x(5)
    plans = [Plan(draws.x(2), [(0, "large"), (1, "other")])]
    plans += [Plan(five, [(j, KINDS[(j + k) % 5]) for j in range(5) for k in (0, 2)])]
    for plan in plans:
        _refuse_mixing_in(engine, draws, plan)
    if is_random(model, draws.x(3)):
        for k in range(1, 9):
            _refuse_mixing_in(engine, draws, Plan(five, [(2, "other")]), at=PROBE_SEED + k)
    for plan in image_plans(draws.like_x):
        try:
            _refuse_mixing_in(engine, draws, plan)
        except UserError:
            raise
        except Exception as error:
            if out_of_memory(error):
                raise
            # A model may refuse what its real inputs cannot be.
    if rows > 5:
        refuse_mixing_at(engine, draws, rows)


def refuse_mixing_at(engine: Layered, draws: Draws, rows: int) -> None:
    """Look at a batch of one size, of normally distributed rows and of images that are alike.

    Both ends are changed: what goes by the order of a batch reaches one way only. Examples that
    are much alike meet where there is room for few.

    Raises:
        UserError: As `_refuse_mixing`.
    """
    images = alike(image_rows(draws.like_x, rows))
    plans = [Plan(draws.x(rows), [(rows - 1, "other"), (0, "other")])]
    plans += [Plan(images, [(0, "darker"), (0, "opposite")])]
    for plan in plans:
        _refuse_mixing_in(engine, draws, plan)


def _refuse_mixing_in(engine: Layered, draws: Draws, plan: Plan, *, at: int = PROBE_SEED) -> None:
    y = draws.y(len(plan.x))
    # At full size the forward pass has to do: the engine's own gradients are looked at later.
    losses = (lambda out: engine.loss(out, y)) if len(plan.x) <= 5 else None
    found = how_examples_mix(engine.model, plan.x, changes=plan.changes, losses=losses, at=at)
    if found is not None:
        raise UserError(
            f"This model cannot be trained with differential privacy: {found}. What belongs to "
            "an example must depend on that example alone; look for statistics, sorts or rolls "
            "along the batch (`sfumato verify` shows the details)."
        )


def double_of(engine: Layered, x: Tensor, y: Tensor) -> Layered | None:
    """The engine on a copy of the model in float64, or None where there cannot be one.

    It is tried on one example with its target.
    """
    if all(p.dtype == torch.float64 for p in engine.model.parameters()):
        return None
    try:
        twin = copied(engine.model).double()
        x, y = widened(x), widened(y)
        one_at_a_time(twin, x, y, loss=engine.loss, views=engine.views)
        if narrowest(twin, x) != torch.float64:
            return None
        double = Layered(twin, loss=engine.loss, views=engine.views, check=False)
        double.prepare(x)
        return double
    except Exception:
        return None


def widened(t: Tensor) -> Tensor:
    """The tensor in float64; whole numbers as they are."""
    return _as(t, torch.float64)


def _as(t: Tensor, dtype: torch.dtype) -> Tensor:
    return t.to(dtype) if t.is_floating_point() else t


def _objection(
    engine: Layered,
    method: str,
    draws: Draws,
    dtype: torch.dtype,
    sizes: Iterable[int],
    comparison: Comparison,
    allowed: float,
    double: Callable[[], Layered | None],
) -> str | None:
    """Why a method is not to be used on this model, or None.

    Up to three examples are compared with the reference one by one, more of them by samples, which
    must be the same, up to rounding, in a batch of their own; in each size, no example's gradient
    may move with another's.
    """
    state = Snapshot(engine.model)
    run = _runner(engine, method, state)
    try:
        for examples in sizes:
            x, y = _as(draws.x(examples * engine.views), dtype), _as(draws.y(examples), dtype)
            if examples <= 3:
                changes = [(examples - 1, KINDS[-1])]
                if examples == 3 and dtype == draws.like_x.dtype:
                    # Rows may be put into an order that only such examples change.
                    changes += [(0, "zeros"), (0, CUT), (2, CUT), (1, "large"), (2, "opposite")]
                if said := _moves_with(run, x, y, changes, engine.views, run(x, y)):
                    return said
            if comparison == "not at all":
                continue
            with held(engine.model, comparison):
                ours = run(x, y)
                picks = range(examples) if examples <= 3 else (0, examples // 2, examples - 1)
                reference = _alone(engine, x, y, picks, state)
                worst = max(errors(picked(ours, picks), reference).values(), default=0.0)
                if examples <= 3:
                    worst = max(worst, bookkeeping_error(ours, reference))
                if not worst <= allowed:
                    return f"the gradients differ from the reference by {worst:.1e}"
                if examples > 3 and dtype != torch.float64:
                    some = picked(ours, picks)
                    if said := _by_size(engine, method, x, y, picks, some, run, comparison, double):
                        return said
                if examples > 3:
                    changes = [(examples // 3, KINDS[-1])]
                    if said := _moves_with(run, x, y, changes, engine.views, ours):
                        return said
    except UserError:
        raise
    except NotPerLayer as reason:
        return str(reason)
    except Exception as error:
        if out_of_memory(error):
            raise
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
    return None


def _runner(engine: Layered, method: str, state: Snapshot) -> Callable[[Tensor, Tensor], Gradients]:
    """A function that takes gradients by a method, each time from the same state."""

    def run(x: Tensor, y: Tensor) -> Gradients:
        seed(engine.model)
        try:
            return engine._run(method, x.clone(), y)
        finally:
            state.put_back()

    return run


def _by_size(
    engine: Layered,
    method: str,
    x: Tensor,
    y: Tensor,
    picks: Sequence[int],
    ours: Gradients,
    run: Callable[[Tensor, Tensor], Gradients],
    comparison: Comparison,
    double: Callable[[], Layered | None],
) -> str:
    """A sentence if picked examples are not the same in a batch of their own, up to rounding.

    Outputs are continuous, so rounding moves them little. Gradients jump where an activation lies
    at a kink: if they differ, the same batch in float64 decides, where hardly any does.

    Args:
        engine: The engine.
        method: The method that is tried.
        x: A batch of the size in use.
        y: Its targets.
        picks: The examples that are compared.
        ours: Their results in that batch.
        run: From inputs and targets to gradients by the method.
        comparison: How the model can be compared with itself.
        double: Returns the engine on a copy of the model in float64, if there can be one.
    """
    allowed = rounding(engine.narrowest)
    few = run(_rows_of(x, picks, engine.views), y[list(picks)])
    moved = 0.0
    if ours.outputs is not None and few.outputs is not None:
        moved = distance(few.outputs, ours.outputs)
    if not moved <= allowed:
        return _SIZE.format("outputs", moved)
    each = [
        max(errors(picked(ours, [k]), picked(few, [k])).values(), default=0.0)
        for k in range(len(picks))
    ]
    if max(each) <= allowed:
        return ""
    twin = double()
    if twin is None:
        # A kink is at hand for some examples, the size of the batch for all.
        return "" if min(each) <= allowed else _SIZE.format("gradients", min(each))
    with held(twin.model, comparison):
        state = Snapshot(twin.model)
        wide, targets = widened(x), widened(y)
        found = picked(_runner(twin, method, state)(wide, targets), picks)
        moved = max(errors(found, _alone(twin, wide, targets, picks, state)).values(), default=0.0)
    return "" if moved <= tolerance(torch.float64) else _SIZE.format("gradients", moved)


def _outputs_by_size(
    engine: Layered, draws: Draws, examples: int, comparison: Comparison
) -> str | None:
    """A sentence if the outputs of some examples are others in a batch of full size, or None."""
    if comparison == "not at all":
        return None
    x, picks = draws.x(examples * engine.views), (0, examples // 2, examples - 1)
    with held(engine.model, comparison):
        few = look(engine.model, _rows_of(x, picks, engine.views), None).outputs
        many = _rows_of(look(engine.model, x, None).outputs, picks, engine.views)
    moved = distance(few, many)
    return None if moved <= rounding(engine.narrowest) else _SIZE.format("outputs", moved)


def _rows_of(x: Tensor, picks: Iterable[int], views: int) -> Tensor:
    return torch.cat([x[i * views : (i + 1) * views] for i in picks])


def _moves_with(
    run: Callable[[Tensor, Tensor], Gradients],
    x: Tensor,
    y: Tensor,
    changes: Iterable[tuple[int, str]],
    views: int,
    baseline: Gradients,
) -> str:
    """A sentence if other examples' norms and losses move when one turns into something else."""
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
    engine: Layered, x: Tensor, y: Tensor, picks: Iterable[int], state: Snapshot
) -> Gradients:
    rows = _rows_of(x, picks, engine.views)
    try:
        return one_at_a_time(
            engine.model, rows, y[list(picks)], loss=engine.loss, views=engine.views
        )
    finally:
        state.put_back()
