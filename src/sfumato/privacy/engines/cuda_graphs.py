"""Captured CUDA graphs: functions of tensors, recorded once and replayed without the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor

from sfumato.memory import out_of_memory
from sfumato.privacy.numerics.distance import distance

WARM_UP = 2
"""Calls that run eagerly: they compile, and let libraries choose their algorithms."""

SETTLED = 2 * (WARM_UP + 1)
"""Calls after which a function and the one that follows it are both replayed."""


_ALIKE = 1e-2
"""Allowed difference of two runs, relative to the largest number; bfloat16 has 8e-3."""


def apart(wanted: Sequence[Tensor], found: Sequence[Tensor]) -> float:
    """The largest difference between two sequences, relative to the largest number of the first."""
    pairs = zip(wanted, found, strict=True)
    return max((distance(a.detach(), b.detach()) for a, b in pairs), default=0.0)


@cache
def _aside(device: torch.device) -> torch.cuda.Stream:
    """The stream for warm-up calls: libraries keep one workspace per stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class Pool:
    """The memory pool that captured graphs share, created with the first graph."""

    @cached_property
    def handle(self) -> Any:
        """PyTorch's handle of the pool."""
        return torch.cuda.graph_pool_handle()


class Replayed:
    """A function of tensors of fixed shapes, replayed as a CUDA graph from the third call.

    The function must not synchronise with the device, and apart from its arguments reads and writes
    at fixed addresses. The next replay overwrites the tensors that a replay returns.

    *Guarantee:* a graph is used only if its first replay returns what the function has returned for
    the same inputs, up to the differences of libraries that are not deterministic.

    Args:
        function: From tensors to a tuple of tensors.
        aside: Whether arguments only state the device, and are not read.
        pool: Memory shared by graphs that are replayed in the order of their capture, one after
            the other. Their results last until the first of them is replayed again.

    Attributes:
        refused: The reason why the function could not be captured and runs eagerly, or None.
    """

    def __init__(
        self,
        function: Callable[..., tuple[Tensor, ...]],
        *,
        aside: bool = False,
        pool: Pool | None = None,
    ) -> None:
        self._function, self._aside = function, aside
        self._pool = pool or Pool()
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Tensor, ...] = ()
        self._outputs: tuple[Tensor, ...] = ()
        self.refused: str | None = None

    @property
    def captured(self) -> bool:
        """Tell whether a graph is replayed."""
        return self._graph is not None

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run the function, or replay its graph."""
        self._calls += 1
        early = self._calls <= WARM_UP
        if early or self.refused is not None or not all(t.is_cuda for t in inputs):
            return self._function(*inputs)
        if self._graph is None and not self._capture(inputs):
            return self._function(*inputs)
        if not self._aside:
            for own, given in zip(self._inputs, inputs, strict=True):
                own.copy_(given)
        assert self._graph is not None
        self._graph.replay()
        return self._outputs

    def _capture(self, inputs: tuple[Tensor, ...]) -> bool:
        # Free cached blocks first: memory of the graph that is cut from large cached blocks would
        # keep them from being given back.
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self._inputs = inputs if self._aside else tuple(t.clone() for t in inputs)
        aside, graph = _aside(inputs[0].device), torch.cuda.CUDAGraph()
        aside.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(aside):
                wanted = [t.clone() for t in self._function(*self._inputs)]
            torch.cuda.current_stream().wait_stream(aside)
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            with torch.cuda.graph(graph, pool=self._pool.handle):
                self._outputs = self._function(*self._inputs)
            graph.replay()
            if (off := apart(wanted, self._outputs)) > _ALIKE:
                raise RuntimeError(f"replayed, it returns numbers that differ by {off:.1e}")
        except RuntimeError as reason:
            if out_of_memory(reason):
                raise
            torch.cuda.synchronize()
            self.refused = (str(reason).splitlines() or [type(reason).__name__])[0]
            return False
        self._graph = graph
        return True
