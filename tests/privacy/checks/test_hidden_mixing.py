"""What a model or loss does only with unusual inputs, states or weights, and must not do at all."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence
from torch.utils.data import DataLoader, TensorDataset

from sfumato.errors import UserError
from sfumato.privacy import (
    Flat,
    GaussianNoise,
    PoissonSampler,
    PrivateGradients,
    physical_batches,
)
from sfumato.privacy.engines.one_at_a_time import one_at_a_time
from sfumato.privacy.per_example import PerExample

Make = Callable[..., PrivateGradients]


def private(
    model: nn.Module, *, clip: float = 1.0, noise: float = 0.0, **more: object
) -> PrivateGradients:
    return PrivateGradients(
        model,
        sampler=PoissonSampler(1000, 1),
        clipping=Flat(clip),
        noise=GaussianNoise(noise),
        **more,  # type: ignore[arg-type]
    )


def total(engine: PrivateGradients, x: Tensor, y: Tensor) -> Tensor:
    engine.accumulate(x, y)
    engine.release()
    return torch.cat([p.grad.flatten() for p in engine.per_example.trainable.values()])  # type: ignore[union-attr]


class Series(nn.Module):
    """Zero-padded series, sorted by length before a layer and back after it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.h = nn.Linear(4, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        order = (x != 0).any(2).sum(1).argsort(descending=True, stable=True)
        z = torch.tanh(self.b(self.a(x).mean(1)[order]))
        out: Tensor = self.h(z[order.argsort()])
        return out


def test_rows_in_an_order_that_depends_on_the_data_are_not_mistaken() -> None:
    torch.manual_seed(0)
    model = Series()
    x, y = torch.randn(6, 9, 4), torch.zeros(6, dtype=torch.long)
    for i, end in enumerate((1, 7, 5, 9, 3, 2)):
        x[i, end:] = 0
    x[::2] *= 100
    engine = PerExample(model)
    found = engine(x, y)
    wanted = one_at_a_time(model, x, y)
    assert engine.method != "operators"
    assert torch.allclose(found.squared_norms(), wanted.squared_norms(), rtol=1e-4)


class Text(nn.Module):
    def __init__(self, words: int = 1000, **options: object) -> None:
        super().__init__()
        self.e = nn.Embedding(words, 16, **options)  # type: ignore[arg-type]
        self.h = nn.Linear(16, 2)

    def forward(self, t: Tensor) -> Tensor:
        out: Tensor = self.h(self.e(t).sum(1))
        return out


@pytest.mark.parametrize("padding", [0, 5, -1, None])
@pytest.mark.parametrize("views", [1, 2])
def test_gradients_of_embeddings_with_padding_are_the_references(
    padding: int | None, views: int
) -> None:
    torch.manual_seed(0)
    words = torch.randint(1, 1000, (8 * views, 12))
    words[1::2, 2:] = 0 if padding is None else padding % 1000
    y = torch.zeros(8, dtype=torch.long)
    model = Text(padding_idx=padding)
    engine = PerExample(model, views=views)
    found, wanted = engine(words, y), one_at_a_time(model, words, y, views=views)
    assert engine.method == "operators"
    for a, b in zip(found.tensors, wanted.tensors, strict=True):
        assert torch.allclose(a, b, atol=1e-6)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_norm": 6.0}, "max_norm"),
        ({"sparse": True}, "sparse"),
        ({"scale_grad_by_freq": True}, "scale_grad_by_freq"),
    ],
)
def test_embeddings_that_write_or_count_are_refused_by_name(
    options: dict[str, object], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        private(Text(**options))


def test_bags_with_padding_have_the_gradients_of_single_examples() -> None:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.e, self.h = nn.EmbeddingBag(50, 8, padding_idx=0), nn.Linear(8, 3)

        def forward(self, t: Tensor) -> Tensor:
            out: Tensor = self.h(self.e(t))
            return out

    torch.manual_seed(0)
    words, y = torch.randint(1, 50, (6, 5)), torch.zeros(6, dtype=torch.long)
    words[1::2, 2:] = 0
    model = Bag()
    found, wanted = PerExample(model)(words, y), one_at_a_time(model, words, y)
    assert torch.allclose(found.squared_norms(), wanted.squared_norms(), rtol=1e-4)


def test_a_pass_that_writes_into_parameters_is_refused_when_it_does() -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.h = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            if float(x.detach().max()) > 1e6:
                with torch.no_grad():
                    self.h.weight.mul_(0.5)
            out: Tensor = self.h(x)
            return out

    engine = private(Writes())
    x, y = torch.randn(5, 4), torch.zeros(5, dtype=torch.long)
    engine.accumulate(x, y)
    with pytest.raises(UserError, match=r"writes into its parameter 'h\.weight'"):
        engine.accumulate(1e7 * x.abs(), y)


def test_complex_parameters_are_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 3))
    model.register_parameter("w", nn.Parameter(torch.zeros(3, dtype=torch.cfloat)))
    with pytest.raises(UserError, match="'w' is complex"):
        private(model)


