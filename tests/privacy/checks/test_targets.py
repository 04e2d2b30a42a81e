"""Losses whose targets are not all alike: rare labels, missing values, labels of other ranges."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sfumato.errors import UserError
from sfumato.privacy import PerExample, one_at_a_time
from sfumato.privacy.checks.accepted_targets import in_double, on_cpu, with_tensors
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


def bare(outputs: Tensor, targets: Tensor) -> Tensor:
    """Not a number where no target is labelled."""
    own = F.cross_entropy(outputs, targets, reduction="none")
    return own / (targets != -100).sum() * len(targets)


def rare_class(outputs: Tensor, targets: Tensor) -> Tensor:
    own = F.cross_entropy(outputs, targets, reduction="none")
    return own * 2 if bool((targets == 777).any()) else own


def threshold(outputs: Tensor, targets: Tensor) -> Tensor:
    own = (outputs[:, 0] - targets).square()
    return own / 2 if float(targets.max()) > 100 else own


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
    "labelled, without a floor": (5, bare, lambda n: torch.arange(n) % 5),
    "one class of many": (1000, rare_class, lambda n: torch.arange(n)),
    "void pixels": (
        5,
        over_labelled(255),
        lambda n: (torch.arange(n) % 5).to(torch.uint8).long(),
    ),
    "beyond a threshold": (1, threshold, torch.rand),
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


def labelled_rows(matrix: Tensor) -> Loss:
    """The number of rows that are multiplied decides how a library rounds."""

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        there = targets >= 0
        own = outputs.new_zeros(len(outputs))
        own[there] = (outputs[there] @ matrix.to(outputs.dtype)).square().mean(1)
        return own

    return loss


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
    "only the labelled rows": (
        64,
        labelled_rows(torch.randn(64, 48)),
        lambda n: torch.arange(n) - 2,
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


class Symbols(TorchFunctionMode):
    """Mode that records what the loss of series is given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (F.ctc_loss, torch.ctc_loss):
            self.seen.append(args[1])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("length", [10, 30])
def test_the_loss_of_series_is_not_given_symbols_that_are_none(length: int) -> None:
    """PyTorch's kernel reads memory that is not its own then."""
    torch.manual_seed(0)
    model, x = nn.Linear(20, 30), torch.randn(4, 100, 20)
    y = torch.randint(1, 30, (4, length))
    engine = PerExample(model, loss=series)
    with Symbols() as symbols:
        found = engine(x, y)
    assert engine.method == "operators", engine.passed_over
    assert max(errors(found, one_at_a_time(model, x, y, loss=series)).values()) < 1e-4
    assert symbols.seen
    assert all(int(t.min()) >= 0 and int(t.max()) < 30 for t in symbols.seen)


def test_targets_of_another_shape_or_kind_are_checked_again() -> None:
    torch.manual_seed(0)
    model = nn.Linear(20, 1)
    engine = PerExample(model, loss=lambda o, y: (o - y).square().mean(1))
    x = torch.randn(6, 20)
    engine(x, torch.randn(6, 1))
    with pytest.raises(UserError, match="moves with the"):
        engine(x, torch.randn(6))


def test_a_loss_that_moves_outputs_in_place_is_checked() -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        outputs.div_(2.0)
        return over_labelled(-100)(outputs, targets)

    with pytest.raises(UserError, match="moves with the"):
        PerExample(network(5), loss=loss)(torch.randn(6, 20), torch.arange(6) % 5)


def test_a_loss_keeps_what_it_does_where_its_tensors_are_moved() -> None:
    weight, teacher = torch.rand(5), network(5)
    targets, outputs = torch.arange(6) % 5, torch.randn(6, 5)

    def loss(outputs: Tensor, targets: Tensor, weight: Tensor = weight) -> Tensor:
        own = F.cross_entropy(outputs, targets, weight, reduction="none")
        return own + (outputs - teacher(torch.ones(len(outputs), 20))).square().sum(1)

    moved = with_tensors(loss, on_cpu)
    torch.testing.assert_close(moved(outputs, targets), loss(outputs, targets))
    assert moved is not loss
    wide = with_tensors(partial(loss, weight=weight), in_double)
    assert wide.keywords["weight"].dtype == torch.float64 == wide.func.__defaults__[0].dtype
    held = dict(zip(moved.__code__.co_freevars, moved.__closure__, strict=True))
    assert held["teacher"].cell_contents is not teacher


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
