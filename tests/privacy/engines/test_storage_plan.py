"""What the planner keeps of gradients."""

from __future__ import annotations

import torch
from torch import nn

from sfumato.kernels.definitions import Geometry
from sfumato.privacy.engines.objective import Objective
from sfumato.privacy.engines.operators import Operators
from sfumato.privacy.engines.slots import convolutions
from sfumato.privacy.engines.storage_plan import (
    SHARE,
    Convolution,
    by_outputs,
    plan,
    room,
)

PER_PARAMETER = 16
"""Bytes of a step for each trained number."""


def layer(name: str, channels: int, positions: int, views: int = 1) -> Convolution:
    at = Geometry((3, 3), (1, 1), (1, 1), (1, 1), views)
    return Convolution(name, at, channels, channels, positions)


def test_few_positions_take_ghost_norms_and_many_views_materialise() -> None:
    small, large = layer("small", 256, 64), layer("large", 64, 1024)
    assert plan([small, large], 2048, memory=1 << 40) == {"small": "ghost", "large": "materialise"}
    many = layer("small", 256, 64, views=16)
    assert plan([many], 128, memory=1 << 40) == {"small": "materialise"}
    assert "ghost" not in many.possible()


def test_short_memory_gives_up_the_cheapest_bytes_first() -> None:
    layers = [layer("a", 256, 256), layer("b", 64, 256)]
    free = plan(layers, 512, memory=1 << 40)
    assert set(free.values()) == {"materialise"}
    room = layers[0].bytes("norm-only", 512) + layers[1].bytes("materialise", 512)
    tight = plan(layers, 512, memory=room)
    assert tight["a"] == "norm-only" and tight["b"] == "materialise"
    assert set(plan(layers, 512, memory=0).values()) <= {"norm-only", "materialise"}


def test_a_small_excess_costs_a_small_layer() -> None:
    layers = [layer("large", 256, 256), layer("small", 128, 256)]
    every = sum(one.bytes("materialise", 512) for one in layers)
    assert plan(layers, 512, memory=every - 1) == {"large": "materialise", "small": "norm-only"}
    gone = layers[1].bytes("materialise", 512) - layers[1].bytes("norm-only", 512)
    assert plan(layers, 512, memory=every - gone - 1)["large"] == "norm-only"


def test_costs_grow_with_the_work() -> None:
    one = layer("a", 128, 256)
    for storage in ("materialise", "norm-only"):
        assert one.seconds(storage, 64) < one.seconds(storage, 128)
        assert one.bytes(storage, 64) * 2 == one.bytes(storage, 128)
    assert one.entries == 128 * 128 * 9 and one.length == 256


def test_output_gradients_are_stored_for_large_matrices() -> None:
    assert by_outputs(2048, 256, 1)
    assert not by_outputs(256, 10, 1)
    assert not by_outputs(2048, 256, 64)


def planned(model: nn.Module, x: torch.Tensor, views: int = 1) -> dict[str, Convolution]:
    objective = Objective(model, views=views)
    found = convolutions(Operators(objective).program(x), objective)
    return {layer.name: layer for layer in found.values()}


class _Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 2)
        self.conv = nn.Conv2d(2, 2, 3, padding=1)
        self.last = nn.Conv2d(2, 4, 3, stride=2, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.last(self.conv(self.conv(x))).flatten(1))


def test_filters_that_are_used_once_are_planned() -> None:
    found = planned(_Twice(), torch.randn(1, 2, 4, 4), views=2)
    at = Geometry((3, 3), (2, 2), (1, 1), (1, 1), 2)
    assert found == {"last": Convolution("last", at, 2, 4, 4)}
    grouped = nn.Sequential(nn.Conv2d(8, 8, 3, groups=2), nn.Flatten(), nn.Linear(8, 2))
    assert planned(grouped, torch.randn(1, 8, 3, 3)) == {}
    circular = nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular")
    found = planned(nn.Sequential(circular, nn.Flatten()), torch.randn(1, 4, 5, 5))
    assert found["0"].at.padding == (0, 0) and found["0"].positions == 25


def test_matrices_on_several_vectors_are_planned() -> None:
    words = nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 8), nn.Flatten())
    found = planned(nn.Sequential(words, nn.Linear(72, 5)), torch.randn(1, 9, 16), views=3)
    at = Geometry((1, 1), (1, 1), (0, 0), (1, 1), 1)
    assert found == {
        "0.0": Convolution("0.0", at, 16, 24, 27),
        "0.2": Convolution("0.2", at, 24, 8, 27),
    }


def test_room_is_a_share_of_what_the_backward_pass_keeps() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4))
    # Of each row: the convolution's input, and ReLU's output, which the last layer shares.
    numbers = 3 * 16 + 8 * 16
    found = room(model.requires_grad_(False), torch.randn(1, 3, 4, 4), 100)
    assert found == 0  # Nothing is stored for a backward pass that nothing needs.
    model.requires_grad_()
    trained = sum(p.numel() for p in model.parameters())
    found = room(model, torch.randn(1, 3, 4, 4), 100)
    assert found == int(SHARE * 2 * numbers * 100) - PER_PARAMETER * trained
    assert all(p.grad is None for p in model.parameters())


def test_room_counts_rows_in_any_dimension() -> None:
    class Turned(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten(1).T.tanh().reshape(-1, 1)

    assert room(Turned(), torch.randn(1, 4, requires_grad=True), 5) == 0  # the input is not trained
    model = nn.Sequential(nn.Linear(4, 4), Turned())
    expected = int(SHARE * 2 * 8 * 500) - PER_PARAMETER * (4 * 4 + 4)
    assert room(model, torch.randn(1, 4), 500) == expected


def test_many_parameters_leave_no_room_beside_few_rows() -> None:
    model = nn.Linear(4, 100)
    assert room(model, torch.randn(1, 4), 5) == 0
    assert room(model, torch.randn(1, 4), 5000) > 0


def test_weights_take_no_part_in_the_room() -> None:
    wide = nn.Sequential(nn.Flatten(), nn.Linear(4, 1000), nn.Linear(1000, 2))
    with torch.no_grad():
        found = room(wide, torch.randn(1, 4), 300)
    trained = sum(p.numel() for p in wide.parameters())
    assert found == int(SHARE * 2 * 1004 * 300) - PER_PARAMETER * trained
