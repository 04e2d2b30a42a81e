"""Targets of units of any value and type: padding takes none of them, and adds nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.errors import UserError
from sfumato.privacy import (
    Flat,
    GaussianNoise,
    PoissonSampler,
    PrivateGradients,
    Unclipped,
    one_at_a_time,
)
from sfumato.privacy.checks.examples_alone import _slope, run_alone
from sfumato.privacy.engines.compiled import Compiled
from sfumato.privacy.engines.objective import Loss, Objective
from sfumato.privacy.engines.operators import Operators
from sfumato.privacy.engines.results import PerExampleGradients
from sfumato.privacy.engines.unit_loss import UnitLoss
from sfumato.privacy.engines.unit_targets import joined, parted
from sfumato.privacy.engines.vectorised import Vectorised
from uncompiled import run_without_code

SIZES = [1, 3, 2, 4, 1, 7]
IMAGES = sum(SIZES)
IDS = torch.repeat_interleave(torch.arange(len(SIZES)), torch.tensor(SIZES))
CLIP = 0.5
CLASSES = torch.arange(IMAGES) * 7 % 4


@dataclass(frozen=True)
class Case:
    """A loss with targets of all images."""

    outputs: int
    loss: Loss
    y: Tensor


def entropy(missing: int = -100) -> Loss:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets, ignore_index=missing, reduction="none")

    return loss


def of_signs(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.softplus(-targets * outputs[:, 0])


def square(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs[:, 0] - targets).square()


def known_squares(outputs: Tensor, targets: Tensor) -> Tensor:
    """A missing number costs a little, so that it is seen whether its image counts."""
    off = (outputs - targets.nan_to_num(0.0).view_as(outputs)).square()
    return torch.where(targets.isnan().view_as(outputs), 0.1 * outputs.square(), off).sum(1)


def binary(outputs: Tensor, targets: Tensor) -> Tensor:
    own = targets.to(outputs.dtype).view_as(outputs)
    return F.binary_cross_entropy_with_logits(outputs, own, reduction="none").sum(1)


def known_labels(outputs: Tensor, targets: Tensor) -> Tensor:
    known = targets >= 0
    own = F.binary_cross_entropy_with_logits(
        outputs, targets.clamp_min(0).to(outputs.dtype), reduction="none"
    )
    return torch.where(known, own, 0.1 * outputs.square()).sum(1)


def with_every_third(y: Tensor, value: float) -> Tensor:
    y = y.clone()
    y[::3] = value
    return y


MANY = torch.randn(IMAGES, 3, generator=torch.Generator().manual_seed(3))

CASES = {
    "classes": Case(4, entropy(), CLASSES),
    "-1 is not labelled": Case(4, entropy(-1), with_every_third(CLASSES, -1)),
    "-1 and 1": Case(1, of_signs, CLASSES % 2 * 2 - 1),
    "all are -1": Case(1, of_signs, torch.full((IMAGES,), -1)),
    "-1 as a number": Case(1, square, with_every_third(MANY[:, 0], -1.0)),
    "counts below zero": Case(1, square, CLASSES - 3),
    "-100 is not labelled": Case(4, entropy(), with_every_third(CLASSES, -100)),
    "NaN is missing": Case(1, known_squares, with_every_third(MANY[:, 0], math.nan)),
    "NaN is missing among several": Case(
        3, known_squares, torch.where(MANY > 0.5, torch.full_like(MANY, math.nan), MANY)
    ),
    "a whole row of NaN is missing": Case(3, known_squares, with_every_third(MANY, math.nan)),
    "bool": Case(1, binary, CLASSES > 1),
    "several of bool": Case(3, binary, MANY > 0),
    "bytes": Case(4, entropy(), CLASSES.to(torch.uint8)),
    "signed bytes": Case(1, of_signs, (CLASSES % 2 * 2 - 1).to(torch.int8)),
    "numbers": Case(1, square, MANY[:, 0]),
    "several labels": Case(3, binary, (MANY > 0).long()),
    "several labels as numbers": Case(3, binary, (MANY > 0).float()),
    "several labels, -1 for none": Case(
        3, known_labels, torch.where(MANY < -1, -1, (MANY > 0).long())
    ),
}


def network(outputs: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, outputs)).double()


def inputs(views: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(IMAGES * views, 5, generator=generator, dtype=torch.float64)


def unit_gradient(model: nn.Module, case: Case, x: Tensor, views: int, unit: int) -> Tensor:
    """The mean over the images of a unit, one image at a time through autograd."""
    own = (unit == IDS).nonzero().flatten().tolist()
    mean = torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    for i in own:
        rows = slice(i * views, (i + 1) * views)
        loss = case.loss(model(x[rows]), case.y[i : i + 1].repeat_interleave(views, 0)).mean()
        grads = torch.autograd.grad(loss, list(model.parameters()))
        mean += torch.cat([g.flatten() for g in grads]) / len(own)
    return mean


def wanted(case: Case, views: int, clip: float = CLIP) -> Tensor:
    model, x = network(case.outputs), inputs(views)
    found = [unit_gradient(model, case, x, views, unit) for unit in range(len(SIZES))]
    return torch.stack([g * min(1.0, clip / (float(g.norm()) or 1.0)) for g in found])


def private(case: Case, images: int, views: int, **changes: object) -> PrivateGradients:
    settings: dict[str, object] = {"clipping": Flat(CLIP), "check": True} | changes
    return PrivateGradients(
        network(case.outputs), sampler=PoissonSampler(40, 8), noise=GaussianNoise(0.0),
        loss=case.loss, images=images, views=views, **settings,
    )  # fmt: skip


def released(mechanism: PrivateGradients) -> Tensor:
    statistics = mechanism.release()
    assert statistics.examples == len(SIZES) and statistics.not_finite == 0
    parameters = mechanism.per_example.model.parameters()
    return 8 * torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])


def dense(case: Case, images: int, views: int) -> tuple[Tensor, Tensor, Tensor]:
    """All units side by side: padding repeats the last image of its unit, inputs and target."""
    counts, end = torch.tensor(SIZES).clamp(max=images), torch.tensor(SIZES).cumsum(0)
    place = torch.arange(images).expand(len(SIZES), -1)
    there = place < counts[:, None]
    at = (end - torch.tensor(SIZES))[:, None] + place.minimum(counts[:, None] - 1)
    x = inputs(views).view(IMAGES, views, -1)[at.flatten()].flatten(0, 1)
    return x, case.y[at], there


def agree(found: Tensor, expected: Tensor) -> None:
    """Rules clip a little below the clipping norm, so that rounding cannot exceed it."""
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)


def equal(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("views", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_a_unit_adds_the_mean_over_its_real_images(name: str, views: int) -> None:
    case = CASES[name]
    mechanism = private(case, 4, views)
    mechanism.accumulate(inputs(views), case.y, units=IDS)
    agree(released(mechanism), wanted(case, views).sum(0))
    assert mechanism.per_example.method == "operators", mechanism.per_example.passed_over


@pytest.mark.parametrize(
    "images", [1, 3, 7, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 5, 9))]
)
@pytest.mark.parametrize("name", CASES)
def test_whatever_the_images_that_run_at_once(name: str, images: int) -> None:
    case = CASES[name]
    for at_once in (2, IMAGES):
        mechanism = private(case, images, 3, check=False)
        for a in range(0, IMAGES, at_once):
            part = slice(a, a + at_once)
            x = inputs(3)[a * 3 : (a + at_once) * 3]
            mechanism.accumulate(x, case.y[part], units=IDS[part])
        agree(released(mechanism), wanted(case, 3).sum(0))


@pytest.mark.parametrize("views", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_dense_batches_have_a_mask(name: str, views: int) -> None:
    case, (x, y, there) = CASES[name], dense(CASES[name], 7, views)
    whole = private(case, 7, views)
    whole.accumulate(x, y, there=there)
    agree(released(whole), wanted(case, views).sum(0))
    by_two = private(case, 7, views, check=False)
    by_two.backward(x, y, there=there, physical_batch=2)
    by_two.accumulate(x, y, torch.arange(len(SIZES)) > 0, there=there)
    found = 8 * _after(by_two)
    agree(found, wanted(case, views)[1:].sum(0))
    whole.check(x, y, there=there)


def _after(mechanism: PrivateGradients) -> Tensor:
    mechanism.release()
    parameters = mechanism.per_example.model.parameters()
    return torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])


@pytest.mark.parametrize("name", ["-1 and 1", "NaN is missing", "several of bool"])
def test_without_clipping_the_means_are_added(name: str) -> None:
    case = CASES[name]
    mechanism = private(case, 4, 3, clipping=Unclipped())
    mechanism.accumulate(inputs(3), case.y, units=IDS)
    equal(released(mechanism), wanted(case, 3, math.inf).sum(0))


def every(found: PerExampleGradients, examples: int) -> Tensor:
    """The gradients of all examples, one after the other."""
    weights = torch.eye(examples, dtype=torch.float64)
    rows = [found.weighted_sum(row.unsqueeze(1)) for row in weights]
    return torch.stack([torch.cat([t.flatten().double() for t in row]) for row in rows])


@pytest.mark.parametrize("views", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_every_engine_gives_the_gradient_of_each_unit(
    name: str, views: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_without_code(monkeypatch)
    case, (x, y, there) = CASES[name], dense(CASES[name], 7, views)
    model = network(case.outputs)
    objective = Objective(model, UnitLoss(case.loss, 7, views), 7 * views)
    targets, expected = joined(y, there), wanted(case, views, math.inf)
    equal(
        every(one_at_a_time(model, x, targets, loss=objective.loss, views=7 * views), len(SIZES)),
        expected,
    )
    equal(every(Operators(objective).gradients(x, targets), len(SIZES)), expected)
    equal(every(Vectorised(objective).gradients(x, targets), len(SIZES)), expected)
    if name == "bytes":
        return  # PyTorch does not trace the gradient of cross-entropy with labels in bytes.
    compiled = Compiled(objective, x, len(SIZES), torch.float64)
    torch.testing.assert_close(
        every(compiled.gradients(x, targets), len(SIZES)), expected, rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("name", CASES)
def test_targets_and_mask_come_back_as_they_were(name: str) -> None:
    _, y, there = dense(CASES[name], 7, 1)
    both = joined(y, there)
    assert both.dtype == y.dtype and both.shape == (len(SIZES), 2, *y.shape[1:])
    targets, mask = parted(both)
    assert torch.equal(mask, there)
    first = torch.where(there.view(*there.shape, *(1 for _ in y.shape[2:])), y, y[:, :1])
    torch.testing.assert_close(targets, first, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("value", [-1, 10**9])
def test_targets_of_padding_are_not_read(value: int) -> None:
    """Whatever it is, a loss that looks up classes is not given it."""
    case, (x, y, there) = CASES["classes"], dense(CASES["classes"], 7, 1)
    mechanism = private(case, 7, 1)
    mechanism.accumulate(x, torch.where(there, y, value), there=there)
    agree(released(mechanism), wanted(case, 1).sum(0))


def test_padding_may_lie_anywhere_and_a_unit_may_have_no_image() -> None:
    case, (x, y, there) = CASES["-1 and 1"], dense(CASES["-1 and 1"], 7, 1)
    order = torch.tensor([6, 5, 4, 3, 2, 1, 0])
    x = x.view(len(SIZES), 7, -1)[:, order].flatten(0, 1)
    there = there[:, order]
    there[2] = False
    mechanism = private(case, 7, 1)
    mechanism.accumulate(x, y[:, order], there=there)
    expected = wanted(case, 1)
    agree(released(mechanism), expected.sum(0) - expected[2])


@pytest.mark.parametrize(
    ("images", "mask", "sentence"),
    [
        (7, torch.ones(6, 3), r"shape \(6, 7\)"),
        (7, [True] * 7, "tensor"),
        (1, torch.ones(6, 7), "images=1"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused(images: int, mask: Tensor, sentence: str) -> None:
    case, (x, y, _) = CASES["classes"], dense(CASES["classes"], 7, 1)
    mechanism = private(case, images, 1)
    x, y = (x, y) if images > 1 else (x[::7], y[:, 0])
    with pytest.raises(UserError, match=sentence):
        mechanism.accumulate(x, y, there=mask)


def test_a_mask_beside_units_is_refused() -> None:
    mechanism = private(CASES["classes"], 4, 1)
    there = torch.ones(IMAGES, dtype=torch.bool)
    with pytest.raises(UserError, match="weights"):
        mechanism.accumulate(inputs(1), CLASSES, units=IDS, there=there)


def test_targets_without_numbers_are_refused() -> None:
    mechanism = private(CASES["classes"], 4, 1)
    with pytest.raises(UserError, match="one number"):
        mechanism.accumulate(inputs(1), torch.zeros(IMAGES, 0), units=IDS)


def over_labelled(missing: int) -> Loss:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        own = F.cross_entropy(outputs, targets, ignore_index=missing, reduction="none")
        return own * len(targets) / (targets != missing).sum().clamp_min(1)

    return loss


def over_known(outputs: Tensor, targets: Tensor) -> Tensor:
    return known_squares(outputs, targets) / (~targets.isnan()).sum().clamp_min(1)


def centred(outputs: Tensor, targets: Tensor) -> Tensor:
    return square(outputs - outputs.mean(), targets)


MIXING: dict[str, tuple[Loss, Callable[[], Tensor]]] = {
    "labelled with -1, all in the batch": (over_labelled(-1), lambda: CLASSES),
    "labelled with -100, all in the batch": (over_labelled(-100), lambda: CLASSES),
    "not a number, none in the batch": (over_known, lambda: MANY),
    "outputs of others": (centred, lambda: MANY[:, 0]),
}


@pytest.mark.parametrize("name", MIXING)
def test_a_loss_that_combines_images_is_refused(name: str) -> None:
    loss, y = MIXING[name]
    mechanism = private(Case(4 if y().dim() == 1 else 3, loss, y()), 4, 1)
    with pytest.raises(UserError, match="moves with the"):
        mechanism.accumulate(inputs(1), y(), units=IDS)


@pytest.mark.parametrize("check", [True, False])
def test_a_loss_that_is_one_number_is_refused(check: bool) -> None:
    mechanism = private(Case(4, lambda o, y: F.cross_entropy(o, y), CLASSES), 4, 1, check=check)
    with pytest.raises(UserError, match="one number per row"):
        mechanism.accumulate(inputs(1), CLASSES, units=IDS)


@pytest.mark.parametrize("name", ["classes", "-100 is not labelled", "bytes", "bool"])
def test_units_are_measured_by_labels_that_were_not_predicted(name: str) -> None:
    """Their own images are, as the next class; padding stays padding."""
    case, (x, y, there) = CASES[name], dense(CASES[name], 7, 1)
    engine = private(case, 7, 1).per_example
    engine.settle(x, joined(y, there))
    for unit in range(len(SIZES)):
        known = max(2, int(case.y[unit == IDS].max()) + 1)
        next_ones = ((case.y + 1) % min(known, case.outputs)).to(case.y.dtype)
        others = Case(case.outputs, case.loss, next_ones)
        expected = unit_gradient(network(case.outputs), others, inputs(1), 1, unit).norm()
        alone = run_alone(engine, x, joined(y, there), torch.tensor([unit]))
        assert alone is not None
        assert _slope(engine, alone) == pytest.approx(float(expected), rel=1e-9)


def test_a_map_of_labels_for_each_image() -> None:
    torch.manual_seed(0)
    model = nn.Conv2d(2, 3, 3, padding=1).double()
    x, y = torch.randn(IMAGES, 2, 4, 4).double(), torch.randint(-1, 3, (IMAGES, 4, 4))

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets, ignore_index=-1, reduction="none").mean((1, 2))

    mechanism = PrivateGradients(
        model, sampler=PoissonSampler(40, 8), clipping=Unclipped(), noise=GaussianNoise(0.0),
        loss=loss, images=3,
    )  # fmt: skip
    mechanism.accumulate(x, y, units=IDS)
    means = [loss(model(x[unit == IDS]), y[unit == IDS]).mean() for unit in range(len(SIZES))]
    grads = torch.autograd.grad(torch.stack(means).sum(), list(model.parameters()))
    equal(released(mechanism), torch.cat([g.flatten() for g in grads]))


@pytest.mark.parametrize(
    "images",
    [pytest.param(1, id="one image of a unit at once"), pytest.param(7, id="all at once")],
)
def test_the_first_image_decides_whether_a_unit_is_right(images: int) -> None:
    case = CASES["classes"]
    mechanism = private(case, images, 1)
    mechanism.accumulate(inputs(1), case.y, units=IDS)
    with torch.no_grad():
        right = mechanism.per_example.model(inputs(1)).argmax(1) == case.y
    first = torch.tensor(SIZES).cumsum(0) - torch.tensor(SIZES)
    assert mechanism.release().correct == int(right[first].sum())
