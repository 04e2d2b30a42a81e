"""The search for examples that reach each other: change one, and compare all the others.

Works on the plain model, forward and backward, without any of the engine's own code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from sfumato.memory import out_of_memory
from sfumato.privacy.checks.mixing_layer import culprit
from sfumato.privacy.checks.random_inputs import replacement
from sfumato.privacy.engines.objective import shape_complaint
from sfumato.privacy.numerics.distance import distance
from sfumato.privacy.numerics.model_state import PROBE_SEED, Snapshot, copied, even_draws, seed
from sfumato.privacy.numerics.precision import widened

LOOSE = {torch.float64: 1e-10, torch.float32: 2e-5}
"""Largest relative difference by rounding, where two equal runs do not give the same bits."""

SUMS = 1e-12
"""Relative difference that the order of sums in float64 explains, on any device."""


def without(rows: int, *changed: int) -> Tensor:
    """All rows but those that are changed, as a mask."""
    return ~torch.isin(torch.arange(rows), torch.tensor(changed))


@dataclass
class Seen:
    """The results of one forward and backward pass of the plain model."""

    outputs: Tensor
    input_gradients: Tensor | None
    state: Snapshot


Losses = Callable[[Tensor], Tensor]
"""From outputs to one loss per row, targets included."""

Change = Mapping[int, str]
"""Rows to change at once, each with its kind of replacement (one of `KINDS`)."""


def look(
    model: nn.Module,
    x: Tensor,
    losses: Losses | None,
    *,
    at: int = PROBE_SEED,
    before: Snapshot | None = None,
) -> Seen:
    """Run the model from a fixed random state, with the gradient of the summed loss if asked.

    The model's state is restored afterwards; `before` is its snapshot, if there is one already.
    """
    before = before or Snapshot(model)
    seed(model, at)
    gradients: Tensor | None = None
    after: Snapshot | None = None
    try:
        with torch.set_grad_enabled(losses is not None), even_draws(model):
            leaf = x.clone()
            if losses is not None and x.is_floating_point():
                leaf.requires_grad_()
            # A model may change its input in place, which autograd forbids on a leaf.
            out = model(leaf * 1 if leaf.requires_grad else leaf)
            if losses is not None and leaf.requires_grad and out.requires_grad:
                total = losses(out).sum()
                (gradients,) = torch.autograd.grad(total, [leaf], allow_unused=True)
        after = Snapshot(model, like=before)
    finally:
        before.restore(after)
    return Seen(out.detach() if isinstance(out, Tensor) else out, gradients, after)


@dataclass(frozen=True)
class Mixing:
    """Evidence that one example reached another.

    Attributes:
        what: What moved: 'outputs', 'gradients', or the model's 'state'.
        how: A sentence.
        amount: The difference relative to the largest value; NaN where that has no meaning.
        where: The layer, if it was found.
    """

    what: str
    how: str
    amount: float
    where: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.how}" if self.where else self.how


def how_examples_mix(
    model: nn.Module,
    x: Tensor,
    *,
    changes: Iterable[Change],
    losses: Losses | None = None,
    at: int = PROBE_SEED,
    before: Snapshot | None = None,
) -> Mixing | None:
    """Run the model with some examples changed, and compare everything of the others.

    Differences that rounding may make are looked for in float64, if the model runs in it. Where
    two examples that are changed at once move others, or fail, each is changed by itself.

    Args:
        model: The model, in the mode in which it will run.
        x: Random inputs.
        changes: Rows to change at once, one pass for each item.
        losses: If given, gradients with respect to the inputs are compared too.
        at: Seed of the model's own random numbers.
        before: A snapshot of the model as it is now, if there is one already.

    Returns:
        The evidence that one example reached another, or None.
    """
    rows = x.shape[0]
    before = before or Snapshot(model)
    baseline = look(model, x, losses, at=at, before=before)
    if complaint := shape_complaint(baseline.outputs, rows):
        return Mixing("outputs", complaint, float("nan"))
    tolerance: float | None = None
    computed = x.dtype if x.is_floating_point() else baseline.outputs.dtype
    for change in changes:
        changed = x
        for j, kind in change.items():
            changed = replacement(changed, j, kind)
        alone = [{j: kind} for j, kind in change.items()] if len(change) > 1 else []
        again = partial(how_examples_mix, model, x, losses=losses, at=at, before=before)
        try:
            seen = look(model, changed, losses, at=at, before=before)
        except Exception as error:
            if out_of_memory(error):
                raise
            # A model may refuse values that its real inputs never have; that is no leak.
            if alone and (found := again(changes=alone)) is not None:
                return found
            continue
        others = without(rows, *change)
        amount, what = _moved(baseline, seen, others)
        if amount and tolerance is None:
            repeated = look(model, x, losses, at=at, before=before)
            exact = _moved(baseline, repeated, torch.ones(rows, dtype=torch.bool))[0] == 0
            tolerance = 0.0 if exact else LOOSE.get(computed, 1e-2)
        rounds = amount <= LOOSE.get(computed, 0.0)
        if not amount <= (tolerance or 0.0) and not (
            rounds and _vanishes_in_double(model, (x, changed), losses, others, at)
        ):
            if alone and (found := again(changes=alone)) is not None:
                return found
            where = culprit(
                model,
                lambda: look(model, x, losses, at=at),
                lambda changed=changed: look(model, changed, losses, at=at),  # type: ignore[misc]
                others,
            )
            return Mixing(what, _sentence(change, what, amount), amount, where)
        if name := baseline.state.first_difference(seen.state):
            how = f"the forward pass keeps what it has seen of the data in '{name}'"
            return Mixing("state", how, float("nan"))
    return None


def _sentence(change: Change, what: str, amount: float) -> str:
    """Say that others moved with the changed examples."""
    many = "one example" if len(change) == 1 else "some examples"
    if set(change.values()) == {"not finite"}:
        return f"making {many} NaN moves the {what} of the others"
    return f"changing {many} moves the {what} of the others by {amount:.1e}"


def _vanishes_in_double(
    model: nn.Module,
    inputs: tuple[Tensor, Tensor],
    losses: Losses | None,
    others: Tensor,
    at: int,
) -> bool:
    """Tell whether the other rows move by rounding alone, which is a million times less in float64.

    A library may add in another order where another number of rows takes a branch.
    """
    try:
        twin = copied(model).double()
        first, second = (look(twin, widened(t), losses, at=at) for t in inputs)
    except Exception as error:
        if out_of_memory(error):
            raise
        return False  # The model does not run in float64.
    return _moved(first, second, others)[0] <= SUMS


def _moved(baseline: Seen, seen: Seen, others: Tensor) -> tuple[float, str]:
    if shape_complaint(seen.outputs, baseline.outputs.shape[0]):
        return float("inf"), "outputs"
    others = others.to(baseline.outputs.device)
    amount = distance(baseline.outputs[others], seen.outputs[others])
    if amount:
        return amount, "outputs"
    if baseline.input_gradients is None or seen.input_gradients is None:
        return 0.0, ""
    return distance(baseline.input_gradients[others], seen.input_gradients[others]), "gradients"
