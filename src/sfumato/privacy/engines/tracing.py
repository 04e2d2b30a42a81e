"""Compilation of a function of tensors by tracing it, without reading its Python code.

The function runs once on tensors without data, and PyTorch's dispatcher records the operators of
its forward and its backward pass. Any Python code will do that does not branch on the data: modes,
hooks, closures and identities of tensors are as in the eager pass. `torch.compile` would read the
code of the model and of our rules instead, and refuses much that runs.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

Function = Callable[..., tuple[Tensor, ...]]


class _Module(nn.Module):
    """A function as a module, which the compiler takes."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self._function = function

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return self._function(*tensors)


def compiled(function: Function, inputs: Sequence[Tensor]) -> Function:
    """The function compiled for inputs like these, with its backward pass.

    Tensors that the function reads otherwise than through its arguments are constants.
    """
    found: Function = compile_fx(_Module(function), list(inputs))
    return found


def start_workers() -> None:
    """Start the processes in which the compiler compiles kernels, without waiting for them.

    They take seconds to be ready, and until then it compiles kernels one by one in this process.
    `torch.compile` starts them when it is first called; a compilation by tracing does not.
    """
    with contextlib.suppress(ImportError):  # The function is not part of PyTorch's interface.
        from torch._inductor.async_compile import maybe_warm_pool

        maybe_warm_pool()


_RUNS = {"memory_warmup_iters": 10, "benchmark_iters": 25}
"""Numbers of writes to the GPU's cache before, and of runs of each of some two hundred variants of
kernels, by which the compiler chooses among them. By default 100 runs each, 4.8 s of the first step
of WRN-16-4 on an H200; the least time counts."""


@contextlib.contextmanager
def brief_search() -> Iterator[None]:
    """Let the compiler time each variant of a kernel a few times only."""
    changed: dict[str, Any] = {}
    with contextlib.suppress(ImportError):  # The class is not part of PyTorch's interface.
        from torch._inductor.runtime.benchmarking import InductorBenchmarker, benchmarker

        own = vars(benchmarker)
        if isinstance(benchmarker, InductorBenchmarker) and "benchmark_gpu" not in own:
            own["benchmark_gpu"] = partial(benchmarker.benchmark_gpu, **_RUNS)
            changed = own
    try:
        yield
    finally:
        changed.pop("benchmark_gpu", None)


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Leave cycles of objects to the next collection after this.

    The compiler makes millions of objects that live until it ends; looking through them took 2.2 s
    of the first step of WRN-16-4.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def compile_fx(module: nn.Module, inputs: list[Tensor]) -> Any:
    """Compile a module by PyTorch's compiler, which takes seconds to load.

    Strides are not padded: gradients are viewed in other shapes, for which padded ones are copied.

    The compiler looks graphs up in its cache only if it traces in an environment of shapes, as
    `torch.compile` gives it one. All shapes in it are fixed. Constants are part of the cache key.
    """
    from torch._guards import TracingContext, tracing
    from torch._inductor.compile_fx import compile_fx as compile_module
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    settings = {"comprehensive_padding": False}
    shapes = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    like = [shapes.from_tensor(tensor, static_shapes=True) for tensor in inputs]
    with tracing(TracingContext(shapes)):
        return compile_module(module, like, config_patches=settings)  # type: ignore[arg-type]