class Balanced(nn.Module):
    """Divides by a running mean of the loss."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(1.0))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        own = F.cross_entropy(outputs, targets, reduction="none")
        self.mean.mul_(0.9).add_(own.detach().mean(), alpha=0.1)
        return own / self.mean


class Bytes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.h = nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.h(x.float().div(255).flatten(1))
        return out


@pytest.mark.parametrize("kind", ["bytes", "floats"])
def test_a_loss_with_a_memory_is_refused(kind: str) -> None:
    x, y = torch.rand(8, 3, 2, 2) * 255, torch.zeros(8, dtype=torch.long)
    engine = private(Bytes(), loss=Balanced())
    with pytest.raises(UserError, match="keeps what it has seen in 'mean'"):
        engine.accumulate(x.byte() if kind == "bytes" else x, y)


def test_a_loss_with_parameters_is_refused() -> None:
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(10, 16))

        def forward(self, features: Tensor, targets: Tensor) -> Tensor:
            return F.cross_entropy(features @ self.w.t(), targets, reduction="none")

    with pytest.raises(UserError, match=r"'w'.*part of the model"):
        private(nn.Linear(4, 16), loss=Head())


def _broadcast(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().flatten(1).sum(1)


def _class_weights(outputs: Tensor, targets: Tensor) -> Tensor:
    own = F.cross_entropy(outputs, targets, reduction="none")
    return own / torch.bincount(targets, minlength=outputs.shape[1])[targets]


def _from_state(outputs: Tensor, targets: Tensor) -> Tensor:
    """The losses are right, and their derivatives are not."""
    own = F.cross_entropy(outputs, targets, reduction="none")
    return own + 0 * targets + (own - own.detach()) * targets.float().mean()


@pytest.mark.parametrize("loss", [_broadcast, _class_weights, _from_state])
def test_a_loss_that_sees_the_targets_of_others_is_refused(
    loss: Callable[[Tensor, Tensor], Tensor],
) -> None:
    y = torch.randn(8) if loss is _broadcast else torch.arange(8) % 3
    engine = private(nn.Linear(4, 1 if loss is _broadcast else 3), loss=loss)
    with pytest.raises(UserError, match="target of another"):
        engine.accumulate(torch.randn(8, 4), y)


def test_mixing_behind_a_head_of_zeros_is_found() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c, self.h = nn.Conv2d(3, 8, 3), nn.Linear(32, 10)
            nn.init.zeros_(self.h.weight)
            nn.init.zeros_(self.h.bias)

        def forward(self, x: Tensor) -> Tensor:
            z = torch.relu(self.c(x.to(self.c.weight.dtype) / 255))
            if z.requires_grad:
                z.register_hook(lambda g: g / (g.norm() + 1e-6))
            out: Tensor = self.h(z.flatten(1))
            return out

    x, y = (torch.rand(6, 3, 4, 4) * 255).byte(), torch.arange(6) % 3
    engine = PerExample(Net())
    engine(x, y)
    assert engine.method == "loop", engine.passed_over


def test_weights_are_one_or_zero() -> None:
    engine = private(nn.Linear(4, 3))
    x, y = torch.randn(3, 4), torch.zeros(3, dtype=torch.long)
    for bad in (0.25, 2.0, -1.0, float("nan")):
        with pytest.raises(UserError, match="one for an example that was drawn"):
            engine.accumulate(x, y, torch.tensor([1.0, bad, 0.0]))
    engine.accumulate(x, y, torch.tensor([True, False, True]))


def test_the_sampler_stays_from_accumulating_to_releasing() -> None:
    engine = private(nn.Linear(4, 3))
    engine.accumulate(torch.randn(3, 4), torch.zeros(3, dtype=torch.long))
    engine.sampler = PoissonSampler(1000, 500)
    with pytest.raises(RuntimeError, match="sampler was changed"):
        engine.release()
    engine.discard()
    engine.release()
    assert engine.history[0].q == 0.5


def test_gradients_are_taken_within_no_grad_too() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    x, y = torch.randn(5, 4), torch.zeros(5, dtype=torch.long)
    with torch.no_grad():
        found = total(private(model), x, y)
    assert torch.equal(found, total(private(model), x, y)) and found.norm() > 0
    with torch.inference_mode(), pytest.raises(UserError, match="inference_mode"):
        private(model).accumulate(x, y)


def test_what_is_frozen_or_changed_under_way_is_said() -> None:
    x, y = torch.randn(3, 4), torch.zeros(3, dtype=torch.long)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)).requires_grad_(False)
    with pytest.raises(UserError, match="frozen"):
        private(model).accumulate(x, y)
    model[1].requires_grad_(True)
    engine = private(model)
    engine.accumulate(x, y)
    model[0].requires_grad_(True)
    with pytest.raises(RuntimeError, match="frozen or unfrozen"):
        engine.accumulate(x, y)
    with pytest.raises(UserError, match="tensors, not list and Tensor"):
        private(model).accumulate(x.tolist(), y)  # type: ignore[arg-type]


def test_frozen_statistics_of_a_backbone_are_no_mixing_until_it_trains() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))
    with pytest.raises(UserError, match="BatchNorm2d normalises"):
        private(model)
    model[1].eval()
    x, y = torch.randn(5, 1, 4, 4), torch.zeros(5, dtype=torch.long)
    engine = PerExample(model)
    found = engine(x, y).squared_norms()
    assert torch.allclose(found, one_at_a_time(model, x, y).squared_norms(), rtol=1e-4)
    model.train()
    with pytest.raises(UserError, match="BatchNorm2d normalises"):
        engine(x, y)


def test_a_model_that_runs_one_example_at_a_time_warns_once() -> None:
    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.r = nn.GRU(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = pad_packed_sequence(self.r(pack_sequence(list(x)))[0])[0].sum(0)
            return out

    x, y = torch.randn(3, 5, 4), torch.zeros(3, dtype=torch.long)
    engine = private(Sums())
    with pytest.warns(UserWarning, match="one at a time"):
        engine.accumulate(x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine.accumulate(x, y)


def test_a_compiled_model_is_taken_as_what_it_was_made_of() -> None:
    model = nn.Sequential(nn.Linear(4, 3))
    engine = private(torch.compile(model))  # type: ignore[arg-type]
    assert engine.per_example.model is model
    assert list(engine.per_example.trainable) == ["0.weight", "0.bias"]


def test_a_loader_goes_over_its_draws_again_and_knows_their_number() -> None:
    data = TensorDataset(torch.randn(200, 3), torch.zeros(200))
    loader = DataLoader(data, batch_sampler=PoissonSampler(200, 50).batches(steps=5))
    assert len(loader) == 5
    first, second = ([len(y) for _, y in loader] for _ in range(2))
    assert len(first) == len(second) == 5 and first != second


def test_padding_counts_for_nothing() -> None:
    model = nn.Linear(4, 3)
    x, y = torch.randn(40, 4), torch.arange(40) % 3
    engine = private(model)
    for b in physical_batches(torch.tensor([7]), 32):
        engine.accumulate(x[b.indices], y[b.indices], b.weights)
    assert engine.release().examples == 1


class Switch(nn.Module):
    """Experts with room for so many examples, first come, first served (Fedus et al., 2021)."""

    def __init__(self, room: float) -> None:
        super().__init__()
        self.router = nn.Linear(32, 4)
        self.experts = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))
        self.room = room

    def forward(self, x: Tensor) -> Tensor:
        gate, chosen = self.router(x).softmax(1).max(1)
        room = max(4, math.ceil(self.room * len(x) / 4))
        for number, expert in enumerate(self.experts):
            mine = chosen == number
            kept = mine & (mine.cumsum(0) <= room)
            x = x + expert(x) * (gate * kept).unsqueeze(1)
        return x


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("room", [1.25, 2.0])
def test_mixing_by_position_in_the_batch_is_refused(room: float, seed: int) -> None:
    """An example early in the batch takes the place of a later one, never the other way round."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), Switch(room), nn.Linear(32, 10)
    )
    with pytest.raises(UserError, match="moves the outputs of the others"):
        private(model).accumulate(2 * torch.rand(64, 1, 8, 8), torch.arange(64) % 10)


