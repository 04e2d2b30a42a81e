"""What the compiler keeps between processes: found again, and never mistaken for something else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config
from torch import Tensor
from torch._dynamo.utils import counters

from sfumato.privacy.engines import tracing
from sfumato.privacy.engines.compiled import _SEARCH, _compiler


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


def test_a_short_search_among_kernels_is_asked_for() -> None:
    """The compiler's names may change: then its own times hold, and the first step is longer."""
    inductor = torch._inductor.config
    known = {name: time for name, time in _SEARCH.items() if hasattr(inductor, name)}
    assert known or torch.__version__ < "2.13"
    before = {name: getattr(inductor, name) for name in known}
    with _compiler():
        assert {name: getattr(inductor, name) for name in known} == known
    assert {name: getattr(inductor, name) for name in known} == before


def test_workers_of_the_compiler_are_started(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import async_compile

    started: list[int] = []
    monkeypatch.setattr(async_compile, "maybe_warm_pool", lambda: started.append(1))
    tracing.start_workers()
    assert started == [1]
    monkeypatch.delattr(async_compile, "maybe_warm_pool")
    tracing.start_workers()
    assert started == [1], "another version of PyTorch may not have it"
