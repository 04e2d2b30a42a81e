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


def tripled(factor: float) -> Callable[[Tensor], Tensor]:
    """Three times its input, with a gradient that says `factor` instead of three."""

    class Tripled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return 3 * x

        @staticmethod
        def backward(ctx: Any, d: Tensor) -> Tensor:
            return factor * d

    apply: Callable[[Tensor], Tensor] = Tripled.apply
    return apply


def gradient(factor: float) -> Tensor:
    """Compile it as in a new process, and take the gradient."""
    torch._dynamo.reset()
    counters.clear()
    function = tripled(factor)
    x = torch.ones(4, requires_grad=True)
    with _compiler():
        total = torch.compile(lambda x: function(x).sum(), fullgraph=True)(x)
        (found,) = torch.autograd.grad(total, x)
    return found


def test_the_compiler_caches_custom_gradients_by_their_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    assert gradient(3.0).tolist() == [3.0] * 4
    assert counters["aot_autograd"]["autograd_cache_miss"] == 1
    assert gradient(3.0).tolist() == [3.0] * 4
    assert counters["aot_autograd"]["autograd_cache_hit"] == 1
    # The forward pass is the same, the backward pass is not.
    assert gradient(5.0).tolist() == [5.0] * 4
    assert counters["aot_autograd"]["autograd_cache_hit"] == 0
