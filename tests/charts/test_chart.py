from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.charts.chart import Axis, Matrix, look, value_axis


def test_ticks_are_round_and_within_the_axis() -> None:
    assert Axis("", 0, 10).ticks() == [0, 2, 4, 6, 8, 10]
    assert Axis("", 0, 2.1).ticks() == [0, 0.5, 1, 1.5, 2]
    assert Axis("", 0, 3, whole=True).ticks() == [0, 1, 2, 3]
    log = Axis("", 0.1, 100, log=True).ticks()
    assert 1 in log and len(log) <= 6
    assert len(Axis("", 1.25e6, 1.8e6, log=True).ticks()) > 2, "no power of ten is within"


@given(last=st.integers(1, 10**6))
def test_ticks_of_steps_are_whole_and_few(last: int) -> None:
    ticks = Axis("step", 0, 1.04 * last, whole=True).ticks()
    assert all(float(tick).is_integer() for tick in ticks) and 2 <= len(ticks) <= 7


@pytest.mark.parametrize(
    ("axis", "value", "text"),
    [
        (Axis("", 0, 1, percent=True), 0.925, "92.5 %"),
        (Axis("", 0, 1e5), 12345, "12\u202f345"),
        (Axis("", 0, 1, at=(0.0, 1.0), names=("sgd", "adam")), 1.0, "adam"),
    ],
)
def test_ticks_are_written_for_people(axis: Axis, value: float, text: str) -> None:
    assert axis.text(value) == text


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9))
def test_an_axis_of_fractions_holds_them_and_stays_within_all(values: list[float]) -> None:
    axis = value_axis("accuracy", values, percent=True)
    assert 0 <= axis.low <= min(values) and max(values) <= axis.high <= 1 and axis.low < axis.high


def test_an_axis_begins_at_zero_unless_the_values_lie_far_above() -> None:
    assert value_axis("loss", [0.2, 2.0]).low == 0
    assert value_axis("loss", [1.9, 2.0]).low > 1.8
    assert value_axis("", []).high > value_axis("", []).low


def test_runs_differ_in_colour_mark_or_dashes() -> None:
    assert len({tuple(look(index).values()) for index in range(21)}) == 21


def test_a_matrix_tells_its_most_frequent_errors() -> None:
    matrix = Matrix(("a", "b", "c"), np.array([[5, 0, 2], [3, 1, 0], [0, 0, 0]]))
    assert matrix.errors(5) == [(3, "b", "a"), (2, "a", "c")]
    assert matrix.shades[1, 0] == pytest.approx(0.75**0.5) and not matrix.shades[2].any()
    assert "3 classes and 11 images, 54.5 % on the diagonal" in matrix.words
    assert "3 × b taken for a" in matrix.words
