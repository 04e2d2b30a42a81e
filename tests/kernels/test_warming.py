"""Kernels compiled ahead: for the shapes that will be launched, beside other work, and once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from sfumato.kernels import custom_operators, warming
from sfumato.kernels.warming import Ahead, compile_ahead, launch

CUDA = torch.device("cuda", 0)


class Recorder:
    """Stands for a kernel."""

    def __init__(self) -> None:
        self.compiled: list[Any] = []
        self.launched: list[Any] = []

    def warmup(self, *arguments: Any, grid: tuple[int, ...], **options: Any) -> None:
        self.compiled.append((arguments, grid, options))

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *arguments, **options: self.launched.append((arguments, grid, options))


def test_work_is_done_once_beside_the_caller_and_may_fail() -> None:
    ahead, gate, seen = Ahead(2), threading.Event(), []

    def slow() -> None:
        gate.wait(10)
        seen.append("slow")

    def wrong() -> None:
        raise RuntimeError("no compiler")

    ahead.begin("a", slow)
    ahead.begin("a", slow)
    ahead.begin("b", wrong)
    assert seen == []
    gate.set()
    ahead.wait()
    assert seen == ["slow"]


def test_a_launch_waits_for_what_is_being_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead, order = Ahead(1), []
    monkeypatch.setattr(warming, "ahead", ahead)
    gate = threading.Event()
    ahead.begin("a", lambda: (gate.wait(10), order.append("compiled")))
    kernel = Recorder()
    threading.Timer(0.05, gate.set).start()
    launch(kernel, (3,), torch.zeros(2), 5, BT=16)
    order.append("launched")
    assert order == ["compiled", "launched"]
    [((x, five), grid, options)] = kernel.launched
    assert x.shape == (2,) and (five, grid, options) == (5, (3,), {"BT": 16})


def test_tensors_without_memory_compile() -> None:
    kernel = Recorder()
    launch(kernel, (3, 1), torch.empty(2, dtype=torch.bfloat16, device="meta"), 5, num_warps=4)
    assert kernel.compiled == [((torch.bfloat16, 5), (3, 1), {"num_warps": 4})]
    assert kernel.launched == []


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("directed", [True, False])
def test_what_is_compiled_is_what_is_launched(
    keep: bool, directed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    from sfumato.kernels import conv, ghost

    kernels = {"_gradients": conv, "_weighted": conv, "_ghost": ghost}
    recorders = {name: Recorder() for name in kernels}
    for name, module in kernels.items():
        monkeypatch.setattr(module, name, recorders[name])
    geometry, views, examples = [3, 3, 2, 2, 1, 1, 1, 1], 2, 5
    for device in ("cpu", "meta"):
        x = torch.empty(examples * views, 19, 8, 8, dtype=torch.bfloat16, device=device)
        d = torch.empty(examples * views, 40, 4, 4, dtype=torch.bfloat16, device=device)
        direction = torch.empty(40, 3, 3, 19, device=device) if directed else None
        scales = torch.empty(40, device=device) if directed else None
        custom_operators._gradients_on_cuda(x, d, direction, geometry, views, keep)
        custom_operators._sum_on_cuda(x, d, torch.empty(examples, device=device), geometry, views)
        custom_operators._ghost_on_cuda(x, d, scales, geometry, views)
    for recorder in recorders.values():
        [(arguments, grid, options)] = recorder.launched
        likes = tuple(a.dtype if isinstance(a, torch.Tensor) else a for a in arguments)
        assert recorder.compiled == [(likes, grid, options)]


def test_what_is_traced_for_a_gpu_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[tuple[Any, Callable[[], object]]] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(warming.ahead, "begin", lambda key, work: begun.append((key, work)))
    x = torch.empty(4, 8, 6, 6, device="meta")
    compile_ahead(print, torch.device("cpu"), x)
    assert begun == []
    compile_ahead(print, CUDA, x, [3, 3], None)
    [(key, _)] = begun
    assert key == (print, CUDA, "(((4, 8, 6, 6), torch.float32), ([3, 3],), (None,))")


def test_tracing_begins_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Any] = []
    monkeypatch.setattr(custom_operators, "compile_ahead", lambda *found: begun.append(found))
    geometry = [3, 3, 1, 1, 1, 1, 1, 1]
    with FakeTensorMode():
        x = torch.empty(4, 8, 6, 6)
        d, weights = torch.empty(4, 16, 6, 6), torch.empty(2)
        torch.ops.sfumato.conv_gradients(x, d, None, geometry, 2, True)
        torch.ops.sfumato.weighted_sum(x, d, weights, geometry, 2)
        torch.ops.sfumato.ghost_norms(x, d, None, geometry, 2)
    wanted = (
        custom_operators._gradients_on_cuda,
        custom_operators._sum_on_cuda,
        custom_operators._ghost_on_cuda,
    )
    assert tuple(found[0] for found in begun) == wanted
    assert all(found[2:4] == (x, d) for found in begun)
