"""Every registered model passes the engine's checks; `verify` in full where it takes seconds."""

from __future__ import annotations

import pytest
import torch

from sfumato import models
from sfumato.privacy.per_example import PerExample
from sfumato.privacy.verify.report import verify

QUICK = ("tanh-cnn", "papernot-1", "wrn-10-1")
ALL = [name for name in models.names() if "{" not in name]
DEEP = (
    "wrn-40-4", "scale-wrn-16-4", "resnet34", "resnet50", "scale-resnet50", "eq-resnet9-d16",
    "vit-small", "convnext-tiny",
)  # fmt: skip
"""Those of the same blocks as shallower ones."""


def small(name: str) -> tuple[torch.nn.Module, tuple[int, int, int]]:
    info = models.info(name)
    channels, size = info.input[0], max(info.minimum, 8)
    torch.manual_seed(0)
    return models.create(name, classes=4, channels=channels, size=size), (channels, size, size)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in DEEP else ()) for n in ALL]
)
def test_every_model_is_checked_and_takes_the_pass_by_operators(name: str) -> None:
    model, shape = small(name)
    engine = PerExample(model)
    engine(torch.randn(2, *shape), torch.tensor([0, 3]))
    assert engine.method == "operators", engine.passed_over
    assert {path.way for path in engine.paths()} <= {"rule", "reparametrised"}


@pytest.mark.parametrize("name", QUICK)
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
