"""Captured graphs: what can be said of them without a CUDA device."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from sfumato.privacy.engines import cuda_graphs as replay
from sfumato.privacy.engines.compiled import Compiled
from sfumato.privacy.engines.cuda_graphs import Replayed, apart
from sfumato.privacy.per_example import REPLAY, PerExample
from uncompiled import run_without_code


def test_a_function_runs_eagerly_without_cuda() -> None:
    calls = []

    def double(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        calls.append(1)
        return (2 * x,)

    replayed = Replayed(double)
    for number in range(5):
        assert replayed(torch.tensor(float(number)))[0] == 2 * number
    assert len(calls) == 5 and not replayed.captured and replayed.refused is None


def test_two_runs_are_apart_by_their_worst_numbers() -> None:
    nan, inf = float("nan"), float("inf")
    first = [torch.tensor([4.0, nan, inf]), torch.zeros(0), torch.tensor([1.0, -2.0])]
    assert apart(first, [t.clone() for t in first]) == 0
    assert apart([], []) == 0
    second = [first[0], first[1], torch.tensor([1.0, -2.5])]
    assert apart(first, second) == 0.25
    assert apart([torch.tensor([1.0])], [torch.tensor([nan])]) == inf


class Stub:
    """Stands for streams and graphs."""

    def wait_stream(self, _: object) -> None:
        """Nothing to wait for."""

    def replay(self) -> None:
        """What was captured stays as it is."""


@pytest.fixture
def without_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "_aside", lambda _: Stub())
    for name in ("CUDAGraph", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, Stub)
    for name in ("stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, lambda *_, **__: nullcontext())
    for name in ("synchronize", "empty_cache", "graph_pool_handle"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)


@pytest.mark.usefixtures("without_device")
def test_a_graph_is_used_if_it_returns_the_same_again() -> None:
    replayed = Replayed(lambda x: (2 * x, x.sum()))
    assert replayed._capture((torch.arange(3.0),))
    assert replayed.captured and replayed.refused is None


@pytest.mark.usefixtures("without_device")
def test_a_graph_that_returns_other_numbers_is_refused() -> None:
    calls: list[int] = []

    def unsteady(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        calls.append(1)
        return x, x * (1 + 0.1 * len(calls))

    replayed = Replayed(unsteady)
    assert not replayed._capture((torch.arange(3.0),))
    assert not replayed.captured
    assert replayed.refused is not None and "differ by" in replayed.refused


def test_a_pass_that_is_not_replayed_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    run_without_code(monkeypatch)
    model = torch.nn.Linear(3, 2)
    monkeypatch.setattr(Compiled, "refused", "it differs")
    engine = PerExample(model, precision=torch.float32)
    engine(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))
    assert engine.passed_over == {REPLAY: "it differs"}
