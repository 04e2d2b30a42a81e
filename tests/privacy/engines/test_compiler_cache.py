"""What the compiler keeps between processes: found again, and never mistaken for something else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

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
