"""What `verify` reports, what it leaves alone, and what it calls a mistake."""

from __future__ import annotations

import pytest
import torch
from mixing_models import MIXING
from sound_models import CLASSES, SHAPE, SOUND, around
from torch import Tensor, nn

from sfumato.errors import UserError
from sfumato.privacy.clipping import Flat
from sfumato.privacy.numerics.model_state import Snapshot
from sfumato.privacy.verify.verification import verify


def small() -> nn.Module:
    torch.manual_seed(0)
    return around(nn.Conv2d(3, 4, 3), channels=4)


def failed(report) -> dict[str, str]:
    return {check.name: check.detail for check in report.checks if check.passed is False}


def test_report_of_a_sound_model() -> None:
    report = verify(small(), input_shape=SHAPE, classes=CLASSES, batch=5)
    names = [check.name for check in report.checks]
    assert report.passed and len(names) == len(set(names)) == 15
    assert [p.name for p in report.parameters] == ["0.weight", "0.bias", "4.weight", "4.bias"]
    assert [(p.module, p.kind, p.path) for p in report.paths] == [
        ("0", "Conv2d", "rule"),
        ("4", "Linear", "rule"),
    ]
    ratio = next(c.number for c in report.checks if "realised" in c.name)
    assert ratio is not None and 0.9999 < ratio <= 1


def test_report_says_whether_isolation_is_proved_or_tested() -> None:
    proved = verify(small(), input_shape=SHAPE, batch=4)
    assert proved.proof is not None and proved.proof.proved
    details = {c.name: c.detail for c in proved.checks}
    said = f"proved on a graph of {proved.proof.operators} operators, for every size of batch"
    assert details["changing one example moves no other's output"] == said
    assert details["changing one example moves no other's gradient"] == "proved"
    tested = verify(SOUND["rolled_back"][0](), input_shape=SHAPE, batch=4)
    assert tested.passed and tested.proof is not None and not tested.proof.proved
    details = {c.name: c.detail for c in tested.checks}
    said = "tested on random inputs (not proved: operator aten.roll in the model (Model): "
    assert details["changing one example moves no other's output"].startswith(said)
    assert verify(MIXING["batch mean"](), input_shape=SHAPE).proof is None


def test_report_of_a_refused_model_has_every_row() -> None:
    report = verify(MIXING["batch norm"](), input_shape=SHAPE)
    assert not report.passed and len(report.checks) == 15
    assert "use nn.GroupNorm" in failed(report)["no layer that is known to mix examples"]
    assert [c.passed for c in report.checks].count(None) > 5


def test_model_is_left_as_it_was() -> None:
    net = SOUND["dropouts"][0]().eval()
    net[0].train()
    before, modes = Snapshot(net), [m.training for m in net.modules()]
    state = torch.get_rng_state()
    verify(net, input_shape=SHAPE, batch=4)
    assert before.first_difference(Snapshot(net)) is None
    assert modes == [m.training for m in net.modules()]
    assert torch.equal(state, torch.get_rng_state())
    assert all(p.grad is None and p.dtype == torch.float32 for p in net.parameters())


def test_a_model_that_only_runs_in_float32_is_verified() -> None:
    class Single(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = small()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(
                x + torch.ones(3, 8, 8, dtype=torch.float32).to(x) * x.new_ones(()).float()
            )

    class Typed(Single):
        def forward(self, x: Tensor) -> Tensor:
            if x.dtype != torch.float32:
                raise TypeError("float32 only")
            return self.inner(x)

    report = verify(Typed(), input_shape=SHAPE, batch=4)
    assert report.passed
    assert any("does not run in float64" in check.name for check in report.checks)


def test_a_float64_model_is_verified_on_given_inputs() -> None:
    x, y = torch.zeros(2, *SHAPE, dtype=torch.float64), torch.zeros(2, dtype=torch.int64)
    report = verify(small().double(), x=x, y=y, batch=4)
    assert report.passed
    assert not any("float32" in check.name for check in report.checks)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"input_shape": (1, 8, 8)}, "does not run on inputs of shape"),
        ({"input_shape": SHAPE, "classes": 7}, "each of 7 classes"),
        ({"input_shape": SHAPE, "batch": 1}, "at least 2"),
        ({}, "either the shape"),
        ({"input_shape": SHAPE, "x": torch.zeros(1, *SHAPE)}, "either the shape"),
    ],
)
def test_impossible_arguments_of_verify_are_refused(changes: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        verify(small(), **changes)


def test_a_clipping_rule_that_lets_too_much_through_is_found(monkeypatch) -> None:
    right = Flat.weights
    monkeypatch.setattr(Flat, "weights", lambda self, s: right(self, s) * (1 + 2e-5))
    found = failed(verify(small(), input_shape=SHAPE, batch=4))
    assert list(found) == ["the realised norm is at most C"]


def test_a_sum_that_keeps_nan_is_found(monkeypatch) -> None:
    right = Flat.weights
    monkeypatch.setattr(Flat, "weights", lambda self, s: right(self, s).clamp_min(1e-9))
    assert "one NaN example adds nothing" in failed(verify(small(), input_shape=SHAPE, batch=4))


def test_a_wrong_sum_is_found(monkeypatch) -> None:
    from sfumato.privacy.engines.results import Gradients

    right = Gradients.weighted_sum
    monkeypatch.setattr(
        Gradients, "weighted_sum", lambda self, w: [0.99 * s for s in right(self, w)]
    )
    found = failed(verify(small(), input_shape=SHAPE, batch=4))
    assert list(found) == ["the clipped sum is the reference's"]
