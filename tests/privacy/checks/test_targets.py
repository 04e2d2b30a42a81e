"""Losses whose targets are not all alike: rare labels, missing values, labels of other ranges."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.errors import UserError
from sfumato.privacy import PerExample, one_at_a_time
from sfumato.privacy.checks.agreement import errors
from sfumato.privacy.engines.objective import Loss

Targets = Callable[[int], Tensor]


def network(outputs: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, outputs))


def balanced(outputs: Tensor, targets: Tensor) -> Tensor:
    """Positives weigh what there are fewer of them in the batch."""
    there = (targets == 1).float()
    weight = (1 - there).sum() / there.sum().clamp_min(1)
    return F.binary_cross_entropy_with_logits(
        outputs[:, 0], there, pos_weight=weight, reduction="none"
    )


def over_labelled(missing: int) -> Loss:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        own = F.cross_entropy(outputs, targets, ignore_index=missing, reduction="none")
        return own * len(targets) / (targets != missing).sum().clamp_min(1)

    return loss


def over_known(outputs: Tensor, targets: Tensor) -> Tensor:
    known = ~targets.isnan()
    off = (outputs - targets.nan_to_num(0.0)).square() * known
    return off.sum(1) * known.numel() / known.sum().clamp_min(1)


def over_present(outputs: Tensor, targets: Tensor) -> Tensor:
    present = targets > -900
    off = (outputs - targets).square() * present
    return off.sum(1) * present.numel() / present.sum().clamp_min(1)


def over_largest(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs[:, 0] - targets).square() / targets.abs().max().clamp_min(1)


def signed(outputs: Tensor, targets: Tensor) -> Tensor:
    share = (targets > 0).float().mean()
    weight = torch.where(targets > 0, 1 / (share + 0.1), 1 / (1.1 - share))
    return weight * F.softplus(-targets * outputs[:, 0])


def with_gaps(examples: int) -> Tensor:
    targets = torch.randn(examples, 3)
    targets[2, 1] = float("nan")
    return targets


MIXING: dict[str, tuple[int, Loss, Targets]] = {
    "positives, none in the batch": (1, balanced, lambda n: torch.zeros(n, dtype=torch.long)),
    "positives as numbers": (1, balanced, torch.zeros),
    "labelled with -1, all in the batch": (5, over_labelled(-1), lambda n: torch.arange(n) % 5),
    "labelled with -100, all in the batch": (5, over_labelled(-100), lambda n: torch.arange(n) % 5),
    "not a number": (3, over_known, with_gaps),
    "a number that stands for none": (
        3,
        over_present,
        lambda n: torch.randn(n, 3).index_fill(0, torch.tensor([4]), -999),
    ),
    "the largest": (1, over_largest, lambda n: 3 * torch.randn(n)),
    "the largest count": (1, over_largest, lambda n: torch.arange(n) * 10),
    "signs": (1, signed, lambda n: torch.arange(n) % 2 * 2 - 1),
    "signs as numbers": (1, signed, lambda n: torch.arange(n) % 2 * 2.0 - 1),
}


@pytest.mark.parametrize("name", MIXING)
@pytest.mark.parametrize("examples", [7, 32])
def test_a_target_that_reaches_other_examples_is_found(name: str, examples: int) -> None:
    """However rare it is among the targets of the first batch."""
    outputs, loss, targets = MIXING[name]
    torch.manual_seed(1)
    with pytest.raises(UserError, match="moves with the target of another"):
        PerExample(network(outputs), loss=loss)(torch.randn(examples, 20), targets(examples))


def boxes(outputs: Tensor, targets: Tensor) -> Tensor:
    sides = targets[:, 2:] - targets[:, :2]
    return (outputs - torch.cat([targets[:, :2], sides.log()], 1)).square().sum(1)


def corners(examples: int) -> Tensor:
    first = torch.rand(examples, 2) / 2
    return torch.cat([first, first + 0.1 + torch.rand(examples, 2) / 3], 1)


SOUND: dict[str, tuple[int, Loss, Targets]] = {
    "sides of boxes": (4, boxes, corners),
    "logarithm": (1, lambda o, y: (o[:, 0] - (y - 1).log()).square(), lambda n: 2 + torch.rand(n)),
    **{
        f"labels from 1 to {classes}": (
            classes,
            lambda o, y: F.cross_entropy(o, y - 1, reduction="none"),
            lambda n, classes=classes: 1 + torch.arange(n) % classes,  # type: ignore[misc]
        )
        for classes in (2, 3, 5, 10)
    },
    "some not labelled": (
        5,
        lambda o, y: F.cross_entropy(o, y, ignore_index=-1, reduction="none"),
        lambda n: torch.arange(n) % 6 - 1,
    ),
    "not a number": (
        3,
        lambda o, y: ((o - y.nan_to_num(0.0)).square() * ~y.isnan()).sum(1),
        with_gaps,
    ),
    "positives": (
        1,
        lambda o, y: F.binary_cross_entropy_with_logits(o[:, 0], y.float(), reduction="none"),
        lambda n: torch.zeros(n, dtype=torch.bool),
    ),
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_losses_of_unusual_targets_take_the_fast_pass(name: str) -> None:
    outputs, loss, targets = SOUND[name]
    torch.manual_seed(1)
    model, x, y = network(outputs), torch.randn(9, 20), targets(9)
    engine = PerExample(model, loss=loss)
    found = engine(x, y)
    assert engine.method == "operators", engine.passed_over
    assert max(errors(found, one_at_a_time(model, x, y, loss=loss)).values()) < 1e-4


def series(outputs: Tensor, targets: Tensor) -> Tensor:
    lengths = [torch.full((len(targets),), n) for n in (outputs.shape[1], targets.shape[1])]
    symbols = outputs.log_softmax(2).transpose(0, 1)
    return F.ctc_loss(symbols, targets, *lengths, reduction="none")


def test_the_loss_of_series_is_not_given_symbols_that_are_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PyTorch's kernel reads memory that is not its own then."""
    seen: list[Tensor] = []
    own = F.ctc_loss

    def spied(symbols: Tensor, targets: Tensor, *given: Tensor, **options: str) -> Tensor:
        seen.append(targets)
        return own(symbols, targets, *given, **options)

    monkeypatch.setattr(F, "ctc_loss", spied)
    torch.manual_seed(0)
    model, x, y = nn.Linear(20, 30), torch.randn(4, 100, 20), torch.randint(1, 30, (4, 10))
    engine = PerExample(model, loss=series)
    found = engine(x, y)
    assert engine.method == "operators", engine.passed_over
    assert max(errors(found, one_at_a_time(model, x, y, loss=series)).values()) < 1e-4
    assert seen and all(int(t.min()) >= 0 and int(t.max()) < 30 for t in seen)


def test_the_checks_leave_the_loss_as_it_was() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
            self.calls += 1
            return F.cross_entropy(outputs, targets, reduction="none")

    loss = Counting()
    PerExample(network(5), loss=loss).settle(torch.randn(6, 20), torch.arange(6) % 5)
    assert loss.calls == 0
