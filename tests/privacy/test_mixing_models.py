"""No model in which one example reaches another passes, and the layer is named."""

from __future__ import annotations

import pytest
import torch
from mixing_models import MIXING
from sound_models import CLASSES, SHAPE
from torch import nn

from sfumato.errors import UserError
from sfumato.privacy import PerExample
from sfumato.privacy.verify import verify


@pytest.mark.parametrize("name", MIXING)
def test_verify_fails(name: str) -> None:
    torch.manual_seed(2)
    model = MIXING[name]()
    report = verify(model, input_shape=SHAPE)
    assert not report.passed
    failed = [check for check in report.checks if check.passed is False]
    assert failed
    if hasattr(model, "culprit"):
        assert any("'culprit'" in check.detail for check in failed)
        assert any("nn.GroupNorm" in check.fix for check in failed)


@pytest.mark.parametrize("name", MIXING)
def test_engine_refuses(name: str) -> None:
    torch.manual_seed(2)
    rows = 17 if name == "only above sixteen" else 6
    with pytest.raises(UserError, match="cannot be trained"):
        PerExample(MIXING[name]())(torch.rand(rows, *SHAPE), torch.zeros(rows, dtype=torch.int64))


def test_larger_batch_is_checked_again() -> None:
    engine = PerExample(MIXING["only above sixteen"]())
    y = torch.zeros(17, dtype=torch.int64)
    engine(torch.rand(8, *SHAPE), y[:8])
    with pytest.raises(UserError, match="culprit"):
        engine(torch.rand(17, *SHAPE), y)


def test_another_mode_is_checked_again() -> None:
    model = MIXING["only in training"]().eval()
    engine = PerExample(model)
    x, y = torch.rand(4, *SHAPE), torch.zeros(4, dtype=torch.int64)
    engine(x, y)
    model.culprit.train()
    with pytest.raises(UserError, match="culprit"):
        engine(x, y)


@pytest.mark.parametrize(
    ("layer", "fix"),
    [
        (nn.BatchNorm2d(64), r"nn\.GroupNorm\(32, 64\)"),
        (nn.BatchNorm1d(6), r"nn\.GroupNorm\(2, 6\)"),
        (nn.LazyBatchNorm2d(), r"nn\.GroupNorm\(32, channels\)"),
        (nn.InstanceNorm2d(4, track_running_stats=True), "track_running_stats=False"),
    ],
)
def test_refusal_names_layer_and_fix(layer: nn.Module, fix: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.Tanh(), layer))
    with pytest.raises(UserError, match=rf"layer '1\.1'.*{fix}"):
        PerExample(model)


def test_sound_without_its_mixing_layer() -> None:
    model = MIXING["batch mean"]()
    del model.culprit
    report = verify(model, input_shape=SHAPE, classes=CLASSES, batch=5)
    assert report.passed


def test_loss_over_the_batch_is_refused() -> None:

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        own = nn.functional.cross_entropy(outputs, targets, reduction="none")
        return own / (1 + own.detach().mean())

    model = nn.Sequential(nn.Flatten(), nn.Linear(192, CLASSES))
    with pytest.raises(UserError, match="moves with the target of another"):
        PerExample(model, loss=loss)(torch.rand(4, *SHAPE), torch.zeros(4, dtype=torch.int64))
