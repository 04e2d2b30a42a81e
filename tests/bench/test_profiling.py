from __future__ import annotations

import pytest
import torch
from bench_fakes import TINY

from sfumato.bench import profiling
from sfumato.bench.cases import Case


def test_the_floor_counts_three_products_of_each_layer() -> None:
    from sfumato.models._summary import summary_of

    case = Case(model="resnet9", rows=4, physical=1, examples=64, precision="bfloat16")
    floor = profiling.floor_of(case, "NVIDIA H200")
    assert floor.operations == 6 * 4 * summary_of("resnet9").macs
    assert floor.compute_seconds == pytest.approx(floor.operations / 989e12)
    assert floor.memory_seconds == pytest.approx(floor.bytes / 4.8e12)
    assert profiling.floor_of(case, "another").compute_seconds is None


def test_a_profile_names_the_costly_operators() -> None:
    found = profiling.profile(TINY, torch.device("cpu"), steps=2)
    assert sum(k.share for k in found.kernels) <= 1.0001
    times = [k.seconds for k in found.kernels]
    assert times == sorted(times, reverse=True)
    assert any("aten::" in k.name for k in found.kernels)
    assert profiling.read(found.to_dict()) == found
    assert "| kernel |" in profiling.to_markdown(found)
    assert "not known" in profiling.lines(found)[-1]
