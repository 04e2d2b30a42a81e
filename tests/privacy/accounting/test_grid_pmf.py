"""Privacy losses on a grid are those of dp_accounting, to the last bit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import pld_pmf

from sfumato.privacy.accounting import grid_pmf, loss_distribution
from sfumato.privacy.accounting.grid_pmf import GridPmf, connect_the_dots

LOSSES = [(0.08, 9.0, 1e-4), (0.5, 0.8, 1e-3), (1e-3, 1.0, 1e-3), (0.3, 40.0, 1e-3)]
"""(q, noise multiplier, width): the last has few grid points."""


def divergences(q: float, noise: float, width: float) -> tuple[float, int, int, Any]:
    """The arguments that `one_step` gives to `connect_the_dots` when an example is removed."""
    given: list[tuple[float, int, int, Any]] = []

    def keep(*arguments: Any) -> Any:
        given.append(arguments)
        return connect_the_dots(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loss_distribution, "connect_the_dots", keep)
        loss_distribution.one_step(q, noise, width)
    return given[0]


def pair(q: float, noise: float, width: float) -> tuple[Any, Any]:
    """Our distribution of one step, and that of dp_accounting."""
    given = divergences(q, noise, width)
    theirs = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(*given)
    return connect_the_dots(*given), theirs


def same(ours: Any, theirs: Any) -> None:
    ours, theirs = ours.to_dense_pmf(), theirs.to_dense_pmf()
    assert isinstance(ours, GridPmf) and not isinstance(theirs, GridPmf)
    assert ours._lower_loss == theirs._lower_loss
    assert ours._infinity_mass == theirs._infinity_mass
    np.testing.assert_array_equal(ours._probs, theirs._probs)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("count", [1, 2, 37, 1000])
def test_compositions_and_epsilons_are_equal(loss: tuple[float, float, float], count: int) -> None:
    ours, theirs = pair(*loss)
    ours, theirs = ours.self_compose(count), theirs.self_compose(count)
    same(ours, theirs)
    for delta in (0.5, 1e-2, 1e-5, 1e-9, 1e-14, 1e-18):
        assert ours.get_epsilon_for_delta(delta) == theirs.get_epsilon_for_delta(delta), delta


def test_two_mechanisms_compose_as_theirs() -> None:
    width = 1e-3
    (one, their_one), (two, their_two) = pair(0.3, 40.0, width), pair(0.2, 3.0, width)
    for ours, theirs in (
        (pld_pmf.compose_pmfs(one, two), pld_pmf.compose_pmfs(their_one, their_two)),
        (pld_pmf.compose_pmfs(two, one), pld_pmf.compose_pmfs(their_two, their_one)),
    ):
        same(ours, theirs)
        assert ours.get_epsilon_for_delta(1e-5) == theirs.get_epsilon_for_delta(1e-5)


@pytest.mark.parametrize("chunk", [7, 10_000])
def test_epsilon_does_not_depend_on_how_many_points_are_searched_at_once(
    monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    ours, theirs = pair(0.5, 0.8, 1e-3)
    monkeypatch.setattr(grid_pmf, "_CHUNK", chunk)
    for delta in (0.9, 0.1, 1e-6):
        assert ours.get_epsilon_for_delta(delta) == theirs.get_epsilon_for_delta(delta)


@pytest.mark.parametrize(
    ("lower", "masses", "infinite"),
    [
        (800_000, [0.5, 0.5], 0.0),  # exp(-loss) is 0 in floating point
        (-900_000, [0.2, 0.8], 0.0),
        (-2, [0.1, 0.2, 0.3, 0.4], 0.0),
        (3, [1.0], 1e-3),
        (-5, [0.0, 0.6, 0.0, -1e-17, 0.4, -1e-18, 0.0], 1e-6),
    ],
)
def test_epsilons_of_odd_distributions(lower: int, masses: list[float], infinite: float) -> None:
    given = (1e-3, lower, np.array(masses), infinite, True)
    ours, theirs = GridPmf(*given), pld_pmf.DensePLDPmf(*given)
    for delta in (0.99, 0.3, 1e-3, 1e-5, 1e-7):
        try:
            expected = theirs.get_epsilon_for_delta(delta)
        except OverflowError:  # of exp(-loss); no epsilon below 0 is of interest
            expected = 0.0
        assert ours.get_epsilon_for_delta(delta) == expected, delta
    assert GridPmf(*given[:3], 1e-2, True).get_epsilon_for_delta(1e-3) == math.inf


def test_divergences_that_increase_are_refused() -> None:
    deltas = np.linspace(0.5, 0.0, 1201)
    deltas[600] = 0.9
    with pytest.raises(ValueError, match="increase"):
        connect_the_dots(1e-3, 0, 1200, deltas)