def propose(engine: PerExample, x: Tensor, y: Tensor) -> None:
    """The checks that come before a first batch confirms the engine, and a batch that does."""
    with engine.proposal(x, y) as keep:
        assert keep is not None
        keep()


class LargeSwitch(Switch):
    """The same experts, in batches of more than 16."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if len(x) > 16 else x


@pytest.mark.parametrize("seed", range(3))
def test_examples_that_are_alike_compete_whatever_the_batch(seed: int) -> None:
    """A batch that spreads evenly shows nothing of a limit that it does not reach."""
    torch.manual_seed(seed)
    x, y = torch.rand(64, 1, 8, 8), torch.arange(64) % 10
    first = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU())
    with pytest.raises(UserError, match="moves the outputs of the others"):
        propose(PerExample(nn.Sequential(first, Switch(3.0))), x, y)
    engine = PerExample(nn.Sequential(first, LargeSwitch(3.0)))
    propose(engine, x[:8], y[:8])
    with pytest.raises(UserError, match="moves the outputs of the others"):
        propose(engine, x, y)


def test_a_layer_put_in_later_is_checked_too() -> None:
    class Centred(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(0)

    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    engine, x, y = private(model), torch.randn(8, 6), torch.arange(8) % 3
    engine.accumulate(x, y)
    engine.discard()
    model[1] = Centred()
    with pytest.raises(UserError, match="moves the outputs of the others"):
        engine.accumulate(x, y)


def test_no_gradient_but_the_released_one_is_left() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    engine, x, y = private(model, noise=1.0), torch.randn(8, 6), torch.arange(8) % 3
    F.cross_entropy(model(x), y).backward()  # Without noise.
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    before = model[0].weight.clone()
    engine.accumulate(x, y)
    engine.release()
    optimizer.step()
    assert model[0].weight.grad is None and model[2].weight.grad is not None
    assert torch.equal(model[0].weight, before)
    model[2].requires_grad_(False)
    model[0].requires_grad_(True)
    after = model[2].weight.clone()
    engine.accumulate(x, y)
    engine.release()
    optimizer.step()
    assert torch.equal(model[2].weight, after) and not torch.equal(model[0].weight, before)


class Sized(nn.Module):
    """Outputs depend on the number of rows, from 64 rows on."""

    def __init__(self, amount: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(64, 16), nn.Linear(16, 4)
        self.amount, self.dtype = amount, dtype

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.a(x.flatten(1))).to(self.dtype).float()
        far = h.detach().norm(dim=1, keepdim=True) / 4
        out: Tensor = self.b(h + self.amount * far * ((len(h) // 64) % 2))
        return out


@pytest.mark.parametrize("first", [64, 10])
@pytest.mark.parametrize(
    ("amount", "dtype"), [(0.03, torch.float32), (0.001, torch.float32), (0.15, torch.bfloat16)]
)
def test_gradients_do_not_depend_on_the_size_of_the_batch(
    first: int, amount: float, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    engine = PerExample(Sized(amount, dtype))
    x, y = torch.rand(64, 1, 8, 8), torch.zeros(64, dtype=torch.long)
    engine(x[:first], y[:first])
    many, few = engine(x, y), engine(x[:10], y[:10])
    assert engine.method != "loop"
    for a, b in zip(many.tensors, few.tensors, strict=True):
        assert a is not None and b is not None
        torch.testing.assert_close(a[:10], b, rtol=1e-3, atol=1e-4)
