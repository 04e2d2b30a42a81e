"""Checks while training, on the real examples and the current weights.

The checks before the first batch use random inputs and initial weights. A model may misbehave only
with real data, trained weights or after some time; here it is compared with itself while it trains.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from sfumato.errors import UserError
from sfumato.memory import give_back, out_of_memory
from sfumato.privacy.checks.batches import check_inputs, explained
from sfumato.privacy.checks.examples_alone import Alone, agree, run_alone
from sfumato.privacy.checks.isolation import LOOSE
from sfumato.privacy.checks.random_inputs import random_rows
from sfumato.privacy.engines.results import PerExampleGradients
from sfumato.privacy.numerics.distance import distance
from sfumato.privacy.numerics.model_state import RandomState, Snapshot, undisturbed

if TYPE_CHECKING:
    from sfumato.privacy.per_example import PerExample

EVERY = 550
"""Average number of physical batches per check; a check takes up to five times as long as one."""

KINDS = ("copies", "zeros", "random", "alone")
"""Replacements of the examples that are not compared; `alone` removes them."""

_SINGLE = "single"
"""Replacement before a statement, in a compiled pass: one example, by outputs, among its copies."""

_MIXED = "mixed"
"""Replacements in the first batch of a size: copies and zeros in turns, and one example of NaN."""

_PROPOSED = (_MIXED, "alone")
"""Replacements by which a proposed engine is confirmed."""

_FEW = 2
"""Number of examples that run alone, and that are compared among random ones."""

_SMALL = 5
"""Number of examples up to which a batch is as small as those of the checks before."""

_MANY = 16
_NUMBERS = 2**26
"""Number of examples that run alone before a statement, and the most numbers in their gradients."""

_ROUNDING = 5.0
"""Multiple of `LOOSE` that two passes over one shape may differ by: libraries sum in any order."""

STOPPED = (
    "Training has stopped: on this batch of the data and with the weights of now, this model or "
    "its loss lets one example reach another, or keeps something between batches, so that clipping "
    "bounds nothing. Nothing computed from this batch was released. Look for what depends on the "
    "whole batch (means, maxima, sorts, early exits, conditions such as `if x.min() >= 0`), in the "
    "loss too, and for what model or loss write down when they run: attributes, buffers, hooks, "
    "`.data`, extra state, variables outside."
)
"""The whole message: it must say nothing about the data."""


@dataclass
class _Shown:
    """Results of some examples after a pass, and the state that it left behind."""

    tensors: list[Tensor]
    state: Snapshot


@dataclass
class _Compared:
    """The gradients of a batch, and how they compare with those among other examples.

    Attributes:
        found: The gradients.
        roughly: Whether nothing moved by more than rounding explains.
        exactly: Whether nothing moved by a bit either, all replacements ran, all examples are
            finite, and no parameter that is zero hid what lies behind it.
    """

    found: PerExampleGradients
    roughly: bool
    exactly: bool


class SpotCheck:
    """Comparison of some examples of a physical batch with themselves among others, and alone.

    The operating system's randomness chooses the batches and examples that are checked, so no
    model can predict them. The first batch is always checked, as is the first after the engine has
    forgotten what it knew of the model, and the last before a statement.

    Guarantee: In a batch that was checked, losses, outputs, norms and the weighted sum of the
    compared examples are the same, up to rounding, whatever the other examples are. The state that
    the model and the loss keep after the batch does not depend on the others either, and parameters
    have the values that they had. The model's state and all random states continue as if there had
    been no check.
    """

    def __init__(self) -> None:
        self._begun = False
        self._last: tuple[Tensor, Tensor] | None = None
        self._modes: dict[nn.Module, bool] = {}

    def gradients(self, engine: PerExample, x: Tensor, y: Tensor) -> PerExampleGradients:
        """The per-example gradients of a physical batch, which is checked from time to time.

        Raises:
            UserError: One example reached another.
        """
        if not engine.check or not len(y):
            return engine(x, y)
        self._begun = self._begun and engine.engine is not None
        check_inputs(x, y, engine.views)
        with explained(engine.objective, x, y):
            found = _confirmed(engine, x, y)
            if found is None:
                kinds = self._kinds()
                found = _checked(engine, x, y, kinds) if kinds else engine(x, y)
        # One example alone has no others that could reach it.
        self._begun = self._begun or len(y) > 1
        if len(y) > 1 or self._last is None:
            self._last = x, y
            self._modes = {module: module.training for module in engine.model.modules()}
        return found

    def at_end(self, engine: PerExample) -> bool:
        """Check the last batch with the current weights, in the modes that it ran in.

        Returns:
            Whether it was checked: not if the model is no longer trained, or was changed or moved
            since, or if checks are turned off.

        Raises:
            UserError: One example reached another.
        """
        if self._last is None or not engine.check:
            return engine.check
        x, y = self._last
        parameters = engine.trainable
        there = all(p.device == x.device for p in parameters.values())
        now = {module: module.training for module in engine.model.modules()}
        try:
            for module in now:
                module.training = self._modes.get(module, module.training)
            if not (there and parameters and engine.knows(x, y)):
                return False
            self.check(engine, x, y)
        finally:
            for module, mode in now.items():
                module.training = mode
        return True

    def check(self, engine: PerExample, x: Tensor, y: Tensor) -> None:
        """Check a batch with all replacements, and restore the state of before.

        Raises:
            UserError: One example reached another.
        """
        check_inputs(x, y, engine.views)
        singles = 0 if engine.precision_for(x) is None else min(_MANY, len(y))
        trained = sum(p.numel() for p in engine.trainable.values())
        alone = max(_FEW, min(_MANY, _NUMBERS // max(1, trained)))
        with explained(engine.objective, x, y), undisturbed(engine.model, engine.loss):
            _checked(engine, x.clone(), y, (*KINDS, *(_SINGLE,) * singles), alone)

    def _kinds(self) -> tuple[str, ...]:
        """The replacements to try on this batch: all, one, or mostly none."""
        if not self._begun:
            return KINDS
        return (secrets.choice(KINDS),) if secrets.randbelow(EVERY) == 0 else ()


def same_among_others(run: Callable[[Tensor], Tensor], x: Tensor, found: Tensor) -> bool:
    """Tell whether rows of a result stay the same if other rows of the input are replaced.

    Args:
        run: From inputs to one row for each.
        x: The inputs.
        found: The result of `run` for them.
    """
    half = _half(len(x)).to(x.device)
    allowed = _ROUNDING * LOOSE.get(found.dtype, 1e-2)
    for picks, others in ((half, x.flip(0)), (~half, torch.zeros_like(x))):
        again = run(torch.where(picks.view(-1, *(1 for _ in x.shape[1:])), x, others))
        if not distance(found[picks], again[picks]) <= allowed:
            return False
    return True


def _confirmed(engine: PerExample, x: Tensor, y: Tensor) -> PerExampleGradients | None:
    """The gradients of the first batch of a size, if it shows that they are right.

    That saves most checks on random batches of this size. These follow where anything moves, be it
    by rounding, and decide, so that neither the words of an error nor the choice of an engine tells
    of the data.
    """
    if len(y) <= _SMALL:
        return None
    with engine.proposal(x, y) as keep:
        if keep is None:
            return None
        kept, drawn = Snapshot(engine.model, engine.loss), RandomState(engine.model)
        try:
            compared = _compare(engine, x.clone(), y, _PROPOSED)
            if compared.exactly:
                keep()
                return compared.found
        except Exception as error:  # Random batches say what is wrong, if it is not the data.
            if out_of_memory(error):
                give_back()
    kept.restore()
    drawn.restore()
    return None


def _checked(
    engine: PerExample, x: Tensor, y: Tensor, kinds: Sequence[str], few: int = _FEW
) -> PerExampleGradients:
    """The gradients of a batch, after those of the same batch with other examples in it.

    Raises:
        UserError: One example reached another.
    """
    engine.settle(x, y)
    compared = _compare(engine, x, y, kinds, few)
    if not compared.roughly:
        raise UserError(STOPPED)
    return compared.found


def _compare(
    engine: PerExample, x: Tensor, y: Tensor, kinds: Sequence[str], few: int = _FEW
) -> _Compared:
    """The gradients of a batch, beside those of the same batch with other examples in it.

    The batch itself runs last: a captured graph overwrites the gradients of the pass before.

    Args:
        engine: The engine.
        x: Inputs.
        y: Targets.
        kinds: Replacements to try.
        few: Number of examples that run alone.
    """
    given = x.clone()  # A model may change its inputs in place, and a loss its targets.
    kept, drawn = Snapshot(engine.model, engine.loss), RandomState(engine.model)
    replaced: list[tuple[str, Tensor, _Shown]] = []
    alone: Alone | None = None
    picks, singles = _half(len(y)), iter(_order(len(y)))
    try:
        for kind in kinds:
            if kind == "alone":
                alone = run_alone(engine, given, y, torch.tensor(_order(len(y))[:few]))
                # A model that draws random numbers draws others for an example alone.
                alone = alone if drawn.same(RandomState(engine.model)) else None
                kept.restore()
                drawn.restore()
                continue
            looked_at = picks
            if kind == "random":
                looked_at = _few(len(y))
            elif kind == _SINGLE:
                looked_at = torch.arange(len(y)) == next(singles)
            picks = ~picks
            if (shown := _among(engine, given, y, looked_at, kind, kept)) is not None:
                replaced.append((kind, looked_at, shown))
            kept.restore(None if shown is None else shown.state)
            drawn.restore()
    except BaseException:
        kept.restore()
        drawn.restore()
        raise
    found = engine(x, y.clone())
    norms, state = found.squared_norms(), Snapshot(engine.model, engine.loss, like=kept)
    fine = state.same_parameters(kept)
    everything = len(replaced) == len(kinds) - kinds.count("alone")
    exactly = everything and bool(norms.isfinite().all() & found.losses.isfinite().all())
    allowed = _ROUNDING * LOOSE.get(engine.precision_for(x) or engine.narrowest, 1e-2)
    for kind, looked_at, shown in replaced:
        real = _tensors(found, norms, looked_at, engine.views, kind)
        moved = max(map(distance, real, shown.tensors), default=0.0)
        fine = fine and moved <= allowed and state.first_difference(shown.state) is None
        exactly = exactly and moved == 0 and _nothing_hidden(engine, real)
    repeats = drawn.same(RandomState(engine.model)) and kept.same_draws(state)
    if alone is not None and repeats:
        kept.restore()
        fine = fine and agree(engine, found, norms, alone, given, y)
        state.restore()
        drawn.restore()
    exactly = exactly and fine and repeats and (alone is not None or "alone" not in kinds)
    return _Compared(found, fine, exactly)


def _nothing_hidden(engine: PerExample, tensors: Sequence[Tensor]) -> bool:
    """Tell whether no parameter that is zero hides others: gradients show through it.

    Args:
        engine: The engine.
        tensors: The result of `_tensors`, which ends with the gradient of each parameter.
    """
    parameters = list(engine.trainable.values())
    if all(bool(p.any()) for p in parameters):
        return True
    return all(bool(gradient.any()) for gradient in tensors[-len(parameters) :])


def _half(examples: int) -> Tensor:
    """A random half of the examples, as a mask."""
    mask = torch.zeros(examples, dtype=torch.bool)
    mask[_order(examples)[: examples // 2]] = True
    return mask


def _few(examples: int) -> Tensor:
    """A few random examples, never all, as a mask."""
    mask = torch.zeros(examples, dtype=torch.bool)
    mask[_order(examples)[: min(_FEW, examples - 1)]] = True
    return mask


def _order(examples: int) -> list[int]:
    """A random order from the operating system's randomness."""
    return secrets.SystemRandom().sample(range(examples), examples)


