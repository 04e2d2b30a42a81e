"""What the compiler keeps between processes: found again, and never mistaken for something else."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from sfumato.privacy.engines import tracing
from sfumato.privacy.engines.compiled import _compiler


def doubled(times: int) -> Callable[[Tensor, Tensor], Tensor]:
    """A product with a matrix, with a gradient that multiplies by it several times.

    Products of matrices are calls of a library: nothing is left for a C++ compiler, which is slow.
    """

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, matrix: Tensor) -> Tensor:
            ctx.save_for_backward(matrix)
            return x @ matrix

        @staticmethod
        def backward(ctx: Any, d: Tensor) -> tuple[Tensor, None]:
            (matrix,) = ctx.saved_tensors
            for _ in range(times):
                d = d @ matrix
            return d, None

    apply: Callable[[Tensor, Tensor], Tensor] = Doubled.apply
    return apply


def gradient(times: int) -> float:
    """Compile it as in a new process, and take the gradient."""
    torch._dynamo.reset()
    counters.clear()
    function = doubled(times)
    x = torch.eye(4, requires_grad=True)
    with _compiler():
        out = torch.compile(lambda x, matrix: function(x, matrix), fullgraph=True)(
            x, 2 * torch.eye(4)
        )
        (found,) = torch.autograd.grad(out, x, torch.eye(4))
    return float(found[0, 0])


@pytest.mark.slow
def test_the_compiler_caches_custom_gradients_by_their_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    assert gradient(1) == 2.0
    assert counters["aot_autograd"]["autograd_cache_miss"] == 1
    assert gradient(1) == 2.0
    assert counters["aot_autograd"]["autograd_cache_hit"] == 1
    # The forward pass is the same, the backward pass is not.
    assert gradient(2) == 4.0
    assert counters["aot_autograd"]["autograd_cache_hit"] == 0


def traced(constant: Tensor, rows: int = 4) -> tuple[Tensor, Tensor]:
    """Compile a product with a constant by tracing, and return it with its gradient."""
    counters.clear()
    x = torch.ones(rows, 4, requires_grad=True)
    with _compiler():
        (out,) = tracing.compiled(lambda x: (x @ constant,), [x])(x)
        (found,) = torch.autograd.grad(out.sum(), x)
    return out.detach(), found


@pytest.mark.slow
def test_traced_functions_are_found_in_the_cache_by_all_that_they_depend_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    one, other = torch.eye(4), 3 * torch.eye(4)
    cases = (one, 4, False), (one, 4, True), (other, 4, False), (one, 6, False)
    for constant, rows, known in cases:
        out, found = traced(constant.clone(), rows)
        assert torch.equal(out, torch.ones(rows, 4) @ constant)
        assert torch.equal(found, torch.ones(rows, 4) @ constant.T)
        graphs = counters["inductor"]
        assert graphs["fxgraph_cache_bypass"] == 0
        assert (graphs["fxgraph_cache_miss"] == 0) is known, (constant, rows)
        assert (graphs["fxgraph_cache_hit"] == 2) is known


def test_variants_of_kernels_are_timed_a_few_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names and arguments are the compiler's own: a new version may have others."""
    from torch._inductor.runtime import benchmarking

    asked: list[dict[str, Any]] = []
    whole = inspect.signature(benchmarking.InductorBenchmarker.benchmark_gpu)

    def timed(self: Any, function: Callable[[], None], **given: Any) -> float:
        whole.bind(self, function, **given)
        asked.append(given)
        return 1.0

    assert {"memory_warmup_iters", "benchmark_iters"} <= set(whole.parameters)
    monkeypatch.setattr(benchmarking.InductorBenchmarker, "benchmark_gpu", timed)
    benchmarker = benchmarking.benchmarker
    assert isinstance(benchmarker, benchmarking.InductorBenchmarker)
    with _compiler(), _compiler():
        benchmarker.benchmark(lambda: None, device="cuda", rep=40)
    benchmarker.benchmark(lambda: None, device="cuda", rep=40)
    brief, usual = asked
    assert brief["benchmark_iters"] == 25
    assert "benchmark_iters" not in usual


@pytest.mark.parametrize("enabled", [True, False])
def test_no_cycles_are_looked_for_while_a_pass_is_compiled(enabled: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with pytest.raises(ZeroDivisionError), tracing.without_collections():
            assert not gc.isenabled()
            raise ZeroDivisionError
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_workers_of_the_compiler_are_started(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import async_compile

    started: list[int] = []
    monkeypatch.setattr(async_compile, "maybe_warm_pool", lambda: started.append(1))
    tracing.start_workers()
    assert started == [1]
    monkeypatch.delattr(async_compile, "maybe_warm_pool")
    tracing.start_workers()
    assert started == [1], "another version of PyTorch may not have it"
