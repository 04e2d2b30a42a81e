from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from PIL import Image

from sfumato.pictures import curves


@pytest.fixture
def panels(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Axes, str]]:
    """The panels that are drawn, with what they are drawn against."""
    seen: list[tuple[Axes, str]] = []
    inner = curves._panel

    def watch(axes: Axes, *args: Any) -> bool:
        seen.append((axes, args[-1]))
        return inner(axes, *args)

    monkeypatch.setattr(curves, "_panel", watch)
    return seen


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


def lines(axes: Axes) -> dict[str, tuple[list[float], list[float]]]:
    return {
        str(line.get_label()): (list(line.get_xdata()), list(line.get_ydata()))
        for line in axes.get_lines()
    }


def test_private_run_is_drawn_against_epsilon_and_steps(tmp_path: Path, panels: Any) -> None:
    final = {"final": True, "step": 20, "epsilon": 3.0, "test_accuracy": 0.9213}
    curves.draw([*records(20), final], tmp_path / "c.png", title="a run", budget=3)
    assert [key for _, key in panels] == ["epsilon", "step"] * 2
    against_epsilon = lines(panels[0][0])
    assert against_epsilon["final test 92.1 %"] == ([3.0], [0.9213])
    assert "test" not in against_epsilon
    xs, ys = against_epsilon["validation"]
    assert xs[-1] == pytest.approx(3) and ys == [0.9 - 0.8 / step for step in range(1, 21)]
    assert lines(panels[3][0])["training batches"][0] == list(range(1, 21))
    drawn(tmp_path / "c.png")


@pytest.mark.parametrize("epsilon", [None, math.inf])
def test_run_without_privacy_is_drawn_against_steps_only(
    tmp_path: Path, panels: Any, epsilon: float | None
) -> None:
    metrics = [r | {"epsilon": epsilon} for r in records(5, private=False)]
    final = {"step": 5, "test_accuracy": 0.5, "test_loss": 1.25}
    curves.draw(metrics, tmp_path / "c.png", final=final)
    assert [key for _, key in panels] == ["step", "step"]
    assert lines(panels[1][0])["final test 1.25"] == ([5.0], [1.25])
    private_width, private_height = drawn(tmp_path / "c.png")
    assert private_width > 2 * private_height


def test_a_result_is_called_what_it_is(tmp_path: Path, panels: Any) -> None:
    metrics = [*records(3, private=False), {"final": True, "step": 3, "test_accuracy": 0.5}]
    curves.draw(metrics, tmp_path / "c.png", ended="views of new images")
    assert lines(panels[0][0])["views of new images 50.0 %"] == ([3.0], [0.5])


def test_long_noisy_curves_get_a_moving_mean(tmp_path: Path, panels: Any) -> None:
    curves.draw(records(200), tmp_path / "c.png")
    xs, ys = lines(panels[1][0])["training batches (moving mean)"]
    accuracy = [1 - 1 / step for step in range(1, 201)]
    assert len(xs) == 200 and ys[0] == accuracy[0] and ys[-1] == pytest.approx(accuracy[-1])
    assert ys[100] == pytest.approx(np.mean(accuracy[95:106]))


def test_private_run_without_curves_shows_how_epsilon_was_spent(
    tmp_path: Path, panels: Any
) -> None:
    metrics = [{"step": k, "epsilon": math.sqrt(k), "lr": 2.0} for k in range(1, 10)]
    final = {"final": True, "step": 9, "epsilon": 3.0, "test_accuracy": 0.875}
    curves.draw([*metrics, final], tmp_path / "c.png", title="a run", budget=3)
    ((accuracy, _),) = panels
    assert lines(accuracy)["final test 87.5 %"] == ([3.0], [0.875])
    spent = accuracy.figure.axes[0].get_lines()[0]
    assert list(spent.get_ydata())[-1] == 3.0 and list(spent.get_xdata())[:2] == [1.0, 2.0]
    width, height = drawn(tmp_path / "c.png")
    assert width > 2 * height, "no panel is empty"


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


def test_points_that_are_not_finite_are_left_out(tmp_path: Path, panels: Any) -> None:
    losses = [math.nan, 2.0, math.inf, 1.0]
    metrics = [{"step": k, "loss": loss} for k, loss in enumerate(losses, start=1)]
    curves.draw(metrics, tmp_path / "c.png")
    assert lines(panels[1][0])["training batches"] == ([2, 4], [2.0, 1.0])


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


def test_a_budget_far_beyond_what_was_spent_is_left_out(tmp_path: Path) -> None:
    curves.draw(records(5), tmp_path / "far.png", budget=1e9)
    curves.draw(records(5), tmp_path / "none.png")
    far, none = (np.asarray(Image.open(tmp_path / f"{n}.png")) for n in ("far", "none"))
    assert np.array_equal(far, none)
