"""Remarks about a run that is slow to start."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sfumato.training import trouble


def private(**durations: float) -> Any:
    engine = SimpleNamespace(durations=durations, precision=None, passed_over={})
    return SimpleNamespace(per_example=engine)


@pytest.mark.parametrize(
    ("durations", "words"),
    [
        ({"checks": 12.4, "compilation": 40.2}, "12 s of checks and 40 s of compilation"),
        ({"checks": 50.0, "compilation": 0.0}, "50 s of checks"),
        ({"checks": 0.2, "compilation": 0.0}, "checks"),
    ],
)
def test_a_long_first_step_says_what_took_it(durations: dict[str, float], words: str) -> None:
    said = trouble.about_start(private(**durations), 57.3)
    assert said == [f"The first step took 57 s with {words}."]


def test_a_short_first_step_says_nothing() -> None:
    assert trouble.about_start(private(checks=1.5, compilation=2.0), 4.0) == []


@pytest.mark.parametrize(
    ("slow", "words"),
    [
        ({"compiled": "no rule"}, "not compiled and runs in float32"),
        ({"CUDA graph": "it differs"}, "cannot be recorded as a CUDA graph (it differs)"),
    ],
)
def test_what_makes_steps_slow_is_said(slow: dict[str, str], words: str) -> None:
    engine = SimpleNamespace(durations={}, precision="auto", passed_over=slow)
    [said] = trouble.about_start(SimpleNamespace(per_example=engine), 1.0)  # type: ignore[arg-type]
    assert words in said
