"""The compiled pass's own rules and slots against ordinary autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sfumato.kernels import definitions
from sfumato.nn.standardise import standardised
from sfumato.privacy.engines import compiled_rules
from sfumato.privacy.engines.compiled import Compiled
from sfumato.privacy.engines.compiled_rules import group_norm, mish
from sfumato.privacy.engines.operators import Operators
from sfumato.privacy.engines.storage_plan import Storage
from sfumato.privacy.engines.stored_gradients import Matrix
from sfumato.privacy.per_example import PerExample
from uncompiled import run_without_code


@pytest.fixture(autouse=True)
def _traced(monkeypatch: pytest.MonkeyPatch) -> None:
    run_without_code(monkeypatch)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(6, 8, 5, 4), (6, 8), (6, 8, 3)])
def test_group_norm_is_pytorchs(shape: tuple[int, ...], affine: bool) -> None:
    torch.manual_seed(0)
    values: tuple[Tensor | None, Tensor | None] = (None, None)
    if affine:
        values = torch.randn(8).double(), torch.randn(8).double()
    x = torch.randn(shape).double() * 2 + 3
    weights = torch.randn(shape).double()
    own = x.clone().requires_grad_()
    leaves = [None if v is None else v.expand(3, 8).clone().requires_grad_() for v in values]
    y = group_norm(own, *values, *leaves, 4, 1e-5, 2)
    wanted = [own, *(leaf for leaf in leaves if leaf is not None)]
    ours = [y.detach(), *torch.autograd.grad((y * weights).sum(), wanted)]
    theirs: list[list[Tensor]] = []
    for i in range(3):
        rows = slice(2 * i, 2 * i + 2)
        one = x[rows].clone().requires_grad_()
        given = [None if v is None else v.clone().requires_grad_() for v in values]
        y = torch.nn.functional.group_norm(one, 4, *given)
        alone = [one, *(v for v in given if v is not None)]
        grads = torch.autograd.grad((y * weights[rows]).sum(), alone)
        theirs.append([y.detach(), grads[0], *(g.unsqueeze(0) for g in grads[1:])])
    for found, parts in zip(ours, zip(*theirs, strict=True), strict=True):
        torch.testing.assert_close(found, torch.cat(parts))


def test_group_norm_may_be_changed_in_place_afterwards() -> None:
    x = torch.randn(2, 4, 3, 3, requires_grad=True)
    group_norm(x, None, None, None, None, 2, 1e-5, 1).relu_().sum().backward()
    assert x.grad is not None


def test_group_norm_keeps_float32_statistics_of_narrow_inputs() -> None:
    x = (torch.randn(4, 8, 6, 6) + 30).bfloat16()
    ours = group_norm(x, None, None, None, None, 2, 1e-5, 1)
    wanted = torch.nn.functional.group_norm(x.float(), 2)
    torch.testing.assert_close(ours.float(), wanted, rtol=0, atol=0.02)


def test_mish_is_pytorchs() -> None:
    ends = torch.tensor([-1e4, -100.0, -20.5, -1e-9, 0.0, 1e-9, 19.9, 20.1, 45.0, 1e4])
    x = torch.cat([torch.linspace(-30, 30, 4001), ends]).double().requires_grad_()
    for own in (x, x.detach().float().requires_grad_()):
        d = torch.randn_like(own)
        ours, wanted = mish(own), torch.nn.functional.mish(own)
        torch.testing.assert_close(ours, wanted)
        slopes = (torch.autograd.grad((y * d).sum(), own)[0] for y in (ours, wanted))
        torch.testing.assert_close(*slopes)
    narrow = x.detach().bfloat16()
    assert torch.equal(mish(narrow), torch.nn.functional.mish(narrow.float()).bfloat16())
    assert mish(torch.tensor(float("nan"))).isnan()


def test_mish_is_replaced_in_the_compiled_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Mish(), nn.Linear(8, 3)).double()
    engine = PerExample(model, check=False)
    x, y = torch.randn(4, 3, 2, 2).double(), torch.randint(0, 3, (4,))
    used = []
    own = compiled_rules.mish
    monkeypatch.setattr(compiled_rules, "mish", lambda x: used.append(x) or own(x))
    passes = Compiled(engine.objective, x, 4, torch.float64)
    ours, reference = passes.gradients(x, y), Operators(engine.objective).gradients(x, y)
    assert used
    torch.testing.assert_close(ours.losses, reference.losses)
    every = torch.ones(4, 1).double()
    for a, b in zip(ours.weighted_sum(every), reference.weighted_sum(every), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("views", [1, 3])
def test_large_matrices_store_output_gradients(views: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 192), nn.Tanh(), nn.Linear(192, 3)).double()
    engine = PerExample(model, views=views, check=False)
    x, y = torch.randn(4 * views, 3, 8, 8).double(), torch.randint(0, 3, (4,))
    passes = Compiled(engine.objective, x, 4, torch.float64, storage="ghost")
    kept = [slot for slot in passes.slots.slots if isinstance(slot, Matrix)]
    assert [tuple(slot.value.shape) for slot in kept] == [(192, 192)]
    x[views : 2 * views] = float("nan")
    ours, reference = passes.gradients(x, y), Operators(engine.objective).gradients(x, y)
    norms, wanted = ours.squared_norms(), reference.squared_norms()
    assert bool((norms[[0, 2, 3]] >= wanted[[0, 2, 3]]).all())
    torch.testing.assert_close(norms[[0, 2, 3]], wanted[[0, 2, 3]], rtol=1e-3, atol=1e-9)
    weights = torch.tensor([[0.5], [0.0], [1.0], [2.0]]).double()
    for a, b in zip(ours.weighted_sum(weights), reference.weighted_sum(weights), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("form", ["de", "plain"])
@pytest.mark.parametrize("gain", [True, False])
def test_norms_of_standardised_filters_follow_from_three_numbers(form: str, gain: bool) -> None:
    torch.manual_seed(0)
    conv = standardised(nn.Conv2d(3, 5, 3), form=form, gain=gain).double()  # type: ignore[arg-type]
    step, raw = conv.parametrizations.weight[0], conv.parametrizations.weight.original.detach()
    if gain:
        nn.init.normal_(step.gain)
    gradients = torch.randn(7, *raw.shape).double()
    own = step.gain.detach() if gain else None
    weight, direction, factors = definitions.standardise(raw, own, step.plain, step.eps)
    torch.testing.assert_close(weight, conv.weight)
    over = (2, 3, 4)
    numbers = [gradients.square().sum(over), gradients.sum(over), (gradients * direction).sum(over)]
    found = definitions.filter_norms(torch.stack(numbers, 1), factors, raw[0].numel(), 0.0)
    back = step.pullback(raw, gradients)
    exact = [part.flatten(1).square().sum(1) for part in back]
    assert len(exact) == 1 + gain
    for ours, wanted in zip(found.unbind(1), exact, strict=False):
        assert bool((ours >= wanted * (1 - 1e-12)).all())
        torch.testing.assert_close(ours, wanted, rtol=1e-3, atol=0)
    for place, gradient in enumerate(gradients):
        pulled = definitions.filter_pullback(gradient, direction, factors)
        for ours, every in zip(pulled, back, strict=False):
            torch.testing.assert_close(ours, every[place])
    bare = step.pullback_bare(raw, gradients).flatten(1).square().sum(1)
    weight, _, (scale, _, _, one) = definitions.standardise(raw, None, step.plain, step.eps)
    torch.testing.assert_close(weight, step.bare(raw))
    assert bool((one == 1).all())
    bound = (scale.square() * (numbers[0] - numbers[1].square() / raw[0].numel())).sum(1)
    assert bool((bound >= bare * (1 - 1e-12)).all())


@pytest.mark.parametrize("storage", ["materialise", "norm-only", "ghost"])
def test_odd_channels_are_filled_up_in_half_precision(storage: Storage) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 19, 3, padding=1), nn.Tanh(), nn.Conv2d(19, 21, 3, stride=2), nn.Tanh(),
        nn.Conv2d(21, 5, 1), nn.Flatten(), nn.Linear(45, 4),
    )  # fmt: skip
    engine = PerExample(model, views=2, check=False)
    x = torch.randn(6, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, 4, (3,))
    reference = Operators(engine.objective).gradients(x, y)
    ours = Compiled(engine.objective, x, 3, torch.bfloat16, storage=storage).gradients(x, y)
    wanted = reference.squared_norms()
    torch.testing.assert_close(ours.squared_norms(), wanted, rtol=0.1, atol=1e-3)
    every = torch.ones(3, 1)
    for a, b in zip(ours.weighted_sum(every), reference.weighted_sum(every), strict=True):
        assert a.shape == b.shape
        assert float((a - b).detach().norm() / b.detach().norm()) < 0.1
