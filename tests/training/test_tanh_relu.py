"""A short version of `benchmarks/tanh_relu.py` on the real Fashion-MNIST."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from sfumato import data
from sfumato.errors import UserError


def benchmark() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "tanh_relu.py"
    spec = importlib.util.spec_from_file_location("tanh_relu", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_tanh_beats_relu_at_the_same_budget(request: pytest.FixtureRequest) -> None:
    if "slow" not in str(request.config.getoption("-m")):
        pytest.skip("takes minutes: run with -m slow")
    try:
        data.load("fashion-mnist")
    except UserError as missing:
        pytest.skip(str(missing))
    module = benchmark()
    rows = [module.measure(arm, 0, 7.0, 4.0) for arm in ("tanh", "relu")]
    tanh, relu = (row["averaged"] for row in rows)
    assert all(row["epsilon"] <= 2.7 for row in rows)
    assert tanh > 0.8
    assert tanh > relu
