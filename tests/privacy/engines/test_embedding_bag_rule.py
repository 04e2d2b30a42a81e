"""Bags of embeddings run by operators, with the gradients of one example at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.privacy import PerExample
from sfumato.privacy.checks.agreement import errors
from sfumato.privacy.engines.compiled import Compiled
from sfumato.privacy.engines.objective import Objective
from sfumato.privacy.engines.one_at_a_time import one_at_a_time
from sfumato.privacy.engines.operators import Operators
from uncompiled import run_without_code

WORDS, WIDTH, LENGTH = 7, 4, 6

Run = Callable[[Any, Tensor], Tensor]


class Bags(nn.Module):
    """A classifier of six words by a bag of embeddings and a function of both."""

    def __init__(self, run: Run, **options: Any) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(WORDS, WIDTH, **options)
        self.scores = nn.Embedding(WORDS, 1)
        self.run, self.head = run, nn.LazyLinear(3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.run(self, x).tanh().flatten(1))
        return out


class Words(nn.Module):
    """Numbers as words."""

    def forward(self, x: Tensor) -> Tensor:
        return x.abs().long() % WORDS


def whole(m: Any, x: Tensor) -> Tensor:
    return m.bag(x)


def by_offsets(m: Any, x: Tensor) -> Tensor:
    """Bags of one, of no and of five words for each row."""
    starts = torch.arange(0, x.numel(), LENGTH, device=x.device)[:, None]
    offsets = (starts + starts.new_tensor([0, 1, 1])).flatten()
    if m.bag.include_last_offset:
        offsets = torch.cat([offsets, offsets.new_tensor([x.numel()])])
    return m.bag(x.flatten(), offsets).view(len(x), -1)


def in_pairs(m: Any, x: Tensor) -> Tensor:
    return m.bag(x.view(-1, 2)).view(len(x), -1)


def weighed(m: Any, x: Tensor) -> Tensor:
    return m.bag(x, per_sample_weights=m.scores(x).squeeze(-1).exp())


def twice(m: Any, x: Tensor) -> Tensor:
    return m.bag(x[:, :2]) + m.bag(x) * F.embedding(x[:, 0], m.bag.weight)


def by_function(m: Any, x: Tensor) -> Tensor:
    return F.embedding_bag(input=x, weight=m.bag.weight.t().tanh().t(), mode="sum")


def frozen() -> nn.Module:
    model = Bags(weighed, mode="sum")
    model.bag.weight.requires_grad_(False)
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    **{
        f"{mode}, {run.__name__}{', ' * bool(options)}{', '.join(options)}": (
            lambda run=run, mode=mode, options=options: Bags(run, mode=mode, **options)
        )
        for mode in ("sum", "mean", "max")
        for run, options in (
            (whole, {}),
            (whole, {"padding_idx": -2}),
            (in_pairs, {"padding_idx": 0}),
            (by_offsets, {}),
            (by_offsets, {"padding_idx": 1}),
            (by_offsets, {"include_last_offset": True}),
            (twice, {}),
        )
    },
    "weighed": lambda: Bags(weighed, mode="sum", padding_idx=2),
    "weighed, of a frozen table": frozen,
    "by the function": lambda: Bags(by_function),
}


def built(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    model = MODELS[name]()
    model(torch.zeros(2, LENGTH, dtype=torch.long))
    return model.to(dtype)


def batch(views: int = 1, examples: int = 4) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    x = torch.randint(0, WORDS, (examples * views, LENGTH))
    x[0], x[1, 1:] = 0, WORDS - 2
    return x, torch.arange(examples) % 3


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_one_example_at_a_time(name: str, views: int) -> None:
    model = built(name)
    x, y = batch(views)
    found = Operators(Objective(model, views=views)).gradients(x, y)
    reference = one_at_a_time(model, x, y, views=views)
    assert max(errors(found, reference).values()) < 1e-10
    torch.testing.assert_close(found.outputs, reference.outputs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", MODELS)
def test_bags_pass_the_checks_and_run_by_operators(name: str) -> None:
    model = built(name, torch.float32)
    x, y = batch()
    engine = PerExample(model)
    found = engine(x, y)
    assert max(errors(found, one_at_a_time(model, x, y)).values()) < 2e-5
    assert engine.method == "operators" and not engine.passed_over
    assert "torch.func" not in {path.path for path in engine.paths()}
    alone = engine(x[1:2], y[1:2])
    assert max(errors(alone, one_at_a_time(model, x[1:2], y[1:2])).values()) < 2e-5
    assert engine(x[:0], y[:0]).squared_norms().shape == (0, len(found.names))


@pytest.mark.parametrize(
    "name", ["sum, by_offsets", "mean, whole, padding_idx", "max, by_offsets", "weighed"]
)
def test_the_compiled_pass_has_the_same_norms_and_sums(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_without_code(monkeypatch)
    model = nn.Sequential(Words(), built(name))
    x, y = batch(views=2)
    x, objective = x.double(), Objective(model, views=2)
    ours = Compiled(objective, x, len(y), torch.float64).gradients(x, y)
    wanted = Operators(objective).gradients(x, y)
    torch.testing.assert_close(ours.squared_norms(), wanted.squared_norms(), rtol=1e-3, atol=1e-7)
    weights = torch.rand(len(y), len(ours.names)).double()
    for a, b in zip(ours.weighted_sum(weights), wanted.weighted_sum(weights), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-6)
