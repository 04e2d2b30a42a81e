"""The compiled pass traced as always, but run without code generation, which takes seconds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.backends.debugging import aot_eager
from torch._subclasses import FakeTensorMode

from sfumato.privacy.engines import compiled, tracing


def _without_code(module: nn.Module, inputs: list[Tensor]) -> Callable[..., list[Tensor]]:
    """Trace a module as the compiler does, and run the graphs as they are."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with torch._guards.tracing(torch._guards.TracingContext(fake)):
        graph: Callable[..., list[Tensor]] = aot_eager(module, inputs)
        return graph


def run_without_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the compiled pass run its graphs by PyTorch's own operators."""
    torch._dynamo.reset()
    monkeypatch.setattr(compiled.torch, "compile", partial(torch.compile, backend="aot_eager"))
    monkeypatch.setattr(tracing, "compile_fx", _without_code)
