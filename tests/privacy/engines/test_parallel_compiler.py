"""Compilation of large graphs by several processes: the same results, and parts from the cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from sfumato.errors import UserError
from sfumato.privacy.engines import parallel_compiler
from sfumato.privacy.engines.graph_parts import parts_of


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + F.gelu(layer(x))
        return x


_SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.utils import counters

from sfumato.privacy.engines import parallel_compiler, tracing

parallel_compiler._LARGE = 12
parallel_compiler.start()
torch.manual_seed(0)
layers, x = nn.ModuleList(nn.Linear(16, 16) for _ in range(6)), torch.randn(4, 16)

def net(x, *parameters):
    for weight, bias in zip(parameters[::2], parameters[1::2], strict=True):
        x = x + F.gelu(F.linear(x, weight, bias))
    return (x,)

given = list(layers.parameters())
(found,) = tracing.compiled(net, [x, *given])(x, *given)
ours = torch.autograd.grad(found.square().sum(), given)
(wanted,) = net(x, *given)
theirs = torch.autograd.grad(wanted.square().sum(), given)
parallel_compiler.stop()
torch.testing.assert_close([found, *ours], [wanted, *theirs])
print(counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"])
"""


@pytest.mark.slow
def test_results_are_those_of_the_model_and_parts_come_from_the_cache(tmp_path: Path) -> None:
    """In a process of its own: under pytest the compiler's keys differ between processes."""
    own = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), parallel_compiler.VARIABLE: "2"}
    ran = subprocess.run(
        [sys.executable, "-c", _SCRIPT], env=os.environ | own, capture_output=True, text=True
    )
    assert not ran.returncode, ran.stderr[-2000:]
    hits, misses = map(int, ran.stdout.split())
    assert hits >= 4 and not misses, "the parts of the graphs forward and backward"


def test_no_process_is_started_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(parallel_compiler.VARIABLE, raising=False)
    parallel_compiler.start()
    with parallel_compiler.dividing([]) as compiler:
        assert compiler is None
    monkeypatch.setenv(parallel_compiler.VARIABLE, "many")
    with pytest.raises(UserError, match="SFUMATO_COMPILERS is a number of processes"):
        parallel_compiler.start()


def test_parts_have_the_results_of_the_whole_graph() -> None:
    """Views and constants are repeated where they are needed; nothing else crosses in pieces."""
    torch.manual_seed(0)
    net, x = Net(), torch.randn(4, 16)

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = net(x)
        halves = torch.split(y @ y.t(), 2)
        return halves[0] @ y, (halves[1] + torch.ones(4)).t() @ halves[0]

    whole = make_fx(function)(x)
    for node in whole.graph.nodes:
        if node.op == "placeholder":
            node.meta["val"] = x
    for count in (2, 3, 5):
        parts = parts_of(whole, count)
        assert parts is not None and 2 <= len(parts) <= count
        assert sum(len(part.module.graph.nodes) for part in parts) >= len(whole.graph.nodes)
        known: dict[Any, Any] = {n: x for n in whole.graph.nodes if n.op == "placeholder"}
        for part in parts:
            found = part.module(*(known[node] for node in part.inputs))
            known |= dict(zip(part.outputs, found, strict=True))
        results = next(iter(reversed(whole.graph.nodes))).args[0]
        torch.testing.assert_close([known[n] for n in results], list(function(x)))


def test_a_graph_that_cannot_be_divided_stays_whole() -> None:
    assert parts_of(make_fx(lambda x: x.relu().tanh())(torch.randn(3)), 4) is None
