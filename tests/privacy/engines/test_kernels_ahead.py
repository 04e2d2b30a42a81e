"""Kernels compiled ahead are those of the operators that run after the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sfumato.kernels import custom_operators, definitions
from sfumato.nn.standardise import standardised
from sfumato.privacy.engines import kernels_ahead
from sfumato.privacy.engines.compiled import Compiled
from sfumato.privacy.engines.storage_plan import Storage
from sfumato.privacy.per_example import PerExample
from uncompiled import run_without_code


def like(argument: object) -> object:
    """What a kernel depends on."""
    return (tuple(argument.shape), argument.dtype) if isinstance(argument, Tensor) else argument


NAMES = ("row_sum", "segment_norms", "filter_norms", "filter_pullback")


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("storage", ["materialise", "norm-only", "ghost"])
def test_what_is_compiled_ahead_is_what_runs(
    storage: Storage, views: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_without_code(monkeypatch)
    ran: set[object] = set()
    begun: set[object] = set()

    def recorded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: object) -> Any:
            ran.add((name, *map(like, given)))
            return function(*given)

        return run

    def ahead(name: str, device: torch.device, *given: object) -> None:
        assert device.type == "cpu"
        likes = (tuple(a) if isinstance(a, list) else like(a) for a in given)
        begun.add((name, *likes))

    for name in NAMES:
        monkeypatch.setattr(definitions, name, recorded(name, getattr(definitions, name)))
    weighted = definitions.weighted_sum

    def summed(x: Tensor, d: Tensor, weights: Tensor, at: definitions.Geometry) -> Tensor:
        before = set(ran)
        found = weighted(x, d, weights, at)
        ran.clear()  # The definition sums rows, the kernel does not.
        given = like(x), like(d), like(weights), tuple(at.numbers), at.views
        ran.update(before, [("weighted_sum", *given)])
        return found

    monkeypatch.setattr(definitions, "weighted_sum", summed)
    monkeypatch.setattr(kernels_ahead, "ahead", ahead)
    model = nn.Sequential(
        standardised(nn.Conv2d(8, 16, 3, padding=1)), nn.GroupNorm(2, 16), nn.Mish(),
        nn.Conv2d(16, 8, 3), nn.Flatten(), nn.Linear(8 * 16, 5),
    )  # fmt: skip
    x, y = torch.randn(3 * views, 8, 6, 6), torch.randint(0, 5, (3,))
    objective = PerExample(model, views=views, check=False).objective
    found = Compiled(objective, x, 3, torch.float32, storage=storage).gradients(x, y)
    found.weighted_sum(torch.rand(3, 1))
    whole = ("row_sum", ((3, 5, 128), torch.float32), ((3,), torch.float32))
    assert ran - begun <= {whole}, "all but a large matrix that is stored as it is"
    assert {name for name, *_ in begun} <= set(custom_operators._ON_CUDA)
    assert begun <= ran
