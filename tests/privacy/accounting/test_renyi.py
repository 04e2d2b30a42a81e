"""Rényi divergences are those of dp_accounting, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant

from sfumato.privacy.accounting import renyi
from sfumato.privacy.accounting.accountants import ORDERS, Step


@pytest.mark.parametrize(
    ("q", "noise"),
    [(0.04, 0.63), (1e-4, 1.0), (0.3, 8.0), (0.9, 1.3), (0.01, 0.2), (0.5, 100.0), (1.0, 2.0)],
)
def test_divergences_are_equal(q: float, noise: float) -> None:
    orders = ORDERS[:6] + ORDERS[6::9]
    theirs = RdpAccountant(orders)
    theirs.compose(Step(q, noise).to_event())
    np.testing.assert_array_equal(renyi.divergences(q, noise, orders), theirs._rdp)


def test_orders_whose_sum_does_not_converge_are_excluded() -> None:
    (found,) = renyi.divergences(0.5, 300.0, [1.5])
    theirs = RdpAccountant([1.5])
    theirs.compose(Step(0.5, 300.0).to_event())
    assert found == theirs._rdp[0] == np.inf
