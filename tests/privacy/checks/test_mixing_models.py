"""No model in which one example reaches another passes, and the layer is named."""

from __future__ import annotations

import pytest
import torch
from mixing_models import LOSSES, MIXING
from sound_models import CLASSES, SHAPE
from torch import nn

from sfumato.errors import UserError
from sfumato.privacy import PerExample
from sfumato.privacy.engines.one_at_a_time import one_at_a_time
from sfumato.privacy.verify.verification import verify
from thinning import one_in


@pytest.mark.parametrize("name", one_in(3, MIXING))
def test_verify_fails_for_a_mixing_model(name: str) -> None:
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


def test_a_model_passes_without_its_mixing_layer() -> None:
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


@pytest.mark.parametrize("name", LOSSES)
def test_mixing_loss_is_refused(name: str) -> None:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, CLASSES))
    with pytest.raises(UserError, match="cannot be trained"):
        PerExample(model, loss=LOSSES[name])(torch.rand(9, *SHAPE), torch.arange(9) % CLASSES)


@pytest.mark.parametrize("name", one_in(3, LOSSES))
def test_verify_fails_for_a_mixing_loss(name: str) -> None:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, CLASSES))
    assert not verify(model, input_shape=SHAPE, loss=LOSSES[name]).passed


@pytest.mark.parametrize("odd", [4, 7, 9, 11, 13])
def test_every_size_that_runs_was_checked(odd: int) -> None:
    """A model that mixes in batches of one size only never runs on such a batch unchecked."""

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.h = nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.h(x - x.mean(0) if len(x) == odd else x)
            return out

    torch.manual_seed(0)
    x, y = torch.randn(16, 6), torch.arange(16) % 3
    engine = PerExample(Odd())
    wanted = one_at_a_time(engine.model, x, y)
    engine(x, y)
    for size in range(1, 16):
        try:
            found = engine(x[:size], y[:size])
        except UserError as refused:
            assert size <= odd and "moves the outputs of the others" in str(refused)
            continue
        norms = wanted.squared_norms()[:size]
        assert torch.allclose(found.squared_norms(), norms, rtol=1e-4), size
        total, own = found.weighted_sum(torch.ones(size, 1).double()), wanted.tensors
        for a, b in zip(total, own, strict=True):
            assert torch.allclose(a.float(), b[:size].sum(0), rtol=1e-4, atol=1e-6)  # type: ignore[index]


def test_hooks_that_are_added_later_are_checked() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    x, y = torch.randn(6, 6), torch.arange(6) % 3
    engine = PerExample(model)
    engine(x, y)
    handle = model[1].register_forward_hook(lambda m, args, out: out - out.mean(0))
    with pytest.raises(UserError, match="moves the outputs of the others"):
        engine(x, y)
    handle.remove()
    engine(x, y)
