"""Captured CUDA graphs: a function of tensors, recorded once and replayed without the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor

from sfumato.memory import out_of_memory
from sfumato.privacy.numerics.distance import distance

WARM_UP = 2
"""Calls that run as they are: they compile, and let libraries choose their algorithms."""

SETTLED = 2 * (WARM_UP + 1)
"""Calls after which a function and one that follows it are both replayed."""


_ALIKE = 1e-2
"""How far apart two runs may be, relative to the largest number; bfloat16 has 8e-3."""


def apart(wanted: Sequence[Tensor], found: Sequence[Tensor]) -> float:
    """The largest difference of any two, relative to the largest number of the first."""
    pairs = zip(wanted, found, strict=True)
    return max((distance(a.detach(), b.detach()) for a, b in pairs), default=0.0)


@cache
def _aside(device: torch.device) -> torch.cuda.Stream:
    """The stream that functions are warmed up on: libraries keep a workspace for each."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class Pool:
    """The memory of captured graphs; it is made when the first one asks for it."""

    @cached_property
    def handle(self) -> Any:
        """As PyTorch knows it."""
        return torch.cuda.graph_pool_handle()


class Replayed:
    """Runs a function of tensors of fixed shapes; on CUDA devices from the third call as a graph.

    The function must not wait for the device, and reads and writes at fixed addresses apart from
    its arguments. What a replay returns lies where the next replay's will lie.

    Guarantee: A graph is used only if its first replay returns what the function has returned for
    the same inputs, up to what libraries that are not deterministic make of them.

    Args:
        function: From tensors to a tuple of tensors.
        aside: Whether arguments say where to run only, and are not read.
        pool: Memory that graphs share, which are replayed in the order of their capture, one after
            the other. What they return lasts until the first of them is replayed again.

    Attributes:
        refused: Why the function could not be captured and runs as it is, or None.
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
        """Whether a graph is replayed."""
        return self._graph is not None

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The function's result."""
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
        # What stays from here on must not be cut out of large blocks that are free just now: these
        # could not be given back any more.
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
                raise RuntimeError(f"replayed, it returns other numbers, {off:.1e} apart")
        except RuntimeError as reason:
            if out_of_memory(reason):
                raise
            torch.cuda.synchronize()
            self.refused = (str(reason).splitlines() or [type(reason).__name__])[0]
            return False
        self._graph = graph
        return True
