"""Long lists of cases, of which the quick tests run a part and the slow ones the rest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def one_in(every: int, cases: Iterable[Any]) -> list[Any]:
    """The cases as parameters of a test, all but one in `every` marked slow."""
    return [
        case if i % every == 0 else pytest.param(case, marks=pytest.mark.slow)
        for i, case in enumerate(cases)
    ]


def with_slow(cases: Iterable[Any], *slow: Any) -> list[Any]:
    """The cases as parameters of a test, some of them marked slow."""
    return [pytest.param(case, marks=pytest.mark.slow) if case in slow else case for case in cases]