def _among(
    engine: PerExample, x: Tensor, y: Tensor, picks: Tensor, kind: str, kept: Snapshot
) -> _Shown | None:
    """Results of picked examples among replacements; None if the model refuses these."""
    rows = picks.repeat_interleave(engine.views).to(x.device)
    if kind == "random" or not bool(picks.any()):
        other = random_rows(x, len(x))
    elif kind == "zeros":
        other = torch.zeros_like(x)
    else:
        one = int(picks.nonzero()[secrets.randbelow(int(picks.sum()))])
        other = x[one * engine.views : (one + 1) * engine.views].repeat(
            len(y), *(1 for _ in x.shape[1:])
        )
    if kind == _MIXED:
        replaced = picks.logical_not().nonzero().flatten().tolist()
        secrets.SystemRandom().shuffle(replaced)
        by_example = other.view(len(y), engine.views, *x.shape[1:])
        by_example[replaced[::2]] = 0
        if x.is_floating_point():
            by_example[replaced[-1]] = float("nan")
    changed = torch.where(rows.view(-1, *(1 for _ in x.shape[1:])), x, other)
    own = picks.to(y.device).view(-1, *(1 for _ in y.shape[1:]))
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
        changed = changed.contiguous(memory_format=torch.channels_last)
    try:
        found = engine(changed, torch.where(own, y, y.roll(1, 0)))
    except UserError:
        raise
    except Exception as error:
        if out_of_memory(error):
            raise
        return None
    tensors = _tensors(found, found.squared_norms(), picks, engine.views, kind)
    return _Shown([t.clone() for t in tensors], Snapshot(engine.model, engine.loss, like=kept))


def _tensors(
    found: PerExampleGradients, norms: Tensor, picks: Tensor, views: int, kind: str
) -> list[Tensor]:
    """Losses, outputs, norms and a weighted sum of the picked examples.

    Of a single example only the outputs: its gradient may be rounding errors of cancelled terms.
    """
    own = picks.to(found.losses.device)
    if kind == _SINGLE and found.outputs is not None:
        return [found.outputs[own.repeat_interleave(views)]]
    weights = torch.linspace(0.5, 1, len(own), dtype=torch.float64, device=own.device) * own
    outputs = [] if found.outputs is None else [found.outputs[own.repeat_interleave(views)]]
    sums = found.weighted_sum(weights.unsqueeze(1))
    return [found.losses[own], *outputs, norms[own], *sums]
