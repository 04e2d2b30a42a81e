"""Whether the compiled pass fits a model: it is tried on random inputs before it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sfumato.privacy.compiled import Compiled, NotCompiled
from sfumato.privacy.isolation import LOOSE, without
from sfumato.privacy.precision import any_algorithm
from sfumato.privacy.probe import Draws, is_random, out_of_memory, without_zeros
from sfumato.privacy.replay import SETTLED
from sfumato.privacy.state import undisturbed
from sfumato.privacy.tracing import distance

if TYPE_CHECKING:
    from sfumato.privacy.layered import Layered


def compiled_pass(engine: Layered, x: Tensor, y: Tensor, precision: torch.dtype) -> Compiled | None:
    """The compiled pass for batches like this one, or None where it does not fit the model.

    It is compared, on random inputs, with the layered pass that was compared with the reference:
    in float32 up to rounding, in a narrower precision up to what autocast costs there. An example
    that turns into NaN must not move the norm or the loss of any other. Parameters that are zero
    have other values meanwhile: behind them there would be nothing to compare.
    """
    try:
        with undisturbed(engine.model), without_zeros(engine.model):
            with any_algorithm():
                compiled = Compiled(engine, x, y.shape[0], precision)
                draws = Draws.for_model(engine.model, engine.loss, x, y)
                if is_random(engine.model, draws.x(3)):
                    raise NotCompiled("the model draws random numbers")
            _compare(compiled, engine, draws.x(x.shape[0]), draws.y(y.shape[0]), precision)
        compiled.forget()  # The zeros are back.
        if x.is_cuda:
            # What stays is allocated from here on, and must not lie among what was only compared.
            torch.cuda.empty_cache()
    except Exception as reason:
        if out_of_memory(reason):
            raise
        engine.passed_over["compiled"] = (str(reason).splitlines() or [type(reason).__name__])[0]
        return None
    return compiled


def _compare(
    compiled: Compiled, engine: Layered, x: Tensor, y: Tensor, precision: torch.dtype
) -> None:
    """Raise `NotCompiled` if the passes differ in the first and the last examples.

    On a CUDA device it is the captured graphs that are compared, not what they were captured from.
    """
    few = min(4, y.shape[0])
    picks = torch.tensor(sorted({*range(few), *range(y.shape[0] - few, y.shape[0])}))
    rows = (picks.unsqueeze(1) * engine.views + torch.arange(engine.views)).flatten()
    chosen = torch.zeros(y.shape[0], 1, device=x.device, dtype=torch.float64)
    chosen[picks] = 1
    for _ in range(SETTLED if x.is_cuda else 1):
        ours = compiled(x, y)
        norms, losses = ours.squared_norms().clone(), ours.losses.clone()
        sums = [t.clone() for t in ours.weighted_sum(chosen)]
    every = torch.ones(len(picks), 1, device=x.device, dtype=torch.float64)
    with any_algorithm():
        reference = engine._run("layers", x[rows], y[picks])
    whole = reference.weighted_sum(every)
    lengths = reference.squared_norms().sum(1).sqrt()

    def off(sums: list[Tensor], squared: Tensor) -> tuple[float, float]:
        found = squared.sum(1).sqrt()
        apart = (found - lengths).abs() / lengths.clamp_min(1e-30)
        return _apart(sums, whole), float(apart.max())

    allowed = 2e-2, 2e-2
    if precision != torch.float32:
        with any_algorithm(), torch.autocast(x.device.type, precision):
            usual = engine._run("layers", x[rows], y[picks])
        costs = off(usual.weighted_sum(every), usual.squared_norms())
        allowed = max(5e-2, 1.5 * costs[0]), max(5e-2, 1.5 * costs[1])
    found = off(sums, norms[picks.to(x.device)])
    if not (found[0] <= allowed[0] and found[1] <= allowed[1]):
        raise NotCompiled(
            f"it differs from the layered pass by {found[0]:.1e}, its norms by {found[1]:.1e}, "
            f"where {allowed[0]:.1e} and {allowed[1]:.1e} are usual"
        )
    middle = y.shape[0] // 2
    changed = x.clone()
    changed[middle * engine.views : (middle + 1) * engine.views] = float("nan")
    after = compiled(changed, y)
    others = without(y.shape[0], middle).to(x.device)
    moved = max(
        distance(norms[others], after.squared_norms()[others]),
        distance(losses[others], after.losses[others]),
    )
    if moved > LOOSE.get(precision, 1e-2):
        raise NotCompiled(f"changing one example moves the gradients of others by {moved:.1e}")


def _apart(ours: list[Tensor], wanted: list[Tensor]) -> float:
    """The distance of two gradients, relative to the second."""
    pairs = list(zip(ours, wanted, strict=True))
    off = sum(float((a - b).double().square().sum()) for a, b in pairs)
    whole = sum(float(b.double().square().sum()) for _, b in pairs)
    return float((off / max(1e-60, whole)) ** 0.5)
