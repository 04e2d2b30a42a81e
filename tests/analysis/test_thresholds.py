"""Decisions by thresholds."""

from __future__ import annotations

import pytest

from sfumato import UserError
from sfumato.analysis.thresholds import decide, parse_thresholds

CLASSES = ("a", "b", "c=d")


def test_thresholds_of_texts() -> None:
    assert parse_thresholds([], CLASSES) == {}
    assert parse_thresholds(["c=d=0.25"], CLASSES) == {"c=d": 0.25}
    assert parse_thresholds(["b=0.1", "0.5"], CLASSES) == {"a": 0.5, "b": 0.1, "c=d": 0.5}
    with pytest.raises(UserError, match="no class 'e'"):
        parse_thresholds(["e=0.5"], CLASSES)


@pytest.mark.parametrize(
    ("thresholds", "decision"),
    [
        ({"a": 0.2}, "a"),
        ({"a": 0.21}, "c=d"),
        ({"a": 0.2, "b": 0.3}, "b"),
        ({"a": 0.1, "b": 0.31}, "a"),
        ({"a": 0.6, "b": 0.6, "c=d": 0.6}, None),
        ({"a": 0.5, "b": 0.5, "c=d": 0.5}, "c=d"),
    ],
)
def test_decisions(thresholds: dict[str, float], decision: str | None) -> None:
    assert decide([0.2, 0.3, 0.5], CLASSES, thresholds) == decision
