"""Captured graphs: what can be said of them without a CUDA device."""

from __future__ import annotations

import torch

from sfumato.privacy.replay import Replayed, apart


def test_elsewhere_the_function_runs_as_it_is() -> None:
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
