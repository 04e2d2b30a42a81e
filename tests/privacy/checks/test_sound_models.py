"""Every sound model passes `verify`, and takes the path that it should."""

from __future__ import annotations

import pytest
import torch
from sound_models import CLASSES, SOUND

from sfumato.privacy.verify.verification import verify
from thinning import one_in

SLOWER = {
    "rolled_back": "torch.func",
    "control_flow": "loop",
    "traced": "loop",
    "scripted": "loop",
    "own_torch_generator": "loop",
}
NARROW = (
    "mixed_precision_parts",
    "float64_first",
    "bfloat16_middle",
    "rounded_middle",
    "sparse_and_nested",
    "lazy_constants",
)
"""Models of which there is no copy in float64 to compare."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", one_in(14, SOUND))
def test_sound_model_passes(name: str) -> None:
    torch.manual_seed(1)
    build, shape = SOUND[name]
    report = verify(build(), input_shape=shape, classes=CLASSES, batch=9)
    assert report.passed, [check for check in report.checks if not check.passed]
    allowed = 1e-2 if name in NARROW else 1e-9
    assert max(parameter.error for parameter in report.parameters) < allowed
    found = {path.path for path in report.paths}
    if name in SLOWER:
        assert found == {SLOWER[name]}
    else:
        assert "loop" not in found
        assert not any("does not fit" in warning for warning in report.warnings)


def test_unused_parameter_is_a_warning() -> None:
    build, shape = SOUND["unused_parameter"]
    report = verify(build(), input_shape=shape)
    assert report.passed
    assert any("'extra' receives no gradient" in warning for warning in report.warnings)
