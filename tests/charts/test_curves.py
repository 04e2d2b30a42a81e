from __future__ import annotations

import math
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from PIL import Image

from sfumato.charts import curves, png
from sfumato.charts.chart import Chart, Points


def records(n: int, *, private: bool = True, validation: bool = True) -> list[dict[str, Any]]:
    found = []
    for step in range(1, n + 1):
        record: dict[str, Any] = {"step": step, "loss": 2 / step, "train_accuracy": 1 - 1 / step}
        if private:
            record["epsilon"] = 3 * math.sqrt(step / n)
        if validation:
            record["validation_accuracy"] = 0.9 - 0.8 / step
        found.append(record)
    return found


def drawn(path: Path) -> tuple[int, int]:
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert np.asarray(image.convert("L")).std() > 1
        return image.size


def rows(metrics: list[dict[str, Any]], **options: Any) -> list[list[Chart]]:
    """The charts that `draw` draws."""
    with patch.object(png, "draw") as drawing:
        curves.draw(metrics, "c.png", **options)
    found: list[list[Chart]] = drawing.call_args.args[0]
    return found


def lines(chart: Chart) -> dict[str, Points]:
    return {s.label if s.legend is None else s.legend: s.points for s in chart.series}


def test_private_run_is_drawn_against_epsilon_and_steps() -> None:
    final = {"final": True, "step": 20, "epsilon": 3.0, "test_accuracy": 0.9213}
    drawn_rows = rows([*records(20), final], title="a run", budget=3)
    assert [[c.x.label for c in row] for row in drawn_rows] == [["ε spent", "step"]] * 2
    against_epsilon = lines(drawn_rows[0][0])
    assert against_epsilon["final test 92.1 %"] == ((3.0, 0.9213),)
    assert "test" not in against_epsilon
    xs, ys = zip(*against_epsilon["validation"], strict=True)
    assert xs[-1] == pytest.approx(3) and list(ys) == [0.9 - 0.8 / step for step in range(1, 21)]
    assert [x for x, _ in lines(drawn_rows[1][1])["training batches"]] == list(range(1, 21))


def test_the_budget_is_a_line_within_the_chart() -> None:
    (near, _), _ = rows(records(20), budget=3.5)
    (rule,) = [s for s in near.series if s.tag == "budget ε = 3.5"]
    assert {x for x, _ in rule.points} == {3.5} and near.x.high > 3.5
    (far, by_step), _ = rows(records(20), budget=1e9)
    assert not [s for c in (far, by_step) for s in c.series if s.tag]


@pytest.mark.parametrize("epsilon", [None, math.inf])
def test_run_without_privacy_is_drawn_against_steps_only(epsilon: float | None) -> None:
    metrics = [r | {"epsilon": epsilon} for r in records(5, private=False)]
    final = {"step": 5, "test_accuracy": 0.5, "test_loss": 1.25}
    ((accuracy, loss),) = rows(metrics, final=final)
    assert (accuracy.x.label, loss.x.label) == ("step", "step")
    assert lines(loss)["final test 1.25"] == ((5.0, 1.25),)


def test_a_result_is_called_what_it_is() -> None:
    metrics = [*records(3, private=False), {"final": True, "step": 3, "test_accuracy": 0.5}]
    ((accuracy, _),) = rows(metrics, ended="views of new images")
    assert lines(accuracy)["views of new images 50.0 %"] == ((3.0, 0.5),)


def test_long_noisy_curves_get_a_moving_mean() -> None:
    (_, by_step), _ = rows(records(200))
    xs, ys = zip(*lines(by_step)["training batches (moving mean)"], strict=True)
    accuracy = [1 - 1 / step for step in range(1, 201)]
    assert len(xs) == 200 and ys[0] == accuracy[0] and ys[-1] == pytest.approx(accuracy[-1])
    assert ys[100] == pytest.approx(np.mean(accuracy[95:106]))


def test_private_run_without_curves_shows_how_epsilon_was_spent(tmp_path: Path) -> None:
    metrics = [{"step": k, "epsilon": math.sqrt(k), "lr": 2.0} for k in range(1, 10)]
    metrics.append({"final": True, "step": 9, "epsilon": 3.0, "test_accuracy": 0.875})
    ((spent, accuracy),) = rows(metrics, budget=3)
    assert lines(accuracy)["final test 87.5 %"] == ((3.0, 0.875),)
    points = spent.series[-1].points
    assert points[-1] == (9.0, 3.0) and [x for x, _ in points[:2]] == [1.0, 2.0]
    curves.draw(metrics, tmp_path / "c.png", title="a run", budget=3)
    width, height = drawn(tmp_path / "c.png")
    assert width > 2 * height, "no panel is empty"


def test_curves_of_several_runs_have_the_colours_of_the_runs() -> None:
    runs = [curves.History(records(5), name=name) for name in ("a", "b")]
    found = curves.charts(runs, "step")["accuracy"].series
    assert [(s.label, s.run) for s in found] == [
        ("a, training batches", 0), ("a, validation", 0),
        ("b, training batches", 1), ("b, validation", 1),
    ]  # fmt: skip
    assert found[0].colour == found[1].colour != found[2].colour
    kept = curves.charts(runs, "step", batches=False)
    assert [s.label for s in kept["accuracy"].series] == ["a, validation", "b, validation"]
    assert kept["loss"].empty and kept["clipped"].empty


@pytest.mark.parametrize(
    "metrics",
    [
        [],
        [{"step": 1}],
        [{"step": 1, "epsilon": 0.5, "loss": 2.0}],
        [{"step": 1, "epsilon": 0.5, "loss": math.nan, "train_accuracy": None}],
        [{"step": k, "epsilon": k / 9, "loss": math.nan if k % 2 else 1.0} for k in range(1, 9)],
        [{"step": k, "loss": math.inf, "train_accuracy": 1.0} for k in range(1, 9)],
        [{"final": True, "step": 3, "epsilon": 3.0, "test_accuracy": 0.0}],
        [{"final": True, "step": 3, "test_accuracy": math.nan}],
    ],
)
@pytest.mark.filterwarnings("error")
def test_whatever_is_missing(tmp_path: Path, metrics: list[dict[str, Any]]) -> None:
    curves.draw(metrics, tmp_path / "c.png", title="$^5^$", budget=math.inf)
    drawn(tmp_path / "c.png")


def test_points_that_are_not_finite_are_left_out() -> None:
    losses = [math.nan, 2.0, math.inf, 1.0]
    ((_, loss),) = rows([{"step": k, "loss": v} for k, v in enumerate(losses, start=1)])
    assert lines(loss)["training batches"] == ((2, 2.0), (4, 1.0))


def test_a_picture_is_replaced_whole_and_nothing_is_left_behind(tmp_path: Path) -> None:
    path = tmp_path / "c.png"
    path.write_bytes(b"old")
    curves.draw(records(3), path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [p.name for p in tmp_path.iterdir()] == ["c.png"]
    with pytest.raises(OSError):
        curves.draw(records(3), tmp_path / "missing" / "c.png")


def test_the_look_does_not_leak(tmp_path: Path) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    curves.draw(records(3), tmp_path / "c.png")
    assert dict(matplotlib.rcParams) == before
