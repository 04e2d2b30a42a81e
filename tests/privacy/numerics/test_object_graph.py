"""State that a model or a loss keeps in unusual places: it is seen, and restored."""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.errors import UserError
from sfumato.privacy import Flat, GaussianNoise, PoissonSampler, PrivateGradients
from sfumato.privacy.numerics.model_state import Snapshot


class Kept:
    """An object with one value."""

    def __init__(self, value: Any = 0.0) -> None:
        self.value = value


class Slotted:
    """An object without `__dict__`."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0


class Shared:
    """An object whose value lies in its class."""

    value = 0.0


def nested(depth: int) -> Kept:
    return Kept(nested(depth - 1)) if depth else Kept()


def innermost(kept: Kept) -> Kept:
    return innermost(kept.value) if isinstance(kept.value, Kept) else kept


def remembering() -> Callable[..., list[float]]:
    kept: list[float] = []

    def remember(*values: float) -> list[float]:
        kept.extend(values)
        return kept

    return remember


def rebinding() -> Callable[..., float]:
    kept = 0.0

    def rebind(*values: float) -> float:
        nonlocal kept
        kept = values[0] if values else kept
        return kept

    return rebind


def by_default(*values: float, kept: list[float] = []) -> list[float]:  # noqa: B006
    kept.extend(values)
    return kept


def set_value(holder: Any, value: float) -> None:
    holder.value = value


Place = tuple[Callable[[], Any], Callable[[Any, float], Any]]
PLACES: dict[str, Place] = {
    "slots": (Slotted, set_value),
    "a class": (Shared, lambda o, v: setattr(Shared, "value", v)),
    "an object in a list": (lambda: [Kept()], lambda o, v: set_value(o[0], v)),
    "an object in a tuple": (lambda: (Kept(),), lambda o, v: set_value(o[0], v)),
    "an object in a dictionary": (lambda: {"a": Kept()}, lambda o, v: set_value(o["a"], v)),
    "a dictionary that also holds a module": (
        lambda: {"module": nn.ReLU(), "kept": torch.zeros(1)},
        lambda o, v: o["kept"].fill_(v),
    ),
    "a module in a list": (
        lambda: [nn.BatchNorm1d(1)],
        lambda o, v: o[0].running_mean.fill_(v),
    ),
    "a closure": (remembering, lambda o, v: o(v)),
    "a variable of a closure": (rebinding, lambda o, v: o(v)),
    "a default": (lambda: by_default, lambda o, v: o(v)),
    "a method of a list": (lambda: [].append, lambda o, v: o(v)),
    "an argument of a partial": (
        lambda: functools.partial(set_value, Kept()),
        lambda o, v: o(v),
    ),
    "an attribute of a function": (remembering, set_value),
    "a bytearray": (lambda: bytearray(8), lambda o, v: o.__setitem__(0, int(v) % 7 + 1)),
    "eight objects deep": (lambda: nested(8), lambda o, v: set_value(innermost(o), v)),
    "a counter": (Counter, lambda o, v: o.update({"a": int(v)})),
    "an array of objects": (
        lambda: np.array([Kept(), None], dtype=object),
        lambda o, v: set_value(o[0], v),
    ),
    "a sparse tensor": (lambda: torch.eye(3).to_sparse(), lambda o, v: o.mul_(v)),
    "an attribute that is new": (Kept, lambda o, v: setattr(o, "other", v)),
}


class Net(nn.Module):
    """A classifier that keeps something in its activation and writes to it at each call."""

    def __init__(self, held: Any, write: Callable[[Any, float], Any], on_layer: bool) -> None:
        super().__init__()
        self.a, self.relu, self.b = nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)
        (self.relu if on_layer else self).held = held  # type: ignore[assignment]
        self.write = [write]

    def forward(self, x: Tensor) -> Tensor:
        held = getattr(self, "held", None) or self.relu.held
        self.write[0](held, 2 + abs(float(x.detach().sum())))
        out: Tensor = self.b(self.relu(self.a(x)))
        return out


@pytest.mark.parametrize("on_layer", [False, True])
@pytest.mark.parametrize("place", PLACES)
def test_state_is_compared_and_restored(place: str, on_layer: bool) -> None:
    make, write = PLACES[place]
    held = make()
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    (model[1] if on_layer else model).held = held
    before = Snapshot(model)
    assert before.first_difference(Snapshot(model)) is None
    write(held, 3.0)
    assert before.first_difference(Snapshot(model)) is not None
    before.restore()
    assert before.first_difference(Snapshot(model)) is None
    assert (model[1] if on_layer else model).held is held


@pytest.mark.parametrize("place", PLACES)
def test_a_model_that_keeps_its_data_is_refused(place: str) -> None:
    torch.manual_seed(0)
    make, write = PLACES[place]
    private = trained(Net([make()], lambda o, v: write(o[0], v), on_layer=len(place) % 2 == 0))
    with pytest.raises(UserError):
        private.accumulate(torch.rand(8, 6), torch.arange(8) % 3)


def trained(model: nn.Module, loss: Any = None) -> PrivateGradients:
    return PrivateGradients(
        model,
        sampler=PoissonSampler(100, 8),
        clipping=Flat(1.0),
        noise=GaussianNoise(1.0),
        **({} if loss is None else {"loss": loss}),
    )


def own(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


class Learns:
    """A loss that is no module and keeps a mean, or only the number of its calls."""

    def __init__(self, data: bool = True) -> None:
        self.mean, self.calls, self.data = 0.0, 0, data

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        losses = own(outputs, targets)
        self.calls += 1
        if self.data:
            self.mean = 0.9 * self.mean + 0.1 * float(losses.detach().mean())
        return losses


def _closure(learns: Learns) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda outputs, targets: learns(outputs, targets)


def _with(learns: Learns, outputs: Tensor, targets: Tensor) -> Tensor:
    return learns(outputs, targets)


LOSSES: dict[str, Callable[[Learns], Any]] = {
    "an object": lambda learns: learns,
    "a bound method": lambda learns: learns.__call__,
    "a partial": lambda learns: functools.partial(_with, learns),
    "a closure": _closure,
}


@pytest.mark.parametrize("kind", LOSSES)
def test_a_loss_that_keeps_its_data_is_refused(kind: str) -> None:
    private = trained(nn.Linear(6, 3), LOSSES[kind](Learns()))
    with pytest.raises(UserError, match=r"The loss keeps what it has seen in '.*mean'"):
        private.accumulate(torch.rand(8, 6), torch.arange(8) % 3)


@pytest.mark.parametrize("kind", LOSSES)
def test_a_loss_that_begins_to_keep_is_stopped(kind: str) -> None:
    """The check of a batch sees it too, not only the probe before the first."""
    learns = Learns(data=False)
    private = trained(nn.Linear(6, 3), LOSSES[kind](learns))
    x, y = torch.rand(8, 6), torch.arange(8) % 3
    private.accumulate(x, y)
    learns.data = True
    with pytest.raises(UserError, match="one example reach"):
        private.check(x, y)
    assert learns.mean == 0, "a check leaves no trace"


def test_attributes_of_one_name_in_model_and_loss_are_both_compared() -> None:
    model, loss = nn.Linear(2, 2), nn.Linear(2, 2)
    before = Snapshot(model, loss)
    with torch.no_grad():
        model.weight.add_(1)
    assert before.first_difference(Snapshot(model, loss)) == "weight"
    assert not before.same_parameters(Snapshot(model, loss))


def test_a_name_like_a_path_hides_nothing() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    vars(model)["0.held"], model[0].held = 1, 2
    before = Snapshot(model)
    vars(model)["0.held"] = 3
    assert before.first_difference(Snapshot(model)) is not None
    vars(model)["0.held"], model[0].held = 1, 3
    assert before.first_difference(Snapshot(model)) is not None


@pytest.mark.parametrize(
    ("generator", "draw"),
    [
        (random.Random(1), lambda g: g.random()),
        (np.random.default_rng(1), lambda g: float(g.random())),
        (np.random.RandomState(1), lambda g: float(g.rand())),
        (torch.Generator().manual_seed(1), lambda g: float(torch.rand((), generator=g))),
    ],
)
def test_generators_of_a_model_are_restored(generator: Any, draw: Callable[[Any], float]) -> None:
    model = nn.Linear(2, 2)
    model.generator = generator
    before = Snapshot(model)
    first = draw(generator)
    after = Snapshot(model)
    assert before.first_difference(after) is None and not before.same_draws(after)
    before.restore()
    assert before.same_draws(Snapshot(model)) and draw(generator) == first


def test_a_later_snapshot_copies_only_what_changed_and_restores_all_of_it() -> None:
    model = nn.Linear(3, 2)
    model.register_buffer("kept", torch.ones(4))
    kept, weight = model.kept, model.weight.detach().clone()
    before = Snapshot(model)
    model.weight.data.add_(1)  # Not seen by version counters.
    kept.zero_()
    model.kept = torch.ones(4)  # Another tensor, with the values of before.
    after = Snapshot(model, like=before)
    assert after._graph.values["bias"] is before._graph.values["bias"]
    assert before.first_difference(after) == "weight"
    before.restore(after)
    assert torch.equal(model.weight, weight)
    assert model.kept is kept and bool((kept == 1).all())
    assert before.first_difference(Snapshot(model)) is None


@pytest.mark.parametrize("kind", ["even", "odd", "offset", "channels_last", "bfloat16", "complex"])
def test_a_change_of_one_number_is_seen_in_any_layout(kind: str) -> None:
    held = {
        "even": lambda: torch.zeros(4, 6),
        "odd": lambda: torch.zeros(7),
        "offset": lambda: torch.zeros(9)[1:],
        "channels_last": lambda: torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last),
        "bfloat16": lambda: torch.zeros(8, dtype=torch.bfloat16),
        "complex": lambda: torch.zeros(4, dtype=torch.complex64).conj(),
    }[kind]()
    model = nn.Module()
    model.held = held
    before = Snapshot(model)
    assert before.first_difference(Snapshot(model, like=before)) is None
    held[-1] = 1e-30
    assert before.first_difference(Snapshot(model, like=before)) == "held"
    before.restore()
    assert not bool(held.any())
    held[0] = -0.0  # Equal numbers of other bits.
    assert before.first_difference(Snapshot(model, like=before)) is None
