"""The check of the compiled pass on random inputs, before it is used."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from sfumato.memory import out_of_memory
from sfumato.privacy.checks.isolation import LOOSE, without
from sfumato.privacy.checks.model_under_test import Draws, is_random, without_zeros
from sfumato.privacy.engines.compiled import Compiled, Fused, NotCompiled
from sfumato.privacy.engines.cuda_graphs import SETTLED
from sfumato.privacy.engines.keyed_draws import RowSeeds
from sfumato.privacy.engines.operators import Operators
from sfumato.privacy.engines.results import Gradients
from sfumato.privacy.numerics.distance import distance
from sfumato.privacy.numerics.model_state import PROBE_SEED, undisturbed
from sfumato.privacy.numerics.precision import any_algorithm

_TOO_MUCH = 1 + 1e-4
"""Allowed excess of an example's contribution over its norm: norms are rounded up by more."""

_TOO_LITTLE = 1.3
"""Allowed excess of norms: ghost norms of standardised filters are slightly too large."""


def compiled_pass(
    operators: Operators, x: Tensor, y: Tensor, precision: torch.dtype
) -> Compiled | str:
    """The compiled pass for batches like this one, or the reason why it does not fit the model.

    It is compared, on random inputs, with the pass by operators, which the reference confirmed:
    in float32 up to rounding, in a narrower precision up to the error of autocast. An example's
    contribution must not exceed its norm. An example that turns into NaN must not move the norm or
    the loss of any other. Parameters that are zero have other values meanwhile: they would hide
    everything behind them. A model that draws random numbers draws the same in both.
    """
    objective = operators.objective
    try:
        with undisturbed(objective.model, objective.loss), without_zeros(objective.model):
            with any_algorithm():
                draws = Draws.for_objective(objective, x, y)
                random = is_random(objective.model, draws.x(3))
                compiled = Compiled(objective, x, y.shape[0], precision, random=random)
            _compare(compiled, operators, draws.x(x.shape[0]), draws.y(y.shape[0]), precision)
        compiled.forget()  # The zeros are restored.
        if x.is_cuda:
            # Long-lived tensors are allocated from here on, and must not lie between temporary
            # ones.
            torch.cuda.empty_cache()
    except Exception as reason:
        if out_of_memory(reason):
            raise
        return (str(reason).splitlines() or [type(reason).__name__])[0]
    return compiled


def _compare(
    compiled: Compiled, operators: Operators, x: Tensor, y: Tensor, precision: torch.dtype
) -> None:
    """Raise `NotCompiled` if the passes differ in the first and the last examples.

    On a CUDA device the captured graphs are compared, not the functions that they were captured
    from.

    Guarantee: Each compared example adds no more than its norm, in any precision.
    """
    few, views = min(4, y.shape[0]), operators.objective.views
    picks = sorted({*range(few), *range(y.shape[0] - few, y.shape[0])})
    rows = [i * views + view for i in picks for view in range(views)]
    keys = RowSeeds(PROBE_SEED).keys(len(x), views, x.device)
    for _ in range(SETTLED if x.is_cuda else 1):
        ours = compiled.gradients(x, y, keys)
        norms, losses = ours.squared_norms().clone(), ours.losses.clone()
        _sum_of(picks, ours)
    _check_lengths(ours, norms, picks)
    with any_algorithm():
        reference = operators.gradients(x[rows], y[picks], keys[rows])
    found = _apart(ours, picks, reference)
    allowed = 2e-2, 1e-1
    if precision != torch.float32:
        with any_algorithm(), torch.autocast(x.device.type, precision):
            narrow = operators.gradients(x[rows], y[picks], keys[rows])
        usual = _apart(narrow, range(len(picks)), reference)
        # One example alone may differ by much: the gradient of a confident prediction is mostly
        # rounding.
        allowed = max(5e-2, 2 * usual[0]), max(3e-1, 3 * usual[1])
    if not (found[0] <= allowed[0] and found[1] <= allowed[1]):
        raise NotCompiled(
            f"it differs from the pass by operators by {found[0]:.1e}, for one example by "
            f"{found[1]:.1e}, where {allowed[0]:.1e} and {allowed[1]:.1e} are usual"
        )
    middle = y.shape[0] // 2
    changed = x.clone()
    changed[middle * views : (middle + 1) * views] = float("nan")
    after = compiled.gradients(changed, y, keys)
    others = without(y.shape[0], middle).to(x.device)
    moved = max(
        distance(norms[others], after.squared_norms()[others]),
        distance(losses[others], after.losses[others]),
    )
    if moved > LOOSE.get(precision, 1e-2):
        raise NotCompiled(f"changing one example moves the gradients of others by {moved:.1e}")


def _sum_of(picks: Iterable[int], found: Gradients | Fused) -> list[Tensor]:
    """The sum of some examples' gradients, not clipped."""
    weights = torch.zeros(len(found.losses), 1, device=found.losses.device, dtype=torch.float64)
    weights[list(picks)] = 1
    return found.weighted_sum(weights)


def _check_lengths(ours: Fused, squared: Tensor, picks: Iterable[int]) -> None:
    """Raise `NotCompiled` where an example adds more than its norm, or far less."""
    lengths = squared.sum(1).sqrt()
    least = 1e-6 * float(lengths.max())
    for i in picks:
        added, said = _length(_sum_of([i], ours)), float(lengths[i])
        if not (added <= _TOO_MUCH * said + least and said <= _TOO_LITTLE * added + least):
            raise NotCompiled(f"an example of norm {said:.4g} adds {added:.4g} to the sum")


def _apart(ours: Gradients | Fused, picks: Sequence[int], wanted: Gradients) -> tuple[float, float]:
    """Relative error of the sum of the picked examples, and the largest of any one of them.

    `wanted` has these examples and no others; distances are relative to it.
    """

    def pair(mine: Sequence[int], theirs: Sequence[int]) -> tuple[float, float]:
        a, b = _sum_of(mine, ours), _sum_of(theirs, wanted)
        return _length([s - t for s, t in zip(a, b, strict=True)]), _length(b)

    off, whole = pair(picks, range(len(picks)))
    alone = [pair([mine], [theirs]) for theirs, mine in enumerate(picks)]
    least = max(1e-30, 1e-2 * max(length for _, length in alone))
    return off / max(whole, 1e-30), max(off / max(length, least) for off, length in alone)


def _length(gradient: list[Tensor]) -> float:
    """The norm of a gradient, which may be NaN."""
    return math.sqrt(sum(float(part.double().square().sum()) for part in gradient))
