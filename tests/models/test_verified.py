"""Every registered model passes the engine's checks; `verify` in full where it takes seconds."""

from __future__ import annotations

import pytest
import torch

from sfumato import models
from sfumato.privacy.checks.agreement import errors
from sfumato.privacy.engines.one_at_a_time import one_at_a_time
from sfumato.privacy.per_example import PerExample
from sfumato.privacy.verify.verification import verify
from thinning import with_slow

QUICK = ("tanh-cnn", "papernot-1", "wrn-10-1")
LONGER = (
    "convnext-atto", "densenet121", "efficientnet-b0", "eq-wrn-10-1", "papernot-6", "resnet9",
    "scale-wrn-10-1", "vit-tiny",
)  # fmt: skip
"""Slow ones: another of the family is checked here, or its gradients are in the family's tests."""
ALL = [name for name in models.names() if "{" not in name]
SHALLOW = (
    "eq-resnet9-d4", "eq-resnet9-so2-1", "eq-wrn-10-1",
    "papernot-1", "papernot-2", "papernot-6", "resnet9", "scale-resnet9",
    "scale-wrn-10-1", "scatternet", "tanh-cnn", "wrn-10-1",
)  # fmt: skip
"""Those that are checked in seconds; most others have the same blocks."""
DEEP = (
    "convnext-atto", "densenet121", "efficientnet-b0", "resnet18", "resnet20", "smoothnet",
    "vit-tiny",
)  # fmt: skip
"""One of each of the other families."""


def small(name: str) -> tuple[torch.nn.Module, tuple[int, int, int]]:
    info = models.info(name)
    channels, size = info.input[0], max(info.minimum, 8)
    torch.manual_seed(0)
    return models.create(name, classes=4, channels=channels, size=size), (channels, size, size)


def test_every_family_has_a_quick_case() -> None:
    assert {models.info(n).family for n in ALL} == {models.info(n).family for n in SHALLOW + DEEP}


@pytest.mark.parametrize(
    "name", with_slow(ALL, *LONGER, *(name for name in ALL if name not in SHALLOW))
)
def test_every_model_is_checked_and_takes_the_pass_by_operators(name: str) -> None:
    model, shape = small(name)
    engine = PerExample(model)
    engine(torch.randn(2, *shape), torch.tensor([0, 3]))
    assert engine.method == "operators", engine.passed_over
    assert {path.path for path in engine.paths()} <= {"rule", "reparametrised"}


@pytest.mark.parametrize("name", with_slow(DEEP, *LONGER))
def test_deep_models_take_the_pass_by_operators_and_agree_with_the_reference(name: str) -> None:
    model, shape = small(name)
    engine = PerExample(model.double(), check=False)
    x, y = torch.randn(2, *shape).double(), torch.tensor([0, 3])
    found = engine(x, y)
    assert engine.method == "operators"
    assert {path.path for path in engine.paths()} <= {"rule", "reparametrised"}
    assert max(errors(found, one_at_a_time(model, x, y)).values()) <= 1e-8


@pytest.mark.parametrize("name", with_slow(QUICK, "papernot-1", "wrn-10-1"))
def test_verify(name: str) -> None:
    model, shape = small(name)
    report = verify(model, input_shape=shape, classes=4, batch=3)
    assert report.passed, [check for check in report.checks if not check.passed]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ALL)
def test_verify_in_full(name: str) -> None:
    model, shape = small(name)
    report = verify(model, input_shape=shape, classes=4)
    assert report.passed, [check for check in report.checks if not check.passed]
