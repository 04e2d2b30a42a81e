"""The pass over a model as compiled graphs over leaves at fixed addresses.

Forward and backward pass become one pair of graphs. Norms and weighted sums are computed by a few
operators of `sfumato.kernels`, and by compiled graphs where a parametrisation has no operator. The
planner chooses what is stored of each layer's gradients (see `storage_plan`). Gradients of
reparametrised weights stay in the space of the weight, or of a smaller one before it: norms are
taken through the parametrisation, and only the weighted sum is mapped to the parameters, once.

On a CUDA device the graphs are captured and replayed, so a batch costs no time on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor
from torch._functorch import config as functorch

from sfumato.privacy.engines import kernels_ahead, tracing
from sfumato.privacy.engines.compiled_forward import Forward
from sfumato.privacy.engines.cuda_graphs import Pool, Replayed
from sfumato.privacy.engines.keyed_draws import RowSeeds
from sfumato.privacy.engines.objective import Objective
from sfumato.privacy.engines.results import Examples, rows_of
from sfumato.privacy.engines.slots import NotCompiled, Slots
from sfumato.privacy.engines.storage_plan import Storage
from sfumato.privacy.engines.stored_gradients import (
    Derived,
    Slot,
    Together,
    Whole,
    at_least_float32,
)
from sfumato.privacy.numerics.precision import full_precision


@dataclass
class Found:
    """The gradients of one pass, grouped by how their norms and sums are computed.

    Attributes:
        rows: Gradients of small tensors, concatenated to one row per example.
        apart: Slots with operators of their own, the gradients of their leaves, and their inputs.
        whole: Gradients of the leaves of all other slots.
    """

    rows: Tensor | None = None
    apart: list[tuple[Slot, list[Tensor], Tensor | None]] = field(default_factory=list)
    whole: list[list[Tensor]] = field(default_factory=list)


_KINDS = 1000
"""The compiler gives up on a function after eight kinds of inputs; a process may train more models
than that."""

_OWN_GRADIENTS = "autograd_cache_allow_custom_autograd_functions"

_ROUNDED_UP = 1 + 2e-4
"""Factor that rounds up squared norms, which are summed in float32, so that none is too small."""


@dataclass
class Fused:
    """Per-example gradients of one physical batch, in the space of the weights.

    The next batch overwrites them: use them before the pass is called again.
    """

    names: tuple[str, ...]
    losses: Tensor
    outputs: Tensor | None
    _squared: Tensor
    _sums: Callable[[Tensor], list[Tensor]]

    def squared_norms(self) -> Tensor:
        """Squared norms `(examples, parameters)`, rounded up by one part in ten thousand."""
        return self._squared.double() * _ROUNDED_UP

    def weighted_sum(self, weights: Tensor) -> list[Tensor]:
        """Sum over examples of `weights[example, parameter] * gradient`, in parameter order.

        One column of weights serves all parameters.

        Guarantee: Products and sums are in float32. Where a weight is zero the example contributes
        exactly nothing, even if its gradient holds NaN or infinity.
        """
        return self._sums(weights.float())

    def some(self, examples: Examples) -> Fused:
        """The gradients of some examples only; the others have weight zero."""
        count, outputs = len(self.losses), self.outputs
        if outputs is not None:
            outputs = rows_of(outputs, examples, len(outputs) // count)

        def summed(weights: Tensor) -> list[Tensor]:
            every = weights.new_zeros(count, weights.shape[1])
            every[examples] = weights
            return self._sums(every)

        return Fused(self.names, self.losses[examples], outputs, self._squared[examples], summed)


@contextmanager
def _compiler() -> Iterator[None]:
    """Configure the compiler for the pass.

    Graphs compiled by an earlier process are loaded from its cache. For that, the compiler must be
    told that custom autograd functions may be cached too: their code is part of the cache key.
    """
    cached = {_OWN_GRADIENTS: True} if hasattr(functorch, _OWN_GRADIENTS) else {}
    with (
        torch._dynamo.config.patch(recompile_limit=_KINDS),
        functorch.patch(cached),
        tracing.brief_search(),
    ):
        yield


class Compiled:
    """The compiled pass for one physical batch size.

    Args:
        objective: The model, its loss and its views.
        x: Inputs like those to come; the first is used for its shape.
        examples: The physical batch size.
        dtype: Precision of the pass; norms and sums are in float32 whatever it is.
        storage: Store this for all weights that can, instead of what the planner chooses.
        memory: Bytes that stored gradients may take. If None, a quarter of what is free, and no
            more than `sfumato.privacy.engines.storage_plan.room` leaves them.
        random: Whether the model draws random numbers.

    Raises:
        NotCompiled: The model has a part that the pass does not know.
    """

    def __init__(
        self,
        objective: Objective,
        x: Tensor,
        examples: int,
        dtype: torch.dtype,
        *,
        storage: Storage | None = None,
        memory: int | None = None,
        random: bool = False,
    ) -> None:
        self.objective, self.dtype, self.random = objective, dtype, random
        self.slots = Slots(objective, x, examples, dtype, storage=storage, memory=memory)
        self._order = tuple(objective.trainable)
        self._fresh: tuple[int, ...] = ()
        self._model = Forward(self.slots)
        self._tensors = self._model.tensors()
        slots = self.slots.slots
        self._together = Together([s for s in slots if Together.takes(s)])
        self._whole = [s for s in slots if _materialised(s) and not Together.takes(s)]
        self._columns = {
            names: torch.tensor([self._order.index(n) for n in names], device=x.device)
            for names in (self._together.names, *(slot.names for slot in slots))
        }
        self._forward: tracing.Function | None = None
        self._norms = torch.compile(self._squared_whole, dynamic=False, fullgraph=True)
        self._sums = torch.compile(self._summed_whole, dynamic=False, fullgraph=True)
        self._pool = Pool()
        self._copy = Replayed(self._copied, aside=True)
        self._pass = Replayed(self._run, pool=self._pool)
        self._sum: dict[int, Replayed] = {}
        self._found = Found()
        self._batch = 0
        self._strides: tuple[int, ...] | None = None

    @property
    def storage(self) -> dict[str, Storage]:
        """The storage chosen for each convolution, by the layer's name."""
        return self.slots.storage

    @property
    def refused(self) -> str | None:
        """The reason why the pass is not replayed as a CUDA graph, or None."""
        every = (self._copy, self._pass, *self._sum.values())
        return next((part.refused for part in every if part.refused), None)

    def refresh(self) -> None:
        """Copy the parameters' current values to the addresses that the graphs read."""
        version = tuple(p._version for p in self.objective.model.parameters())
        if version != self._fresh:
            self._copy(next(self.objective.model.parameters()))
            self._fresh = version

    def forget(self) -> None:
        """Copy the parameters anew before the next pass, whatever their versions say."""
        self._fresh = ()

    def _copied(self, _where: Tensor) -> tuple[Tensor, ...]:
        self._model.refresh()
        return ()

    def gradients(self, x: Tensor, y: Tensor, keys: Tensor | None = None) -> Fused:
        """Per-example gradients of `examples` examples.

        Args:
            x: `(examples * views, ...)` inputs.
            y: `(examples,)` targets.
            keys: Keys of the rows' random numbers (see `keyed_draws`), if the model draws any;
                by PyTorch's own generator if None.
        """
        self.refresh()
        if self.random and keys is None:
            seeds, views = RowSeeds(int(torch.randint(2**62, ()))), self.objective.views
            keys = seeds.keys(len(x), views, x.device)
        given = [keys] if self.random and keys is not None else []
        losses, outputs, squared = self._pass(self._arranged(x.to(self.dtype)), y, *given)
        self._batch += 1
        sums = partial(self._weighted, self._batch, self._found)
        return Fused(self._order, losses, outputs, squared, sums)

    def _arranged(self, x: Tensor) -> Tensor:
        """The inputs in the memory format of the first batch, which the pass is compiled for."""
        if self._strides is None:
            self._strides = x.stride()
        if x.stride() == self._strides:
            return x
        return x.new_empty_strided(x.shape, self._strides).copy_(x)

    @torch.no_grad()
    def _weighted(self, batch: int, found: Found, weights: Tensor) -> list[Tensor]:
        """The weighted sum of a batch, replayed as a CUDA graph once the pass is."""
        if not self._pass.captured:
            return self._summed(found, weights)
        if batch != self._batch:
            raise RuntimeError("the gradients of this batch are gone: another one has been run")
        columns = weights.shape[1]
        if columns not in self._sum:
            self._sum[columns] = Replayed(
                lambda w: tuple(self._summed(self._found, w)), pool=self._pool
            )
        return list(self._sum[columns](weights))

    def _run(self, x: Tensor, y: Tensor, *keys: Tensor) -> tuple[Tensor, ...]:
        """Forward pass, backward pass and norms; the gradients for the sum stay in `_found`."""
        given = x, y, *keys, *self._tensors
        first = self._forward is None
        quiet = tracing.without_collections() if first else nullcontext()
        with torch.enable_grad(), _compiler(), quiet:
            if self._forward is None:
                self._forward = tracing.compiled(self._losses, given)
            total, losses, outputs, *inputs = self._forward(*given)
            if first:
                of_slot = dict(zip(map(id, self._model.with_input), inputs, strict=True))
                every, small = self.slots.slots, self._together
                kernels_ahead.compile_ahead(every, small, of_slot, self.slots.examples)
            leaves = [leaf for slot in self.slots.slots for leaf in slot.leaves()]
            grads = list(torch.autograd.grad(total, leaves))
        with torch.no_grad(), full_precision(x.device):
            self._found = self._sorted(grads, inputs)
            return losses, outputs, self._squared(self._found)

    def _losses(self, x: Tensor, y: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        views = self.objective.views
        keys = tensors[0] if self.random else None
        outputs, inputs = self._model.run(x, keys, tensors[1:] if self.random else tensors)
        outputs = at_least_float32(outputs)
        targets = y.repeat_interleave(views, 0) if views > 1 else y
        losses = self.objective.loss(outputs, targets).view(-1, views).mean(1)
        # The compiler would fill and add gradients of zeros for every other result.
        return losses.sum(), losses.detach(), outputs.detach(), *inputs

    def _sorted(self, grads: list[Tensor], inputs: list[Tensor]) -> Found:
        """The gradients of all leaves, in the order of the slots, grouped by kind of slot."""
        found, small, left = Found(), [], iter(grads)
        of_slot = dict(zip(map(id, self._model.with_input), inputs, strict=True))
        for slot in self.slots.slots:
            own = [next(left) for _ in slot.leaves()]
            if Together.takes(slot):
                small += own
            elif _materialised(slot):
                found.whole.append(own)
            else:
                found.apart.append((slot, own, of_slot.get(id(slot))))
        found.rows = self._together.rows(small) if small else None
        return found

    def _squared(self, found: Found) -> Tensor:
        """Squared norms `(examples, parameters)`."""
        columns: dict[str, Tensor] = {}
        if found.rows is not None:
            norms = self._together.squared(found.rows)
            columns.update(zip(self._together.names, norms, strict=True))
        for slot, own, x in found.apart:
            columns.update(zip(slot.names, slot.squared(own, x), strict=True))
        if found.whole:
            with _compiler():
                columns.update(self._norms(found.whole))
        unused = next(iter(columns.values())).new_zeros(self.slots.examples)
        return torch.stack([columns.get(name, unused) for name in self._order], 1)

    def _summed(self, found: Found, weights: Tensor) -> list[Tensor]:
        """Weighted sums in the order of the parameters; one column of weights may serve all."""
        with full_precision(weights.device):
            return self._summed_fully(found, weights)

    def _summed_fully(self, found: Found, weights: Tensor) -> list[Tensor]:
        sums: dict[str, Tensor] = {}
        if found.rows is not None:
            names = self._together.names
            parts = self._together.summed(found.rows, self._own(names, weights))
            sums.update(zip(names, parts, strict=True))
        for slot, own, x in found.apart:
            parts = slot.summed(own, x, self._own(slot.names, weights))
            sums.update(zip(slot.names, parts, strict=True))
        if found.whole:
            every = [self._own(slot.names, weights) for slot in self._whole]
            with _compiler():
                sums.update(self._sums(found.whole, every))
        shapes = {name: p.shape for name, p in self.objective.trainable.items()}
        return [
            sums[name].reshape(shapes[name]) if name in sums else weights.new_zeros(shapes[name])
            for name in self._order
        ]

    def _own(self, names: tuple[str, ...], weights: Tensor) -> Tensor:
        """The columns of weights for some parameters, or the single column that serves all."""
        return weights if weights.shape[1] == 1 else weights.index_select(1, self._columns[names])

    def _squared_whole(self, grads: list[list[Tensor]]) -> dict[str, Tensor]:
        columns: dict[str, Tensor] = {}
        for slot, own in zip(self._whole, grads, strict=True):
            columns.update(zip(slot.names, slot.squared(own, None), strict=True))
        return columns

    def _summed_whole(self, grads: list[list[Tensor]], weights: list[Tensor]) -> dict[str, Tensor]:
        sums: dict[str, Tensor] = {}
        for slot, own, columns in zip(self._whole, grads, weights, strict=True):
            sums.update(zip(slot.names, slot.summed(own, None, columns), strict=True))
        return sums


def _materialised(slot: Slot) -> bool:
    """Tell whether a slot stores every example's gradient, without kernels of its own."""
    return isinstance(slot, Whole | Derived)


__all__ = ["Compiled", "Fused", "NotCompiled"]
