"""Estimates of minutes: from the same row, from its network, from the cost of its network."""

from __future__ import annotations

import dataclasses
import math

import pytest
from tiny_rows import entry, row

from sfumato import environment
from sfumato.reproduce.minutes import Estimator
from sfumato.reproduce.results_file import Entry
from sfumato.reproduce.row import Row

CPU, GPU = "A processor, 2 threads", "A GPU"


def recorded(
    subject: Row, minutes: float, speed: float = 0.0, *, on: str = CPU, seed: int = 0
) -> Entry:
    made = entry(subject, 0.5, seed=seed)
    return dataclasses.replace(made, minutes=minutes, views_per_second=speed, hardware=on)


def estimate(subject: Row, known: list[tuple[Row, Entry]], *, device: str = "cpu") -> float:
    rows, entries = [subject, *(r for r, _ in known)], [e for _, e in known]
    return Estimator(rows, entries, device=device).minutes(subject, "published")


def test_the_type_of_a_device_follows_from_its_name() -> None:
    import torch

    assert environment.device_type(environment.hardware(torch.device("cpu"))) == "cpu"
    assert environment.device_type(environment.hardware(torch.device("mps"))) == "mps"
    assert environment.device_type("NVIDIA H200") == "cuda"


def test_a_recorded_row_takes_the_median_of_its_seeds_on_this_kind_of_device() -> None:
    subject = row("a")
    known = [(subject, recorded(subject, m, seed=s)) for s, m in enumerate((9.0, 2.0, 3.0))]
    known.append((subject, recorded(subject, 100.0, on=GPU, seed=3)))
    assert estimate(subject, known) == 3.0
    assert estimate(subject, known, device="cuda") == 100.0


def test_the_same_network_takes_minutes_by_views_and_pixels() -> None:
    """600 views at one in a second are 10 of 12 minutes; the other 2 stay."""
    subject = row("a")
    known = [(subject, recorded(subject, 12.0, 1.0))]
    assert estimate(row("b"), known) == pytest.approx(12)
    assert estimate(row("b", changes={"training.steps": 12}), known) == pytest.approx(22)
    assert estimate(row("b", changes={"training.batch": 50}), known) == pytest.approx(7)
    assert estimate(row("b", changes={"training.views": 3}), known) == pytest.approx(32)
    assert estimate(row("b", changes={"data.size": 16}), known) == pytest.approx(42)
    silent = [(subject, recorded(subject, 12.0))]
    assert estimate(row("b", changes={"training.steps": 12}), silent) == pytest.approx(24)


def test_of_several_runs_of_a_network_the_most_similar_counts() -> None:
    near, far = row("near", changes={"training.batch": 200}), row("far")
    large = row("large", changes={"data.size": 32, "training.batch": 400})
    known = [(r, recorded(r, m)) for r, m in ((near, 40.0), (far, 1.0), (large, 1.0))]
    asked = row("asked", changes={"training.batch": 400})
    assert estimate(asked, known) == pytest.approx(80)


def test_another_network_takes_minutes_by_its_cost() -> None:
    known = [(row("a"), recorded(row("a"), 1000.0))]
    small, large = (row("b", changes={"model.options.filters": n}) for n in (8, 64))
    assert 0 < estimate(small, known) < estimate(large, known) < 1000
    assert estimate(large, known, device="cuda") != estimate(large, known)
    longer = row("b", changes={"model.options.filters": 64, "training.steps": 60_000})
    assert estimate(longer, known) > 10 * estimate(large, known)
    assert estimate(row("b", changes={"privacy.enabled": False}), known) < 1000


def test_steps_that_are_done_take_no_time() -> None:
    subject = row("a")
    known = Estimator([subject], [recorded(subject, 12.0)], device="cpu")
    assert known.minutes(subject, "published", done=4) == pytest.approx(4)
    assert known.minutes(subject, "published", done=6) == 0
    unknown = row("b", changes={"data.name": "./mine"})
    assert math.isinf(known.minutes(unknown, "published"))


def test_results_of_an_earlier_recipe_are_not_used() -> None:
    old = row("a", changes={"optimizer.lr": 0.5})
    assert estimate(row("a"), [(row("a"), recorded(old, 1000.0))]) < 1000
