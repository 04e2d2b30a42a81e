"""Sums of physical batches: all of a batch is added, or nothing."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sfumato.privacy.numerics.totals import Totals


def parameters() -> dict[str, nn.Parameter]:
    filters = torch.zeros(4, 3, 3, 3).contiguous(memory_format=torch.channels_last)
    return {
        "filters": nn.Parameter(filters),
        "matrix": nn.Parameter(torch.zeros(5, 2)),
        "gain": nn.Parameter(torch.zeros(())),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("last", [False, True])
def test_sums_are_added_in_float64_in_any_memory_format(dtype: torch.dtype, last: bool) -> None:
    own = parameters()
    totals, wanted = Totals(own), {n: torch.zeros(p.shape).double() for n, p in own.items()}
    for batch in range(3):
        drawn = torch.Generator().manual_seed(batch)
        sums = {n: torch.randn(p.shape, generator=drawn, dtype=dtype) for n, p in own.items()}
        if last:
            sums["filters"] = sums["filters"].contiguous(memory_format=torch.channels_last)
        totals.add(list(sums), list(sums.values()))
        for name, t in sums.items():
            wanted[name] += t.double()
    for name, total in totals.items():
        assert total.dtype == torch.float64 and torch.equal(total, wanted[name])
    assert torch.equal(totals.vector(), torch.cat([t.reshape(-1) for t in wanted.values()]))


@pytest.mark.parametrize("wrong", ["matrix", "gain"])
def test_nothing_is_added_if_a_sum_does_not_fit(wrong: str) -> None:
    own = parameters()
    totals, sums = Totals(own), {n: torch.ones(p.shape) for n, p in own.items()}
    sums[wrong] = torch.ones(7)
    with pytest.raises(RuntimeError):
        totals.add(list(sums), list(sums.values()))
    assert not totals.vector().any()
