"""Per-example gradients of any model, by the fastest engine that is right for it.

The checks that find it run on the model itself before the first batch counts.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from sfumato.errors import UserError
from sfumato.memory import give_back, out_of_memory
from sfumato.privacy.checks.announcement import announced, on_stderr
from sfumato.privacy.checks.batches import check_device, check_inputs, explained
from sfumato.privacy.checks.checked_sizes import CheckedSizes
from sfumato.privacy.checks.compiled_pass import compiled_pass
from sfumato.privacy.checks.engine_choice import choose_engine, holds_at_size
from sfumato.privacy.checks.isolation_proof import Proof, prove_isolation
from sfumato.privacy.checks.refusals import (
    refuse_loss,
    refuse_mixing_layers,
    refuse_parameters,
    refuse_precision,
    refuse_what_is_no_module,
)
from sfumato.privacy.engines import tracing
from sfumato.privacy.engines.compiled import Compiled, Fused
from sfumato.privacy.engines.engine import Engine
from sfumato.privacy.engines.keyed_draws import RowSeeds
from sfumato.privacy.engines.leaves import NotPerOperator
from sfumato.privacy.engines.objective import Loss, Objective, cross_entropy
from sfumato.privacy.engines.one_at_a_time import OneAtATime
from sfumato.privacy.engines.operators import Operators
from sfumato.privacy.engines.padding import padded, with_room
from sfumato.privacy.engines.paths import Path
from sfumato.privacy.engines.results import Gradients, no_gradients
from sfumato.privacy.engines.unit_loss import UnitLoss
from sfumato.privacy.numerics.model_state import even_draws, hook_keys, plain_settings
from sfumato.privacy.numerics.precision import compiled_precision


class PerExample:
    """Per-example gradients of a model's loss, in physical batches.

    Args:
        model: Any module from `(rows, ...)` to outputs; frozen parameters are left alone.
        loss: From outputs and targets to one loss per row.
        views: Rows per example, in example-major order. The loss of an example is the mean over
            its views, so its gradient is averaged over them before anything is clipped.
        check: Compare with the one-example-at-a-time reference before the first batch.
        precision: Compute in this precision where a compiled pass fits the model; norms and sums
            are in float32 whatever it is. `auto` is bfloat16 on a GPU that computes in it, for a
            model in float32. None for the model's own precision, not compiled.

    Attributes:
        objective: The model, its loss and its views.
        seeds: Seeds of the random numbers that the model draws for the rows of the next batch;
            PyTorch's own generators if None.
        engine: The engine of the last batch, unless a compiled pass ran it; None before.
        passed_over: Faster engines that were not used, or a faster way to run the compiled one, and
            the reasons.
        narrowest: The least precise floating-point type that the model computes in.
        proof: Whether isolation is proved besides being tested; None until `prove` is called.
        durations: Seconds that checks and compilation have taken so far.
        say: Receives a line about checks that take more than a second; it goes to stderr.

    Guarantee: Before the first batch of a new input shape, and again before one of a larger size
    (batches are padded to few sizes; an example of padding adds exactly nothing), this very model
    is run on random inputs and targets. First with one example changed: if another example's output
    or the state that the model keeps moves, a `UserError` is raised. Then its per-example gradients
    are compared with one-example-at-a-time autograd; an engine that disagrees, or whose gradients
    of one example move with another, is never used. Layers known to mix examples are refused by
    name.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        loss: Loss = cross_entropy,
        views: int = 1,
        check: bool = True,
        precision: torch.dtype | Literal["auto"] | None = None,
    ) -> None:
        if views < 1:
            raise UserError(f"An example needs at least one view, not {views}.")
        refuse_what_is_no_module(model)
        refuse_precision(precision)
        model = getattr(model, "_orig_mod", model)  # The module that torch.compile was given.
        refuse_mixing_layers(model)
        refuse_parameters(model)
        refuse_loss(loss)
        self.objective = Objective(model, loss, views)
        self.check, self.precision = check, precision
        self.engine: Engine | None = None
        self.narrowest = torch.float32
        self.passed_over: dict[str, str] = {}
        self.proof: Proof | None = None
        self.say: Callable[[str], None] = on_stderr
        self.durations = {"checks": 0.0, "compilation": 0.0}
        self.seeds: RowSeeds | None = None
        self._compiled: dict[object, dict[object, Compiled | None]] = {}
        self._checked = CheckedSizes()
        self._said = False

    @property
    def model(self) -> nn.Module:
        """The model."""
        return self.objective.model

    @property
    def loss(self) -> Loss:
        """The loss function, from outputs and targets to one loss per row."""
        return self.objective.loss

    @property
    def views(self) -> int:
        """Rows per example."""
        return self.objective.views

    @property
    def trainable(self) -> dict[str, nn.Parameter]:
        """The parameters to train, by name, shared ones once."""
        return self.objective.trainable

    @property
    def method(self) -> str | None:
        """The name of the engine of the last batch: `operators`, `torch.func` or `loop`."""
        return None if self.engine is None else self.engine.name

    def paths(self) -> list[Path]:
        """The path of each module; complete once a first batch has been seen."""
        if self.engine is not None and not isinstance(self.engine, Operators):
            count = sum(p.numel() for p in self.trainable.values())
            return [Path("(whole model)", type(self.model).__name__, self.engine.name, count)]
        engine = self.engine or Operators(self.objective)
        return engine.paths()

    def prove(self, x: Tensor, y: Tensor) -> Proof:
        """Try to prove, for all inputs like these, that examples do not reach each other."""
        self.proof = prove_isolation(self.model, self.loss, x, y)
        return self.proof

    def __call__(self, x: Tensor, y: Tensor) -> Gradients | Fused:
        """Per-example gradients for `len(y)` examples of `views` rows each."""
        check_inputs(x, y, self.views)
        if not len(y):
            return no_gradients(x, self.trainable)
        with explained(self.objective, x, y):
            return self._gradients(x, y)

    def _gradients(self, x: Tensor, y: Tensor) -> Gradients | Fused:
        parameters, examples = self.trainable, y.shape[0]
        chosen = self._chosen(x, y, tuple(parameters))
        if chosen is None or self._checked.is_wasteful(examples, chosen[1]):
            chosen = self._choose(x, y)
            parameters = self.trainable  # A model may add or freeze some in its first call.
        self.engine, size = chosen
        if size > examples:
            x, y = padded(x, y, size, self.views)
        before = [(p._version, p.data_ptr()) for p in parameters.values()]
        found = self._pass(x, y, parameters)
        for (name, p), own in zip(parameters.items(), before, strict=True):
            if (p._version, p.data_ptr()) != own:
                raise UserError(
                    f"The model writes into its parameter '{name}' when it runs: what it has seen "
                    "of the data would be released without noise. Training cannot go on."
                )
        return found.some(slice(examples)) if size > examples else found

    def at_once(self, x: Tensor, y: Tensor) -> int:
        """Number of examples of a batch to process at once: half of it, if that saves a check."""
        check_inputs(x, y, self.views)
        known = self._checked.of(self._signature(x, y, tuple(self.trainable)))
        most, examples = max(known, default=0), max(1, y.shape[0])
        halved = self.check and len(known) > 1 and most < examples <= 2 * most
        return -(-examples // 2) if halved else examples

    def knows(self, x: Tensor, y: Tensor) -> bool:
        """Tell whether batches like this one have been checked, with the model as it is now."""
        return self._chosen(x, y, tuple(self.trainable)) is not None

    def as_run(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets as they run, padded to a size that was checked."""
        chosen = self._chosen(x, y, tuple(self.trainable))
        return padded(x, y, chosen[1] if chosen else y.shape[0], self.views)

    def settle(self, x: Tensor, y: Tensor) -> None:
        """Choose and check the engine for batches like this one, unless that was done before."""
        check_inputs(x, y, self.views)
        with explained(self.objective, x, y):
            chosen = self._chosen(x, y, tuple(self.trainable)) or self._choose(x, y)
        self.engine = chosen[0]

    @contextmanager
    def proposal(self, x: Tensor, y: Tensor) -> Iterator[Callable[[], None] | None]:
        """Run with an engine for batches of a new size that small batches speak for.

        Yields:
            A function that keeps the engine: to be called once a batch of this size was compared
            with itself, and nothing moved. None if no size is new, or it needs random batches.
        """
        kind = self._signature(x, y, tuple(self.trainable))
        known = self._checked.find(kind, len(y), padding=True) or self.precision_for(x) is not None
        if known or (self._checked.of(kind) and not self._checked.repeats(kind)):
            yield None
            return
        self.engine, size, checked = self._found(x, y, at_size=False)
        kind = self._signature(x, y, tuple(self.trainable))
        keep = partial(self._checked.add, kind, size, self.engine)
        if checked:
            keep()
            yield None
            return
        try:
            with self._checked.proposing(kind, size, self.engine):
                yield keep
        finally:
            if not self.knows(x, y):
                self.engine = None

    def forget(self) -> None:
        """Forget the engines and compiled passes chosen so far, with the memory that they hold.

        The next batch is checked as the first one was.
        """
        self.engine = None
        self._checked.clear()
        self._compiled.clear()
        give_back()

    @contextmanager
    def _measured(self, kind: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.durations[kind] += time.perf_counter() - began

    def precision_for(self, x: Tensor) -> torch.dtype | None:
        """The precision of a compiled pass for such inputs; None for no compiled pass."""
        if self.precision != "auto":
            return self.precision
        return compiled_precision(x.device) if x.dtype == torch.float32 else None

    def _pass(self, x: Tensor, y: Tensor, parameters: dict[str, nn.Parameter]) -> Gradients | Fused:
        assert self.engine is not None
        compiled = self._compiled_for(self.engine, x, y, tuple(parameters))
        keys = None
        if self.seeds is not None and (compiled is None or compiled.random):
            keys = self.seeds.keys(len(x), self.views, x.device)
        if compiled is not None:
            return compiled.gradients(x, y, keys)
        with even_draws(self.model):
            try:
                if isinstance(self.engine, Operators):
                    return self.engine.gradients(x, y, keys, parameters)
                return self.engine.gradients(x, y)
            except NotPerOperator as reason:
                if self._checked.has_proposal:
                    raise
                self._say_slow(f"in some batches {reason}")
                self.engine = OneAtATime(self.objective)
                return self.engine.gradients(x, y)

    def _signature(self, x: Tensor, y: Tensor, names: tuple[str, ...]) -> object:
        """The key of a choice of engine: everything it depends on except the batch size."""
        return (
            *((tuple(t.shape[1:]), t.dtype) for t in (x, y)),
            x.device,
            x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last),
            tuple((module, module.training) for module in self.model.modules()),
            hook_keys(self.model),
            names,
        )

    def _chosen(self, x: Tensor, y: Tensor, names: tuple[str, ...]) -> tuple[Engine, int] | None:
        """The engine for inputs like these and the checked batch size to run, or None."""
        return self._checked.find(self._signature(x, y, names), y.shape[0], padding=self.check)

    def _choose(self, x: Tensor, y: Tensor) -> tuple[Engine, int]:
        """Choose and check the engine for inputs like these, and the batch size to run."""
        engine, size, _ = self._found(x, y)  # The model may change when it is first called.
        self._checked.add(self._signature(x, y, tuple(self.trainable)), size, engine)
        return engine, size

    def _found(self, x: Tensor, y: Tensor, *, at_size: bool = True) -> tuple[Engine, int, bool]:
        """The engine for inputs like these, the batch size to run, and whether that is checked."""
        check_device(x, y, self.trainable)
        known = self._checked.of(self._signature(x, y, tuple(self.trainable)))
        # The first batch runs as it is, the next size has room for others: few need checks.
        size = with_room(y.shape[0]) if known and self.check else y.shape[0]
        engine, words = None, "Checking that examples do not affect each other in"
        spoken = announced(f"{words} {type(self.model).__name__} ...", self.say)
        with self._measured("checks"), spoken:
            try:
                engine = self._checked_engine(*padded(x, y, size, self.views), known, at_size)
            except Exception as error:
                if size == y.shape[0] or not out_of_memory(error):
                    raise
            if engine is None:  # The memory has no room for more.
                give_back()
                size = y.shape[0]
                engine = self._checked_engine(x, y, known, at_size)
        if slow := isinstance(engine, OneAtATime):
            why = "; ".join(f"{name}: {reason}" for name, reason in self.passed_over.items())
            self._say_slow(f"no faster engine was right for it ({why})")
        kind = self._signature(x, y, tuple(self.trainable))
        return engine, size, at_size or slow or not self._checked.repeats(kind)

    def _say_slow(self, reason: str) -> None:
        """Warn once that examples run one at a time."""
        if not self._said:
            self._said = True
            said = "Examples run through this model one at a time, which is slow, because"
            warnings.warn(f"{said} {reason}.", stacklevel=6)

    def _checked_engine(
        self, x: Tensor, y: Tensor, known: dict[int, Engine], at_size: bool
    ) -> Engine:
        """The engine for batches of this size: that of another size, if it is right for it."""
        engine = known[max(known)] if known else None
        if engine is not None and self._still_right(engine, x, y, at_size):
            return engine
        compiled = self.precision_for(x) is not None
        if compiled and x.is_cuda:
            tracing.start_workers()
        choice = choose_engine(
            self.objective, x, y, check=self.check, compiled=compiled, at_size=at_size
        )
        self.narrowest, self.passed_over = choice.narrowest, choice.passed_over
        if choice.repeats:
            self._checked.add_repeating(self._signature(x, y, tuple(self.trainable)))
        return choice.engine

    def _still_right(self, engine: Engine, x: Tensor, y: Tensor, at_size: bool) -> bool:
        """Tell whether an engine chosen for another batch size is right for this one too."""
        if isinstance(engine, OneAtATime):
            return False  # A faster one may be right.
        return not self.check or holds_at_size(engine, x, y, self.narrowest, at_size=at_size)

    def _compiled_for(
        self, engine: Engine, x: Tensor, y: Tensor, names: tuple[str, ...]
    ) -> Compiled | None:
        """The compiled pass for batches like this one, if it is requested and fits the model."""
        precision = self.precision_for(x)
        if precision is None:
            return None
        if not isinstance(engine, Operators):
            why = self.passed_over.get(Operators.name, "it was not tried")
            self.passed_over["compiled"] = f"it is the pass by operators, which is not right: {why}"
            return None
        key = (x.shape[0], precision, self._signature(x, y, names))
        settings = plain_settings(self.model)
        known = self._compiled.setdefault(key, {})
        if settings not in known:
            found: Compiled | str = "the model's settings change too often"
            if len(known) < _MOST_SETTINGS:
                with self._measured("compilation"):
                    found = compiled_pass(engine, x, y, precision)
            if isinstance(found, str):
                self.passed_over["compiled"] = found
            elif found.refused:
                self.passed_over[REPLAY] = found.refused
            known[settings] = None if isinstance(found, str) else found
        return known[settings]


def with_images(engine: PerExample, images: int, views: int) -> PerExample:
    """Per-example gradients of the same model for units of `images` images of `views` views each.

    Targets are `(units, images)` then, unless `images` is 1.
    """
    loss = engine.loss.loss if isinstance(engine.loss, UnitLoss) else engine.loss
    if images > 1:
        loss = UnitLoss(loss, images, views)
    found = PerExample(
        engine.model,
        loss=loss,
        views=images * views,
        check=engine.check,
        precision=engine.precision,
    )
    found.say = engine.say
    return found


REPLAY = "CUDA graph"
"""The name in `passed_over` of replaying the compiled pass without the host."""

_MOST_SETTINGS = 4
"""Settings of one model for which a pass is compiled; for more, compiling would take longer."""

__all__ = ["Gradients", "Loss", "Path", "PerExample", "cross_entropy"]
